// SPDX-License-Identifier: GPL-2.0-only
//! A policy's object file: opened, set up, verified by the kernel.
//!
//! An object has at most one ops map of each [`Kind`]. Its programs say by
//! their section, `struct_ops/HOOK`, which hook they are.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::btf::{Btf, types};
use libbpf_rs::{MapCore, MapType, Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::args::{PolicyArgs, ScopeArgs};
use crate::failure::{self, Failure};
use crate::links;

/// `SLUICE_GPU_ANY`.
pub const ANY_GPU: u32 = u32::MAX;
const NAME_BYTES: usize = 32;
// Offsets in `struct sluice_gpu_plain`.
const GPU_AT: usize = 8;
const BUDGET_AT: usize = 12;
const CGROUP_AT: usize = 16;
const FAULTS_AT: usize = 24;
const NAME_AT: usize = 32;

/// The two kinds of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `sluice_gpu_mem_ops`
    Memory,
    /// `sluice_gpu_sched_ops`
    Scheduling,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Scheduling];

    /// Its word, here and in pins.
    pub fn word(self) -> &'static str {
        match self {
            Self::Memory => "mem",
            Self::Scheduling => "sched",
        }
    }

    /// The name of the C type.
    fn type_name(self) -> &'static str {
        match self {
            Self::Memory => "sluice_gpu_mem_ops",
            Self::Scheduling => "sluice_gpu_sched_ops",
        }
    }

    /// Its hooks in the order of the C type, which begins with them.
    fn hooks(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &[
                "page_prefetch",
                "page_prefetch_iter",
                "block_activate",
                "block_access",
                "evict_prepare",
            ],
            Self::Scheduling => &["task_init", "bind", "timeslice_control", "task_destroy"],
        }
    }

    /// Where `struct sluice_gpu_plain` begins.
    fn plain(self) -> usize {
        self.hooks().len() * 8
    }

    fn size(self) -> usize {
        self.plain() + NAME_AT + NAME_BYTES
    }
}

