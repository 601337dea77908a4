// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store tells clients about itself: the control socket's requests
//! and replies ([`Request`], [`Reply`]), one JSON object a line each way, and
//! the snapshot below. Pure data.

mod control;
pub mod metrics;
mod order;
pub mod rates;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use control::{ControlReply, ControlRequest, ControlState};
pub use order::{DEADLINE_MS, Ended, MAX_DEADLINE_MS, Outcome, Refusal, Reply, Request};

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
    /// What was moved since the start.
    #[serde(default)]
    pub moves: Moves,
    /// The store's own memory.
    pub memory: Memory,
    /// What all this is worth to the machine.
    #[serde(default)]
    pub economy: Economy,
    /// Whether each page can be lost with a fast tier (`writeback`) or not (`mirror`).
    #[serde(default)]
    pub durability: String,
    /// The configuration that it goes by; `None`: it was started without a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// One sentence for a person; may be empty.
    #[serde(default)]
    pub message: String,
}

/// The configuration that a store goes by, whatever its file says now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The file, which the next store reads that begins without a page.
    pub file: String,
    /// The keys that the store goes by, `swap.size`, with their values as the file
    /// spells them, defaults included; one that is not set is not there.
    pub settings: BTreeMap<String, String>,
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
    /// All states, in the order of a life.
    pub const ALL: [Self; 5] =
        [Self::Starting, Self::Armed, Self::Serving, Self::Draining, Self::Stopped];

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
    /// What is behind the name, for a person; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The GPU it is on, by UUID; null for memory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
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
    /// Bytes it may hold now.
    #[serde(default)]
    pub target_bytes: u64,
    /// Bytes of the extents that have a place in it.
    #[serde(default)]
    pub used_bytes: u64,
    /// Bytes held and not used.
    #[serde(default)]
    pub free_bytes: u64,
    /// Bytes in slabs that failed.
    #[serde(default)]
    pub quarantined_bytes: u64,
    /// False while its device is closed.
    #[serde(default = "yes")]
    pub open: bool,
    /// True after a failure: no new pages go there.
    #[serde(default)]
    pub faulty: bool,
    /// What it did since the start.
    #[serde(default)]
    pub activity: Activity,
}

fn yes() -> bool {
    true
}

impl Tier {
    /// Whether what it holds is memory of a GPU, lent to the machine.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.kind == "fast" && !self.name.starts_with("ram")
    }
}

/// What a tier did since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Operations that read.
    pub reads: u64,
    /// Operations that wrote.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How long reads took.
    pub read_latency: Latency,
    /// How long writes took.
    pub write_latency: Latency,
    /// The times of which `read_latency` is the summary.
    #[serde(default)]
    pub read_times: Times,
    /// The same for writes.
    #[serde(default)]
    pub write_times: Times,
    /// Operations that failed.
    pub errors: u64,
    /// Pages that did not match their checksum.
    pub checksum_errors: u64,
    /// Operations that were not answered in time.
    pub timed_out: u64,
}

/// Extents moved since the start, and pages saved or lost on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// Extents moved, of whatever kind.
    pub extents: u64,
    /// Bytes copied for them.
    pub bytes: u64,
    /// Of them, those that left a fast tier.
    pub evacuated: u64,
    /// Those that stayed in their tier.
    pub compacted: u64,
    /// Those that came back from the spill.
    pub promoted: u64,
    /// The longest that a request had to wait at one go.
    pub longest_wait_us: u64,
    /// Reads answered from the spill's copy because a fast tier failed.
    pub rescued_reads: u64,
    /// Pages that no tier could read.
    pub lost_pages: u64,
}

/// Percentiles, each an upper bound in microseconds; 0 without an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Half were at most this.
    pub p50_us: u64,
    /// 99 of 100 were at most this.
    pub p99_us: u64,
    /// 999 of 1000 were at most this.
    pub p999_us: u64,
}

impl Latency {
    /// From a histogram whose bucket `n` counts operations of less than `2^n`
    /// microseconds that are in no bucket before it.
    #[must_use]
    pub fn of(buckets: &[u64]) -> Self {
        let all: u64 = buckets.iter().sum();
        let at = |per_mille: u64| {
            let rank = (all * per_mille).div_ceil(1000);
            let mut seen = 0;
            let bucket = buckets.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            bucket.filter(|_| all > 0).map_or(0, |bucket| 1_u64 << bucket.min(63))
        };
        Self { p50_us: at(500), p99_us: at(990), p999_us: at(999) }
    }
}

/// How long operations took, counted by the binary logarithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// How many took less than `2^n` microseconds and are in no bucket before `n`;
    /// without the empty buckets at the end.
    pub buckets: Vec<u64>,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Times {
    /// From all buckets.
    #[must_use]
    pub fn of(buckets: &[u64], sum_ns: u64) -> Self {
        let used = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        Self { buckets: buckets[..used].to_vec(), sum_ns }
    }
}

/// What the store gives the machine, and what it costs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Economy {
    /// GPU memory held: lent to the machine.
    pub lent_bytes: u64,
    /// Memory of the machine that it takes: resident, all of it locked, and pinned.
    pub spent_bytes: u64,
    /// The one less the other; negative where it costs more than it gives.
    pub net_bytes: i64,
    /// Bytes the spill can hold; null without one.
    pub spill_bytes: Option<u64>,
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
    /// Bytes of the reads.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes of the writes.
    #[serde(default)]
    pub written_bytes: u64,
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
    /// Pinned by drivers for transfers.
    #[serde(default)]
    pub pinned_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_upper_bounds_of_their_buckets() {
        assert_eq!(Latency::of(&[]), Latency::default());
        assert_eq!(Latency::of(&[0; 8]), Latency::default());
        // 98 below 8 us, one below 64 us, one below 1024 us.
        let mut buckets = [0; 12];
        (buckets[3], buckets[6], buckets[10]) = (98, 1, 1);
        assert_eq!(Latency::of(&buckets), Latency { p50_us: 8, p99_us: 64, p999_us: 1024 });
        assert_eq!(Times::of(&buckets, 7), Times { buckets: buckets[..11].to_vec(), sum_ns: 7 });
        assert_eq!(Times::of(&[0; 8], 0), Times::default());
        let one = Latency::of(&[1]);
        assert_eq!((one.p50_us, one.p999_us), (1, 1));
    }
}
