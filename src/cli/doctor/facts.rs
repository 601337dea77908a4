// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be read about the machine, from files below a root directory.
//! A fact that cannot be read is `None`, never a guess.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::gpus::{self, Gpu, Nvidia};
use super::names;
use crate::engine::gpu::Offer;
use crate::engine::units::ByteLen;

/// Everything that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Facts {
    /// `uname -r`.
    pub kernel: Option<String>,
    /// The network block device driver.
    pub nbd: Module,
    /// Compressed RAM as a block device.
    pub zram: Module,
    /// Block devices served from user space over `io_uring`.
    pub ublk: Module,
    /// The effective capabilities of this process, as a bit set.
    pub capabilities: Option<u64>,
    /// The limit on locked memory.
    pub memlock: Option<Memlock>,
    /// `kernel.io_uring_disabled`.
    pub io_uring_disabled: Option<u32>,
    /// Display and 3D controllers on the PCI bus.
    pub gpus: Vec<Gpu>,
    /// NVIDIA's driver.
    pub nvidia: Nvidia,
    /// Device nodes of GPU drivers.
    pub gpu_nodes: Vec<String>,
    /// Where libcuda is.
    pub libcuda: Option<PathBuf>,
    /// Where the Vulkan loader is.
    pub vulkan_loader: Option<PathBuf>,
    /// The Vulkan drivers' manifests.
    pub vulkan_drivers: Vec<String>,
    /// What those drivers say, where they could be asked without waking a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulkan: Option<Vulkan>,
    /// Swap that is on.
    pub swaps: Vec<Swap>,
    /// Mounted filesystems that a spill file could live on.
    pub spill_candidates: Vec<Candidate>,
    /// Whether zswap stands before every swap device.
    pub zswap: Option<bool>,
    /// Memory that the kernel manages, and what of it is available.
    pub memory: Option<Memory>,
}

/// How far away a kernel module is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Module {
    /// In use or built in.
    Loaded,
    /// Installed for this kernel.
    Installed,
    /// Not installed for this kernel.
    Absent,
    /// This kernel's module list is not there to be read.
    #[default]
    Unknown,
}

/// What Vulkan's drivers answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Vulkan {
    /// The devices that they have.
    Offers(Vec<Offer>),
    /// They could not be started.
    Fails(String),
}

/// How much a process may lock without a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Memlock {
    Unlimited,
    Bytes(u64),
}

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Swap {
    pub path: String,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub priority: i32,
    /// The device node is gone while the kernel still counts its pages.
    pub ghost: bool,
}

/// A filesystem on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Candidate {
    pub mount: String,
    pub filesystem: String,
    /// Free for the superuser to write; read on the running system only.
    pub free_bytes: Option<u64>,
}

/// From `/proc/meminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// Where a driver's libraries usually are.
pub(in crate::cli) const LIBRARY_DIRS: [&str; 12] = [
    "run/opengl-driver/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
];

const VULKAN_MANIFESTS: [&str; 4] = [
    "run/opengl-driver/share/vulkan/icd.d",
    "usr/share/vulkan/icd.d",
    "usr/local/share/vulkan/icd.d",
    "etc/vulkan/icd.d",
];

impl Facts {
    /// Whether Vulkan's drivers can be started, and wake no GPU by it.
    pub fn may_ask_vulkan(&self) -> bool {
        let usable = |gpu: &Gpu| gpu.vendor_name().is_some() && gpu.driver.is_some();
        self.vulkan_loader.is_some()
            && self.gpus.iter().any(usable)
            && !self.gpus.iter().any(|gpu| gpu.asleep)
    }

    /// Reads the tree below `root`.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let kernel = text("proc/sys/kernel/osrelease").map(|release| release.trim().to_owned());
        let module = |name: &str| module(root, kernel.as_deref(), name);
        let library = |name: &str| {
            LIBRARY_DIRS
                .iter()
                .find(|dir| root.join(dir).join(name).exists())
                .map(|dir| Path::new("/").join(dir).join(name))
        };
        Self {
            vulkan: None,
            nbd: module("nbd"),
            zram: module("zram"),
            ublk: module("ublk_drv"),
            capabilities: text("proc/self/status").as_deref().and_then(capabilities),
            memlock: text("proc/self/limits").as_deref().and_then(memlock),
            io_uring_disabled: text("proc/sys/kernel/io_uring_disabled")
                .and_then(|value| value.trim().parse().ok()),
            gpus: gpus::read(root),
            nvidia: Nvidia::read(root, module("nvidia_uvm")),
            gpu_nodes: gpu_nodes(root),
            libcuda: library("libcuda.so.1"),
            vulkan_loader: library("libvulkan.so.1"),
            vulkan_drivers: VULKAN_MANIFESTS
                .iter()
                .flat_map(|dir| names(&root.join(dir)))
                .filter(|name| has_extension(name, "json"))
                .collect(),
            swaps: text("proc/swaps").as_deref().map(swaps).unwrap_or_default(),
            spill_candidates: text("proc/self/mounts")
                .map(|mounts| candidates(&mounts, root == Path::new("/")))
                .unwrap_or_default(),
            zswap: text("sys/module/zswap/parameters/enabled").and_then(|value| {
                match value.trim() {
                    "Y" | "1" => Some(true),
                    "N" | "0" => Some(false),
                    _ => None,
                }
            }),
            memory: text("proc/meminfo").as_deref().and_then(memory),
            kernel,
        }
    }
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found == extension)
}