/// The value of an ops map, as the object has it: zeros for functions.
#[derive(Clone)]
struct Ops {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Ops {
    fn put(&mut self, offset: usize, value: &[u8]) {
        let at = self.kind.plain() + offset;
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn name(&self) -> String {
        let name = &self.bytes[self.kind.plain() + NAME_AT..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }
}

/// A policy that the kernel has verified.
pub struct Policy {
    /// The name it is attached by.
    pub name: String,
    object: Object,
    ops: Vec<Ops>,
}

/// One program of a policy.
pub struct Program {
    /// Its hook.
    pub hook: String,
    /// Instructions that the verifier looked at before it agreed.
    pub verified: u32,
    /// Bytes of machine code.
    pub code_bytes: u32,
}

static LOG: Mutex<String> = Mutex::new(String::new());

// The signature is libbpf-rs's.
#[allow(clippy::needless_pass_by_value)]
fn keep_log(_: PrintLevel, text: String) {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
}

fn installed(args: &PolicyArgs) -> Result<PathBuf> {
    if args.policy.contains('/') {
        return Ok(PathBuf::from(&args.policy));
    }
    let path = args.policies.join(format!("{}.bpf.o", args.policy));
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::new(
        format!("there is no policy {} in {}", args.policy, args.policies.display()),
        "sluice policy list shows those that are there; the path of an object file will do too",
    )
    .into())
}

/// What must be there before libbpf is asked, whose own words on it are vague.
fn expect_types() -> Result<()> {
    let (next, message) = if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        ("boot a kernel with CONFIG_DEBUG_INFO_BTF", "this kernel has no type information (BTF)")
    } else if !Path::new("/sys/module/sluice_gpu").exists() {
        ("modprobe sluice_gpu", "the kernel module sluice_gpu is not loaded")
    } else if !Path::new("/sys/kernel/btf/sluice_gpu").exists() {
        (
            "rebuild it for this very kernel, with pahole installed",
            "the kernel module sluice_gpu was built without type information (BTF)",
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(message, next).into())
}

impl Policy {
    /// Opens a policy, sets it up, and has the kernel verify it.
    pub fn load(args: &PolicyArgs, scope: &ScopeArgs, name: Option<&str>) -> Result<Self> {
        expect_types()?;
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep_log)));
        let path = installed(args)?;
        let place = path.display();
        let mut open = ObjectBuilder::default()
            .open_file(&path)
            .map_err(|error| anyhow!("{place} is no policy: {error}: {}", log_end(1)))?;
        apply_settings(&mut open, &path, &args.settings)?;
        let mut ops = ops_of(&mut open, &path)?;
        for ops in &mut ops {
            apply_scope(ops, scope, name)?;
        }
        let attached_by =
            ops.first().map(Ops::name).with_context(|| format!("{place} has no ops map"))?;
        let object = open.load().map_err(|error| refused(&path, &error))?;
        Ok(Self { name: attached_by, object, ops })
    }

    /// The kinds of ops that it has.
    pub fn kinds(&self) -> Vec<Kind> {
        self.ops.iter().map(|ops| ops.kind).collect()
    }

    /// The hooks that it has programs for.
    pub fn hooks(&self) -> Result<Vec<String>> {
        self.object
            .progs()
            .map(|program| Ok(hook_of(&program.section().to_string_lossy())?.to_owned()))
            .collect()
    }

    /// Gives a kind's map its value, so that it can be linked, and hands it out.
    pub fn ready(&self, kind: Kind) -> Result<BorrowedFd<'_>> {
        let mut ops = self.ops.iter().find(|ops| ops.kind == kind).context("no such ops")?.clone();
        for program in self.object.progs() {
            let section = program.section().to_string_lossy();
            let hook = hook_of(&section)?;
            if let Some(place) = kind.hooks().iter().position(|known| *known == hook) {
                let fd = u64::try_from(program.as_fd().as_raw_fd())?;
                ops.bytes[place * 8..place * 8 + 8].copy_from_slice(&fd.to_ne_bytes());
            }
        }
        let word = self
            .object
            .maps()
            .find(|map| map.map_type() == MapType::StructOps && is_kind(map, kind))
            .context("the ops map is gone")?;
        let value_size = word.value_size() as usize;
        let fd = word.as_fd().as_raw_fd();
        // SAFETY: the descriptor belongs to the object, which the result borrows.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        links::fill(fd, value_size, &ops.bytes).map_err(|error| self.unfit(&error))?;
        Ok(fd)
    }

    fn unfit(&self, error: &io::Error) -> anyhow::Error {
        if error.raw_os_error() == Some(libc::EPROTO) {
            return Failure::new(
                format!("policy {} is of another version than the module sluice_gpu", self.name),
                "rebuild the policies and the module from one source: make -C kernel-module",
            )
            .into();
        }
        Failure::new(
            format!("the module sluice_gpu refuses policy {}: {error}", self.name),
            "dmesg | grep sluice_gpu says why",
        )
        .into()
    }

    /// Its programs and what verifying them cost.
    pub fn programs(&self) -> Result<Vec<Program>> {
        let mut all = Vec::new();
        for program in self.object.progs() {
            let mut info = libbpf_sys::bpf_prog_info::default();
            let mut length = size_of_val(&info) as u32;
            // SAFETY: info is valid for the length given, and asks for no arrays.
            let done = unsafe {
                libbpf_sys::bpf_prog_get_info_by_fd(
                    program.as_fd().as_raw_fd(),
                    &raw mut info,
                    &raw mut length,
                )
            };
            if done < 0 {
                return Err(io::Error::from_raw_os_error(-done)).context("no program info");
            }
            all.push(Program {
                hook: hook_of(&program.section().to_string_lossy())?.to_owned(),
                verified: info.verified_insns,
                code_bytes: info.jited_prog_len,
            });
        }
        Ok(all)
    }
}

fn is_kind(map: &impl MapCore, kind: Kind) -> bool {
    map.name().to_string_lossy().starts_with(kind.word())
}

fn hook_of(section: &str) -> Result<&str> {
    section.strip_prefix("struct_ops/").with_context(|| {
        format!("a program is in section {section:?}, not struct_ops/HOOK: use SLUICE_HOOK")
    })
}

/// Finds the ops maps. Their names tell their kinds: `mem_ops`, `sched_ops`.
fn ops_of(open: &mut OpenObject, path: &Path) -> Result<Vec<Ops>> {
    let mut all: Vec<Ops> = Vec::new();
    for map in open.maps_mut().filter(|map| map.map_type() == MapType::StructOps) {
        let name = map.name().to_string_lossy().into_owned();
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| name == format!("{}_ops", kind.word()))
            .with_context(|| {
                format!("{}: ops map {name:?} is neither mem_ops nor sched_ops", path.display())
            })?;
        let bytes = map.initial_value().context("an ops map without a value")?.to_vec();
        if bytes.len() != kind.size() {
            return Err(Failure::new(
                format!(
                    "{}: {} has {} bytes, {} were expected",
                    path.display(),
                    kind.type_name(),
                    bytes.len(),
                    kind.size()
                ),
                "rebuild the policy: make -C kernel-module policies",
            )
            .into());
        }
        all.push(Ops { kind, bytes });
    }
    if all.is_empty() {
        bail!("{} has neither mem_ops nor sched_ops: it is no policy", path.display());
    }
    Ok(all)
}

