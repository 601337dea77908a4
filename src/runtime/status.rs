// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store as clients see it.

use std::path::Path;

use crate::config::schema::Durability;
use crate::engine::counters::{self, TierTotals};
use crate::engine::orders::Progress;
use crate::engine::store::{Role, Store, TierSlots};
use crate::engine::units::{ByteLen, EXTENT_BYTES, SLAB_BYTES};
use crate::engine::view::{
    Activity, Configuration, Device, Economy, Errors, Latency, Memory, Moves, Requests, State,
    Status, Tier, Times,
};
use crate::host::{armour, swap};

/// What of a store is not in the engine.
pub struct Facts<'a> {
    /// Where in its life it is.
    pub state: State,
    /// Nodes and sizes of the kernel's devices.
    pub devices: Vec<(&'a Path, ByteLen)>,
    /// Clients.
    pub connections: u32,
    /// Memory of sessions and mover, in bytes.
    pub buffers: u64,
    /// How far the keeper is.
    pub progress: Progress,
    /// What a write must have reached before it is answered.
    pub durability: Durability,
    /// What it was started with.
    pub configuration: Option<Configuration>,
    /// One sentence.
    pub message: String,
}

/// The snapshot. What the kernel does not tell is left at nothing.
pub fn snapshot(store: &Store, facts: Facts<'_>) -> Status {
    let swaps = swap::entries(Path::new("/")).unwrap_or_default();
    let totals = store.totals();
    let memory = armour::verify_locked_memory(Path::new("/"));
    let (locked, pinned, resident) =
        memory.map_or((0, 0, 0), |memory| (memory.locked.0, memory.pinned.0, memory.resident.0));
    let tiers: Vec<Tier> = store
        .tiers()
        .iter()
        .enumerate()
        .map(|(number, slots)| {
            let progress = facts.progress.tiers.iter().find(|tier| tier.tier == number);
            let activity = totals.tiers.get(number).map(activity).unwrap_or_default();
            tier(slots, progress.map(|tier| tier.target_slabs), activity)
        })
        .collect();
    let lent_bytes = tiers.iter().filter(|tier| tier.is_lent()).map(|tier| tier.held_bytes).sum();
    // Locked address space is more than memory; what is resident is all locked.
    let spent_bytes = resident + pinned;
    Status {
        state: facts.state,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        devices: facts.devices.iter().map(|(path, size)| device(path, *size, &swaps)).collect(),
        written_pages: store.written_pages(),
        size_bytes: store.device_bytes(),
        economy: Economy {
            lent_bytes,
            spent_bytes,
            net_bytes: lent_bytes.cast_signed() - spent_bytes.cast_signed(),
            spill_bytes: spill_bytes(store),
        },
        tiers,
        durability: facts.durability.name().to_owned(),
        connections: facts.connections,
        requests: Requests {
            read: totals.reads,
            write: totals.writes,
            trim: totals.trims,
            write_zeroes: totals.write_zeroes,
            flush: totals.flushes,
            parked: totals.parked,
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
        },
        moves: Moves {
            extents: totals.moved,
            bytes: totals.moved_bytes,
            evacuated: totals.evacuated,
            compacted: totals.compacted,
            promoted: totals.promoted,
            longest_wait_us: totals.longest_parked_us,
            rescued_reads: totals.rescued,
            lost_pages: totals.lost_pages,
        },
        errors: Errors {
            io: totals.io_errors,
            checksum: totals.checksum_errors,
            timed_out: totals.timed_out,
        },
        memory: Memory {
            locked_bytes: locked,
            ours_bytes: store.memory_bytes() + facts.buffers,
            pinned_bytes: pinned,
        },
        configuration: facts.configuration,
        message: facts.message,
    }
}

fn device(path: &Path, size: ByteLen, swaps: &[swap::Entry]) -> Device {
    let entry = swaps.iter().find(|entry| entry.path == path && !entry.deleted);
    Device {
        path: path.display().to_string(),
        size_bytes: size.0,
        swap_priority: entry.map(|entry| entry.priority),
        swap_used_bytes: entry.map_or(0, |entry| entry.used.0),
    }
}

fn activity(totals: &TierTotals) -> Activity {
    let times = |times: &counters::Times| Times::of(&times.buckets, times.sum_ns);
    Activity {
        reads: totals.reads,
        writes: totals.writes,
        read_bytes: totals.read_bytes,
        written_bytes: totals.written_bytes,
        read_latency: Latency::of(&totals.read_times.buckets),
        write_latency: Latency::of(&totals.write_times.buckets),
        read_times: times(&totals.read_times),
        write_times: times(&totals.write_times),
        errors: totals.faults,
        checksum_errors: totals.checksum_errors,
        timed_out: totals.timed_out,
    }
}

fn spill_bytes(store: &Store) -> Option<u64> {
    let spills = store.tiers().iter().filter(|slots| slots.role() == Role::Spill);
    let slabs: Vec<u64> = spills.map(|slots| slots.tier().max_slabs().into()).collect();
    (!slabs.is_empty()).then(|| slabs.iter().sum::<u64>() * SLAB_BYTES as u64)
}

fn tier(slots: &TierSlots, target_slabs: Option<u32>, activity: Activity) -> Tier {
    let count = slots.count();
    let max_slabs = slots.tier().max_slabs();
    let slabs = |count: u32| u64::from(count) * SLAB_BYTES as u64;
    let extents = |count: u32| u64::from(count) * EXTENT_BYTES as u64;
    Tier {
        name: slots.tier().name().to_owned(),
        kind: match slots.role() {
            Role::Fast => "fast".to_owned(),
            Role::Spill => "spill".to_owned(),
        },
        about: slots.tier().about(),
        device: slots.tier().device().map(|device| device.to_string()),
        slabs_held: count.held,
        slabs_max: max_slabs,
        slabs_quarantined: count.quarantined,
        held_bytes: slabs(count.held),
        extents_used: count.used,
        slots_free: count.free,
        // A spill holds what the device needs, always.
        target_bytes: slabs(target_slabs.unwrap_or(count.held)),
        used_bytes: extents(count.used),
        free_bytes: extents(count.free),
        quarantined_bytes: slabs(count.quarantined),
        open: slots.tier().is_open(),
        faulty: slots.is_faulty(),
        activity,
    }
}
