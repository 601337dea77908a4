// SPDX-License-Identifier: MIT OR Apache-2.0
//! The resolved configuration, every default filled in. Plain data.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::engine::units::{ByteLen, EXTENT_BYTES};

/// Everything the file says, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// The swap devices.
    pub swap: Swap,
    /// The fast tier.
    pub tier: Tier,
    /// Where pages go that the fast tier cannot hold; `None`: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Spill>,
    /// The kernel's NBD device.
    pub nbd: Nbd,
    /// What is logged.
    pub log: Log,
}

/// `[swap]`: what the kernel is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// Bytes of swap over all devices, a multiple of 2 MiB.
    #[serde(serialize_with = "as_text")]
    pub size: ByteLen,
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
}

impl Swap {
    /// The bytes of each device: `size` split in whole 2 MiB units, the first
    /// devices one unit larger where it does not divide.
    #[must_use]
    pub fn device_sizes(&self) -> Vec<ByteLen> {
        let unit = EXTENT_BYTES as u64;
        let (units, devices) = (self.size.0 / unit, u64::from(self.devices));
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

    /// Whether this version has the kind.
    #[must_use]
    pub fn is_built(self) -> bool {
        self == Self::Ram
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
fn as_text<S: Serializer>(size: &ByteLen, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&spelled(*size))
}