fn apply_scope(ops: &mut Ops, scope: &ScopeArgs, name: Option<&str>) -> Result<()> {
    if let Some(gpu) = scope.gpu {
        ops.put(GPU_AT, &gpu.to_ne_bytes());
    }
    if let Some(budget) = scope.budget_us {
        ops.put(BUDGET_AT, &(budget * 1000).to_ne_bytes());
    }
    if let Some(cgroup) = &scope.cgroup {
        ops.put(CGROUP_AT, &cgroup_id(cgroup)?.to_ne_bytes());
    }
    if let Some(percent) = scope.max_faults {
        ops.put(FAULTS_AT, &percent.to_ne_bytes());
    }
    if let Some(name) = name {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() >= NAME_BYTES || !name.bytes().all(valid) {
            bail!("the name {name:?} is not 1 to {} letters, digits, - or _", NAME_BYTES - 1);
        }
        let mut bytes = [0; NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        ops.put(NAME_AT, &bytes);
    }
    Ok(())
}

/// A cgroup's id is the inode number of its folder.
pub fn cgroup_id(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let folder = if path.starts_with("/sys/fs/cgroup") {
        path.to_path_buf()
    } else {
        Path::new("/sys/fs/cgroup").join(path.strip_prefix("/").unwrap_or(path))
    };
    let metadata = std::fs::metadata(&folder).map_err(|error| {
        Failure::new(
            format!("there is no cgroup {}: {error}", path.display()),
            "systemd-cgls shows those that there are",
        )
    })?;
    Ok(metadata.ino())
}

/// Writes tunables into the object's constants, by their names and sizes.
fn apply_settings(open: &mut OpenObject, path: &Path, settings: &[(String, u64)]) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let tunables = tunables(path)?;
    let mut constants = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .with_context(|| format!("{} has no tunables", path.display()))?;
    let bytes = constants.initial_value_mut().context("constants without a value")?;
    for (name, value) in settings {
        let Some((offset, size)) = tunables.get(name).copied() else {
            let mut known: Vec<&str> = tunables.keys().map(String::as_str).collect();
            known.sort_unstable();
            bail!("{} has no tunable {name}; it has {}", path.display(), known.join(", "));
        };
        let word = value.to_le_bytes();
        let value = value_of(name, &word, size)?;
        let place = bytes.get_mut(offset..offset + size).context("a tunable out of its section")?;
        place.copy_from_slice(value);
    }
    Ok(())
}

/// The bytes of a word that a tunable of that size takes; the others must be 0.
fn value_of<'word>(name: &str, word: &'word [u8; 8], size: usize) -> Result<&'word [u8]> {
    let value = u64::from_le_bytes(*word);
    let Some((taken, rest)) = word.split_at_checked(size) else {
        bail!("{name}={value}: it has {size} bytes, which is no number");
    };
    if rest.iter().any(|byte| *byte != 0) {
        bail!("{name}={value}: it has {size} bytes");
    }
    Ok(taken)
}

/// A policy's tunables: name to offset and size in its constants.
pub fn tunables(path: &Path) -> Result<HashMap<String, (usize, usize)>> {
    let btf = Btf::from_path(path).with_context(|| format!("{} has no BTF", path.display()))?;
    let mut all = HashMap::new();
    let Some(section) = btf.type_by_name::<types::DataSec<'_>>(".rodata") else {
        return Ok(all);
    };
    for entry in section.iter() {
        let variable = btf.type_by_id::<types::Var<'_>>(entry.ty);
        if let Some(name) = variable.and_then(|variable| variable.name()) {
            let place = (entry.offset as usize, entry.size);
            all.insert(name.to_string_lossy().into_owned(), place);
        }
    }
    Ok(all)
}

/// The last lines of what libbpf and the verifier have said.
fn log_end(lines: usize) -> String {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<&str> = log.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn refused(path: &Path, error: &libbpf_rs::Error) -> anyhow::Error {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let verifier = log
        .split("-- BEGIN PROG LOAD LOG --")
        .nth(1)
        .and_then(|rest| rest.split("-- END PROG LOAD LOG --").next())
        .unwrap_or(&log);
    let end = failure::reason(verifier).join("\n    ");
    Failure::new(
        format!("the kernel refuses {}: {error}\n    {end}", path.display()),
        "docs/how-to/write-a-policy.md lists what the verifier wants; dmesg may say more",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(value: u64, size: usize) -> String {
        match value_of("least", &value.to_le_bytes(), size) {
            Ok(bytes) => format!("{bytes:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_value_fits_its_tunable_or_is_refused() {
        assert_eq!(said(0x1ff, 2), "[255, 1]");
        assert_eq!(said(u64::MAX, 8), "[255, 255, 255, 255, 255, 255, 255, 255]");
        assert_eq!(said(0x1ff, 1), "least=511: it has 1 bytes");
        // A table of constants is a constant of the object too.
        assert!(said(1, 9).starts_with("least=1: it has 9 bytes, which is no number"));
        assert!(said(1, usize::MAX).contains("is no number"));
    }
}
