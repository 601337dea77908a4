// SPDX-License-Identifier: MIT OR Apache-2.0
//! The resolved configuration, every default filled in. Plain data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::control::{Battery, Control};
use super::metrics::Metrics;
use super::policies::Policies;
use super::tenants::Tenant;
use crate::engine::gpu::GpuSelector;
use crate::engine::units::{ByteLen, EXTENT_BYTES};

/// Everything the file says, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// The swap devices.
    pub swap: Swap,
    /// The fast tier.
    pub tier: Tier,
    /// The GPUs behind it through libcuda; `None`: it is no such tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
    /// The same for Vulkan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulkan: Option<Vulkan>,
    /// Where pages go that the fast tier cannot hold; `None`: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Spill>,
    /// The kernel's NBD device.
    pub nbd: Nbd,
    /// What holds on battery.
    pub battery: Battery,
    /// How the control plane decides.
    pub control: Control,
    /// Where metrics are served; `None`: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Whose floors of GPU memory are kept, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, Tenant>,
    /// What is logged.
    pub log: Log,
    /// The GPU policies; `None`: none are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Policies>,
}

/// `[swap]`: what the kernel is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// Bytes of swap over all devices, a multiple of 2 MiB.
    #[serde(serialize_with = "as_text")]
    pub size: ByteLen,
    /// The least to start with where `size` is not to be had; `None`: `size` is
    /// exact. A multiple of 512 MiB, below `size`; only without a spill.
    #[serde(serialize_with = "as_optional_text", skip_serializing_if = "Option::is_none")]
    pub min_size: Option<ByteLen>,
    /// The swap priority of each device, -1..=32767; -1 lets the kernel choose.
    pub priority: i32,
    /// Whether the kernel tells us which clusters are dead.
    pub discard: bool,
    /// How many equal devices share `size`, 1..=16.
    pub devices: u32,
    /// Whether the devices are switched on as swap once they are attached.
    pub swapon: bool,
    /// Whether each page carries a checksum.
    pub checksums: bool,
    /// What a write must have reached before it is answered.
    pub durability: Durability,
}

/// What a write must have reached before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The tier that holds the page.
    Writeback,
    /// The spill too: the loss of a fast tier costs no page.
    Mirror,
}

impl Durability {
    /// All choices, the default first.
    pub const ALL: [Self; 2] = [Self::Writeback, Self::Mirror];

    /// The choice's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Mirror => "mirror",
        }
    }
}

impl Swap {
    /// The bytes of each device: `total` split in whole 2 MiB units, the first
    /// devices one unit larger where it does not divide. `total` is `size`, or
    /// less where `min_size` allows it.
    #[must_use]
    pub fn device_sizes(&self, total: ByteLen) -> Vec<ByteLen> {
        let unit = EXTENT_BYTES as u64;
        let (units, devices) = (total.0 / unit, u64::from(self.devices));
        (0..devices)
            .map(|device| ByteLen((units / devices + u64::from(device < units % devices)) * unit))
            .collect()
    }
}

/// Which kind of memory the fast tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// Locked host memory; for demonstrations and tests, only when asked by name.
    Ram,
    /// GPU memory through libcuda.
    Cuda,
    /// GPU memory through Vulkan.
    Vulkan,
    /// The best GPU path this machine has.
    Auto,
}

impl TierKind {
    /// All kinds, in the order in which messages list them.
    pub const ALL: [Self; 4] = [Self::Ram, Self::Cuda, Self::Vulkan, Self::Auto];

