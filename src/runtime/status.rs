// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store as clients see it.

use std::path::Path;

use crate::engine::store::{Role, Store};
use crate::engine::units::{ByteLen, SLAB_BYTES};
use crate::engine::view::{Device, Errors, Memory, Requests, State, Status, Tier};
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
    /// One sentence.
    pub message: String,
}

/// The snapshot. What the kernel does not tell is left at nothing.
pub fn snapshot(store: &Store, facts: Facts<'_>) -> Status {
    let swaps = swap::entries(Path::new("/")).unwrap_or_default();
    let totals = store.totals();
    let locked = armour::verify_locked_memory(Path::new("/")).map_or(0, |m| m.locked.0);
    Status {
        state: facts.state,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        devices: facts.devices.iter().map(|(path, size)| device(path, *size, &swaps)).collect(),
        written_pages: store.written_pages(),
        size_bytes: store.device_bytes(),
        tiers: store.tiers().iter().map(tier).collect(),
        connections: facts.connections,
        requests: Requests {
            read: totals.reads,
            write: totals.writes,
            trim: totals.trims,
            write_zeroes: totals.write_zeroes,
            flush: totals.flushes,
            parked: totals.parked,
        },
        errors: Errors {
            io: totals.io_errors,
            checksum: totals.checksum_errors,
            timed_out: totals.timed_out,
        },
        memory: Memory { locked_bytes: locked, ours_bytes: store.memory_bytes() + facts.buffers },
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

fn tier(slots: &crate::engine::store::TierSlots) -> Tier {
    let count = slots.count();
    Tier {
        name: slots.tier().name().to_owned(),
        kind: match slots.role() {
            Role::Fast => "fast".to_owned(),
            Role::Spill => "spill".to_owned(),
        },
        slabs_held: count.held,
        slabs_max: slots.tier().max_slabs(),
        slabs_quarantined: count.quarantined,
        held_bytes: u64::from(count.held) * SLAB_BYTES as u64,
        extents_used: count.used,
        slots_free: count.free,
    }
}
