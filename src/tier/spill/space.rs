// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a spill: which space may be one, and making it ours. Whatever could
//! make a later write fail, wait or land elsewhere is refused here.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::HEADER_BYTES;
use super::signature::{self, Found, START_BYTES};
use super::{backing, extents, filesystem};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES, SLAB_BYTES};

/// What our header page begins with.
pub(super) const MAGIC: &[u8; 16] = b"SLUICE-SPILL-1\n\0";

/// One thing looked at, and what was found or why it will not do.
#[derive(Debug)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub about: &'static str,
    /// What it is, or the refusal.
    pub result: Result<String>,
}

/// Opens `path` for direct I/O, checks that it can be a spill, and claims it.
/// Gives the whole slabs that fit.
pub(super) fn open(path: &Path) -> Result<(File, u32)> {
    let mut examination = Examination { path, findings: None };
    let Some((file, bytes)) = examination.run(true)? else {
        unreachable!("without a list of findings the first refusal ends the examination")
    };
    write_header(&file, path)?;
    // More slabs than a u32 counts would be more than a device can have.
    Ok((file, u32::try_from(whole_slabs(bytes)).unwrap_or(u32::MAX)))
}

/// Takes over a space that another process opened and claimed, with that claim.
/// Gives the whole slabs that fit.
pub(super) fn adopt(file: &File, path: &Path) -> Result<u32> {
    let data = file.metadata().map_err(|cause| io_error(path, "look at", cause))?;
    let bytes = if data.file_type().is_block_device() {
        block_device_bytes(file, path)?
    } else {
        data.len()
    };
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    file.read_exact_at(&mut page.0, 0).map_err(|cause| io_error(path, "read", cause))?;
    if !page.0.starts_with(MAGIC) {
        return Err(Error::new(
            Kind::Protocol,
            format!("spill {}: what was handed over does not begin as a spill", path.display()),
        ));
    }
    Ok(u32::try_from(whole_slabs(bytes)).unwrap_or(u32::MAX))
}

/// Looks at everything that [`open`] looks at and changes nothing. With `swap`,
/// also whether that much swap may stand on it.
pub(super) fn check(path: &Path, swap: Option<ByteLen>) -> Vec<Finding> {
    let mut examination = Examination { path, findings: Some(Vec::new()) };
    // Every refusal is in the list.
    let examined = examination.run(false).ok().flatten();
    if let (Some((_, bytes)), Some(swap)) = (examined, swap) {
        let needed = ByteLen(bytes_for(swap));
        let enough = if bytes >= needed.0 {
            Ok(format!("{} hold {swap} of swap", ByteLen(bytes)))
        } else {
            Err(Error::new(
                Kind::NoSpace,
                format!(
                    "spill {}: {swap} of swap need {needed}, it has {} ({} too few)",
                    path.display(),
                    ByteLen(bytes),
                    ByteLen(needed.0 - bytes)
                ),
            )
            .with_hint("make the swap smaller or the spill larger"))
        };
        examination
            .findings
            .get_or_insert_default()
            .push(Finding { about: "for the swap", result: enough });
    }
    examination.findings.unwrap_or_default()
}

/// Bytes of a spill for so much swap: whole slabs and the header.
pub(super) fn bytes_for(swap: ByteLen) -> u64 {
    HEADER_BYTES + swap.0.next_multiple_of(SLAB_BYTES as u64)
}

fn whole_slabs(bytes: u64) -> u64 {
    bytes.saturating_sub(HEADER_BYTES) / SLAB_BYTES as u64
}

/// Looks at one space, step by step.
struct Examination<'a> {
    path: &'a Path,
    /// Where findings go; `None`: the first refusal ends it.
    findings: Option<Vec<Finding>>,
}

