// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store tells clients about itself: the control socket's request
//! and reply, one JSON object a line each way. Pure data.

use serde::{Deserialize, Serialize};

/// A request on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Answered with one [`Status`].
    Status {},
}

/// A snapshot of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where in its life the store is.
    pub state: State,
    /// The store's process.
    pub pid: u32,
    /// The store's version.
    pub version: String,
    /// The kernel's devices; empty when it only serves a socket.
    pub devices: Vec<Device>,
    /// Pages written and not trimmed since. More than are live: the kernel
    /// gives back whole 2 MiB clusters only, and only when it discards.
    pub written_pages: u64,
    /// The size offered, over all devices.
    pub size_bytes: u64,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// Clients connected now, the kernel's included.
    pub connections: u32,
    /// Requests since the start.
    pub requests: Requests,
    /// Requests that failed since the start.
    pub errors: Errors,
    /// The store's own memory.
    pub memory: Memory,
    /// One sentence for a person; may be empty.
    #[serde(default)]
    pub message: String,
}

/// Where in its life a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Making its tiers and buffers.
    Starting,
    /// All memory is taken and locked; nothing is served yet.
    Armed,
    /// Answering requests.
    Serving,
    /// Answering requests while its pages are brought back.
    Draining,
    /// Holding nothing.
    Stopped,
}

impl State {
    /// The state's name, as on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Armed => "armed",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// A block device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its node, `/dev/nbd0`.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its swap priority; `null` while it is not swapped on.
    pub swap_priority: Option<i32>,
    /// What the kernel counts as in use: what is live.
    pub swap_used_bytes: u64,
}

/// A tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name: `ram`, `spill`, `cuda:0`.
    pub name: String,
    /// Its kind of memory.
    pub kind: String,
    /// Slabs held now.
    pub slabs_held: u32,
    /// Slabs it could ever hold.
    pub slabs_max: u32,
    /// Slabs that failed and take no new pages.
    pub slabs_quarantined: u32,
    /// Bytes held now.
    pub held_bytes: u64,
    /// Extents that have a place in it.
    pub extents_used: u32,
    /// Places free for extents in the slabs held.
    pub slots_free: u32,
}

/// Requests since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Reads answered.
    pub read: u64,
    /// Writes answered.
    pub write: u64,
    /// Trims answered.
    pub trim: u64,
    /// Write-zeroes answered.
    pub write_zeroes: u64,
    /// Flushes answered.
    pub flush: u64,
    /// Requests that had to wait for a moving extent or an earlier write.
    pub parked: u64,
}

/// Requests that failed since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// A tier answered with an error.
    pub io: u64,
    /// Stored data did not match its checksum.
    pub checksum: u64,
    /// A tier did not answer in time.
    pub timed_out: u64,
}

/// The store's own memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Locked, libraries included.
    pub locked_bytes: u64,
    /// Of it what the store itself asked for: index, staging, buffers.
    pub ours_bytes: u64,
}