    /// The kind's name in the file and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Auto => "auto",
        }
    }

    /// Whether it is, or may turn out to be, GPU memory through libcuda.
    #[must_use]
    pub fn may_be_cuda(self) -> bool {
        matches!(self, Self::Cuda | Self::Auto)
    }

    /// Whether it is, or may turn out to be, GPU memory through Vulkan.
    #[must_use]
    pub fn may_be_vulkan(self) -> bool {
        matches!(self, Self::Vulkan | Self::Auto)
    }

    /// The kinds that this version has, by name.
    #[must_use]
    pub fn built() -> Vec<&'static str> {
        Self::ALL.into_iter().filter(|kind| kind.is_built()).map(Self::name).collect()
    }

    /// Whether this version has the kind.
    #[must_use]
    pub fn is_built(self) -> bool {
        match self {
            Self::Ram => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Auto => cfg!(any(feature = "cuda", feature = "vulkan")),
        }
    }
}

impl std::str::FromStr for TierKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| "not a tier; the tiers are ram, cuda, vulkan and auto".to_owned())
    }
}

/// `[tier]`: the fast tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tier {
    /// Which memory.
    pub kind: TierKind,
    /// The most bytes of it to hold, at most `swap.size`.
    #[serde(serialize_with = "as_text")]
    pub size: ByteLen,
    /// Bytes of it always left free for others.
    #[serde(serialize_with = "as_text")]
    pub reserve: ByteLen,
}

/// `[cuda]`: the GPUs that the fast tier is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cuda {
    /// The driver's library, absolute; `None`: looked for where distributions
    /// put it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
    /// The GPUs, filled in this order, each once.
    pub devices: Vec<GpuSelector>,
}

impl Default for Cuda {
    /// The driver's first GPU.
    fn default() -> Self {
        Self { library: None, devices: vec![GpuSelector::Index(0)] }
    }
}

/// `[vulkan]`: the GPUs that the fast tier is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vulkan {
    /// The Vulkan loader, absolute; `None`: looked for where distributions put it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<PathBuf>,
    /// The GPUs, filled in this order, each once; empty: the first with memory of
    /// its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<GpuSelector>,
}

/// `[spill]`: the slow tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spill {
    /// A file or a partition, absolute.
    pub path: PathBuf,
}

/// `[nbd]`: the kernel's side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nbd {
    /// N of the first `/dev/nbdN`; `None`: the first free ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// How long the kernel keeps a device whose server is gone, in seconds.
    pub dead_connection_timeout_s: u64,
    /// The request timer (`queue/io_timeout`) that re-sends after a
    /// reconnect, in milliseconds.
    pub io_timeout_ms: u32,
}

/// `[log]`: what is logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// The least severe level that is logged.
    pub level: LogLevel,
}

/// A log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is worse than asked for.
    Warn,
    /// Changes of state.
    Info,
    /// Decisions and their reasons.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, most severe first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The level's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// What `sluice serve` was asked for: one export on a Unix socket, no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Which memory holds the pages.
    pub tier: TierKind,
    /// The export's size, a multiple of 2 MiB.
    pub size: ByteLen,
    /// Where to listen.
    pub socket: PathBuf,
    /// Where to answer status and orders; `None`: nowhere.
    pub control: Option<PathBuf>,
    /// What a write must have reached before it is answered.
    pub durability: Durability,
    /// The GPUs, for tier cuda.
    pub cuda: Cuda,
    /// The GPUs, for tier vulkan.
    pub vulkan: Vulkan,
    /// Where pages go that the tier cannot hold.
    pub spill: Option<PathBuf>,
    /// The export's name; empty is NBD's default export.
    pub name: String,
    /// The most clients at once.
    pub max_clients: u32,
    /// Whether each page carries a checksum.
    pub checksums: bool,
}

/// Writes a size the way the file spells it: `8G`, `66M`.
#[must_use]
pub fn spelled(size: ByteLen) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    for (shift, unit) in UNITS {
        if size.0 != 0 && size.0.trailing_zeros() >= shift {
            return format!("{}{unit}", size.0 >> shift);
        }
    }
    size.0.to_string()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(super) fn as_text<S: Serializer>(size: &ByteLen, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&spelled(*size))
}

#[expect(clippy::ref_option, reason = "serde's signature")]
pub(super) fn as_optional_text<S: Serializer>(
    size: &Option<ByteLen>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&size.map_or_else(String::new, spelled))
}