impl Examination<'_> {
    /// Gives the opened space and its bytes. `None`: it cannot even be opened.
    fn run(&mut self, for_use: bool) -> Result<Option<(File, u64)>> {
        let path = self.path;
        let file = match open_direct(path, for_use) {
            Ok(file) => file,
            Err(error) => return self.note("opened", Err(error)).map(|()| None),
        };
        let data = file.metadata().map_err(|cause| io_error(path, "stat", cause))?;
        let (bytes, device) = if data.file_type().is_block_device() {
            self.note("opened", Ok("a block device, exclusively, for direct I/O".to_owned()))?;
            (block_device_bytes(&file, path)?, data.rdev())
        } else {
            self.note("opened", Ok("a file, for direct I/O".to_owned()))?;
            self.file_steps(&file, data.len())?;
            (data.len(), data.dev())
        };
        self.note("stands on", check_backing(path, backing::number(device)))?;
        self.note("size", check_size(path, bytes))?;
        self.note("contents", check_contents(&file, path, bytes))?;
        Ok(Some((file, bytes)))
    }

    fn file_steps(&mut self, file: &File, bytes: u64) -> Result<()> {
        let path = self.path;
        let trust = match filesystem::check(file, path) {
            Ok((name, trust)) => {
                self.note("filesystem", Ok(name.to_owned()))?;
                trust
            }
            // Extents and attributes of such a file mean nothing.
            Err(error) => return self.note("filesystem", Err(error)),
        };
        self.note("lock", lock_file(file, path))?;
        let attributes = filesystem::attributes(file).unwrap_or(0);
        let fit = filesystem::check_attributes(attributes, trust).map_err(|why| {
            let path = path.display();
            Error::new(Kind::Invalid, format!("spill {path}: it {why}")).with_hint(format!(
                "make a new one: rm {path}; sluice spill create {path} --size SIZE (on btrfs it \
                 sets chattr +C, which an empty file must have before its first byte)"
            ))
        });
        self.note("attributes", fit.map(|()| "nothing that changes how it is written".into()))?;
        let direct = filesystem::check_direct(file, path);
        self.note("direct I/O", direct.map(|()| "in units of a page or less".into()))?;
        let blocks = extents::check(file, path, bytes);
        self.note("blocks", blocks.map(|n| format!("all written and its own, {n} extents")))
    }

    fn note(&mut self, about: &'static str, result: Result<String>) -> Result<()> {
        match &mut self.findings {
            Some(findings) => findings.push(Finding { about, result }),
            None => {
                result?;
            }
        }
        Ok(())
    }
}

pub(super) fn io_error(path: &Path, what: &str, cause: std::io::Error) -> Error {
    let kind = match cause.raw_os_error() {
        Some(libc::ENOENT) => Kind::Missing,
        Some(libc::EACCES | libc::EPERM) => Kind::Denied,
        Some(libc::EBUSY | libc::ETXTBSY | libc::EEXIST) => Kind::Busy,
        Some(libc::ENOSPC | libc::EDQUOT) => Kind::NoSpace,
        _ => Kind::Io,
    };
    Error::new(kind, format!("spill {}: cannot {what} it", path.display())).with_source(cause)
}

fn not_a_store(path: &Path) -> Error {
    let what = format!("spill {}: neither a block device nor a file", path.display());
    Error::new(Kind::Invalid, what).with_hint("name a partition, a logical volume or a file")
}

fn open_direct(path: &Path, for_use: bool) -> Result<File> {
    let root = Path::new("/");
    let data = std::fs::metadata(path).map_err(|cause| {
        io_error(path, "open", cause)
            .with_hint(format!("sluice spill create {} --size SIZE makes it", path.display()))
    })?;
    let is_block = data.file_type().is_block_device();
    if !is_block && !data.is_file() {
        return Err(not_a_store(path));
    }
    if !is_block && backing::is_swap_file(root, &data) {
        let what = format!("spill {}: it is a swap file that is on", path.display());
        return Err(Error::new(Kind::Busy, what).with_hint("name another file"));
    }
    // O_EXCL without O_CREAT: on a block device, refuse one that is in use.
    let exclusive = if is_block { libc::O_EXCL } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(for_use)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive)
        .open(path)
        .map_err(|cause| match cause.raw_os_error() {
            Some(libc::EBUSY | libc::ETXTBSY) => {
                let user = is_block.then(|| backing::user(root, backing::number(data.rdev())));
                let user = user.flatten().unwrap_or_else(|| {
                    "it is mounted, used as swap, or held by another store".to_owned()
                });
                io_error(path, "open", cause)
                    .with_hint(format!("{user}; name a partition that nobody uses"))
            }
            Some(libc::EINVAL) => io_error(path, "open", cause)
                .with_hint("its filesystem has no direct I/O; use a partition, ext4 or xfs"),
            Some(libc::EPERM) => io_error(path, "open", cause)
                .with_hint("it may be immutable (lsattr shows i): chattr -i"),
            _ => io_error(path, "open", cause),
        })
}