fn module(root: &Path, kernel: Option<&str>, name: &str) -> Module {
    if root.join("sys/module").join(name).is_dir() {
        return Module::Loaded;
    }
    let Some(kernel) = kernel else { return Module::Unknown };
    let lists = ["lib/modules", "usr/lib/modules", "run/current-system/kernel-modules/lib/modules"]
        .map(|dir| root.join(dir).join(kernel));
    let has = |list: &str| {
        lists.iter().find_map(|dir| fs::read_to_string(dir.join(list)).ok()).map(|text| {
            text.lines().any(|line| {
                let path = line.split(':').next().unwrap_or(line);
                path.rsplit('/')
                    .next()
                    // A file may have dashes where the module's name has underscores.
                    .and_then(|file| file.split_once(".ko"))
                    .is_some_and(|(module, _)| module.replace('-', "_") == name)
            })
        })
    };
    match (has("modules.builtin"), has("modules.dep")) {
        (Some(true), _) => Module::Loaded,
        (_, Some(true)) => Module::Installed,
        (_, Some(false)) => Module::Absent,
        (_, None) => Module::Unknown,
    }
}

fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn memlock(limits: &str) -> Option<Memlock> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(Memlock::Unlimited),
        number => Some(Memlock::Bytes(number.parse().ok()?)),
    }
}

fn gpu_nodes(root: &Path) -> Vec<String> {
    let nvidia = names(&root.join("dev")).into_iter().filter(|name| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let render = names(&root.join("dev/dri")).into_iter().filter(|name| name.starts_with("render"));
    nvidia
        .map(|name| format!("/dev/{name}"))
        .chain(render.map(|name| format!("/dev/dri/{name}")))
        .collect()
}

fn swaps(text: &str) -> Vec<Swap> {
    text.lines().skip(1).filter_map(swap).collect()
}

fn swap(line: &str) -> Option<Swap> {
    const GHOST: &str = "\\040(deleted)";
    let mut fields = line.split_whitespace();
    let path = fields.next()?;
    let _kind = fields.next()?;
    let mut kib = || fields.next()?.parse::<u64>().ok();
    let (size, used) = (kib()?, kib()?);
    let priority = fields.next()?.parse().ok()?;
    Some(Swap {
        path: unescaped(path.strip_suffix(GHOST).unwrap_or(path)),
        size_bytes: size << 10,
        used_bytes: used << 10,
        priority,
        ghost: path.ends_with(GHOST),
    })
}

/// The kernel writes blanks in paths as `\040` and the like.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

fn candidates(mounts: &str, running: bool) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[device, mount, filesystem, options, ..] = &fields[..] else { continue };
        let writable = options.split(',').any(|option| option == "rw");
        let on_disk = ["ext4", "xfs", "btrfs", "f2fs", "bcachefs"].contains(&filesystem);
        // Bind mounts over single files are no place for a file of our own.
        let is_dir = !running || Path::new(mount).is_dir();
        if device.starts_with("/dev/") && on_disk && writable && is_dir {
            let mount = unescaped(mount);
            let free_bytes = running
                .then(|| rustix::fs::statvfs(Path::new(&mount)).ok())
                .flatten()
                .map(|stat| stat.f_bavail * stat.f_frsize);
            found.push(Candidate { mount, filesystem: filesystem.to_owned(), free_bytes });
        }
    }
    found
}

fn memory(meminfo: &str) -> Option<Memory> {
    let kib = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some(Memory {
        total_bytes: kib("MemTotal:")? << 10,
        available_bytes: kib("MemAvailable:")? << 10,
    })
}

impl Swap {
    /// `1.2 GiB of 8 GiB in use`.
    pub fn usage(&self) -> String {
        format!("{} of {} in use", ByteLen(self.used_bytes), ByteLen(self.size_bytes))
    }
}