fn block_device_bytes(file: &File, path: &Path) -> Result<u64> {
    // BLKGETSIZE64 and BLKSSZGET, linux/fs.h: _IOR(0x12, 114, size_t), _IO(0x12, 104).
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let (mut bytes, mut sector) = (0u64, 0 as libc::c_int);
    // SAFETY: each ioctl stores one value of that type where its pointer says.
    let failed = unsafe {
        libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) != 0
            || libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut sector) != 0
    };
    if failed {
        return Err(io_error(path, "size", std::io::Error::last_os_error()));
    }
    if usize::try_from(sector).unwrap_or(usize::MAX) > PAGE_BYTES {
        return Err(Error::new(
            Kind::Invalid,
            format!("spill {}: sectors of {sector} bytes; a page has {PAGE_BYTES}", path.display()),
        )
        .with_hint("use a disk with sectors of at most 4096 bytes"));
    }
    Ok(bytes)
}

/// Refuses what stands, at any depth, on memory, another process or a network.
fn check_backing(path: &Path, device: backing::Number) -> Result<String> {
    match backing::unfit(Path::new("/"), device) {
        None => Ok("a disk of this machine, as far as the kernel shows".to_owned()),
        Some((name, why)) => Err(Error::new(
            Kind::Invalid,
            format!("spill {}: it stands on {name}, which {why}", path.display()),
        )
        .with_hint("use a partition or a file on a disk of this machine")),
    }
}

fn check_size(path: &Path, bytes: u64) -> Result<String> {
    let least = ByteLen(bytes_for(ByteLen(1)));
    match whole_slabs(bytes) {
        0 => Err(Error::new(
            Kind::NoSpace,
            format!("spill {}: {} is less than {least}", path.display(), ByteLen(bytes)),
        )
        .with_hint("a spill has swap.size rounded up to 64 MiB, plus 2 MiB")),
        slabs => {
            let room = ByteLen(slabs * SLAB_BYTES as u64);
            Ok(format!("{}, room for {room} of swap", ByteLen(bytes)))
        }
    }
}

/// Shared by `check` and a store that is about to use it: whoever holds it, the
/// other is refused.
fn lock_file(file: &File, path: &Path) -> Result<String> {
    // SAFETY: a plain system call on our own descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(Error::new(
            Kind::Busy,
            format!("spill {}: another process holds its lock", path.display()),
        )
        .with_source(std::io::Error::last_os_error())
        .with_hint("stop the other store, or name another file"));
    }
    Ok("free".to_owned())
}

/// A page-aligned page, as direct I/O wants it.
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

fn read_page(file: &File, path: &Path, at: u64, page: &mut Page) -> Result<()> {
    file.read_exact_at(&mut page.0, at).map_err(|cause| io_error(path, "read", cause))
}

/// Ours by its header, or zeros where others keep their signatures.
fn check_contents(file: &File, path: &Path, bytes: u64) -> Result<String> {
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    let mut start = Vec::with_capacity(START_BYTES);
    while start.len() < START_BYTES && (start.len() as u64) < bytes {
        read_page(file, path, start.len() as u64, &mut page)?;
        start.extend_from_slice(&page.0);
        if start.starts_with(MAGIC) {
            return Ok("ours from before; its pages are worthless and will be overwritten".into());
        }
    }
    match signature::find(&start) {
        Found::Nothing => {}
        Found::Known(name) => return Err(in_the_way(path, name)),
        Found::Data(at) => return Err(in_the_way(path, &format!("data at byte {at}"))),
    }
    for (name, at, signature) in signature::at_end(bytes) {
        let (first, within) = (at & !(PAGE_BYTES as u64 - 1), (at % PAGE_BYTES as u64) as usize);
        if first + PAGE_BYTES as u64 > bytes {
            continue;
        }
        read_page(file, path, first, &mut page)?;
        if page.0[within..].starts_with(signature) {
            return Err(in_the_way(path, &format!("{name}, at its end")));
        }
    }
    Ok("zeros where others keep their signatures".to_owned())
}

fn in_the_way(path: &Path, what: &str) -> Error {
    Error::new(Kind::Busy, format!("spill {}: holds {what}", path.display())).with_hint(format!(
        "if nothing there is needed: wipefs -a {0}; dd if=/dev/zero of={0} bs=128K count=1 \
         conv=notrunc",
        path.display()
    ))
}

/// Makes the space ours.
fn write_header(file: &File, path: &Path) -> Result<()> {
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    page.0[..MAGIC.len()].copy_from_slice(MAGIC);
    file.write_all_at(&page.0, 0).map_err(|cause| io_error(path, "write the header of", cause))?;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))
}
