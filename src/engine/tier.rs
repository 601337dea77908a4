// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine asks of a tier (a place that holds slabs) and of the host
//! memory that data moves through. Adapters implement these; the engine only
//! passes numbers.
//!
//! # Ownership contract
//! From [`Lane::submit`] until the operation's [`Done`] has been returned by
//! [`Lane::poll`], the operation's range of [`HostMemory`] belongs to the lane:
//! nobody else reads, writes or reuses it. An operation that never completes
//! keeps its range for ever.
//!
//! # Liveness contract
//! `submit` and `poll` never block, allocate or log. Every submitted operation
//! is reported by `poll` exactly once, in any order, or never (a hung device);
//! the caller keeps the deadlines.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::error::Result;
use super::gpu::GpuSelector;
use super::units::SlabIndex;

/// Which way a page operation moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the tier into host memory.
    Read,
    /// From host memory into the tier.
    Write,
}

/// One contiguous transfer between a slab and host memory, whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOp {
    /// The caller's name for the operation, given back in [`Done`].
    pub tag: u32,
    /// Which way.
    pub direction: Direction,
    /// The slab, which must be held ([`Tier::take`]).
    pub slab: SlabIndex,
    /// First byte within the slab, a multiple of 4096.
    pub offset: u32,
    /// First byte within the lane's host memory, a multiple of 4096.
    pub host: u32,
    /// Bytes, a multiple of 4096, within both slab and host memory.
    pub bytes: u32,
}

/// How an operation ended. `Ok` means complete: for a write, the data would
/// survive the death of this process as far as the tier ever lets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The operation's tag.
    pub tag: u32,
    /// Failure carries no text: nothing on an I/O thread may allocate.
    pub result: std::result::Result<(), Fault>,
}

/// Why a tier could not do an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device or file answered with an error (errno or driver code).
    Device(i32),
    /// The slab is not held by the tier.
    NotHeld,
}

/// Wakes the I/O thread that sleeps on its socket when an operation completes
/// in the background. Called from tier workers; must not block or allocate.
pub trait Wake: Send + Sync {
    /// Makes the sleeping I/O thread look at its lanes.
    fn wake(&self);
}

/// Locked, page-aligned host memory of one I/O thread that requests' data
/// passes through. All access is by byte ranges; implementors check bounds and
/// panic on a range outside the memory (a broken invariant, never input).
pub trait HostMemory: Send + Sync {
    /// The first byte's address, page-aligned, stable for the memory's life.
    fn base(&self) -> *mut u8;
    /// Length in bytes, a multiple of 4096, below 4 GiB.
    fn bytes(&self) -> usize;
    /// Fills `[at, at + bytes)` with zeros.
    fn zero(&self, at: u32, bytes: u32);
    /// CRC32C (Castagnoli, RFC 3720) of `[at, at + bytes)`.
    fn crc32c(&self, at: u32, bytes: u32) -> u32;
    /// Whether each byte of `[at, at + bytes)` is 0xff: what loads give where the bus
    /// to a device is down.
    fn is_all_ones(&self, at: u32, bytes: u32) -> bool;
}

/// What a lane is made with.
#[derive(Clone)]
pub struct LaneSetup {
    /// The memory that every operation's `host` range lies in.
    pub memory: Arc<dyn HostMemory>,
    /// The most operations that can be submitted and not yet reported.
    pub depth: usize,
    /// Rung by tiers that complete in the background.
    pub waker: Arc<dyn Wake>,
}

/// One I/O thread's private submission queue into a tier (a CUDA stream, a
/// ring of workers). Not shared between threads.
pub trait Lane: Send {
    /// Prepares the calling thread to use the lane: called once by the thread
    /// that will, before anything is served, and may block and allocate. What
    /// fails here makes the lane's operations fail.
    fn enter(&mut self) {}
    /// Starts a group of operations. The caller keeps `pending() + ops.len()`
    /// within the lane's depth.
    fn submit(&mut self, ops: &[PageOp]);
    /// Appends what has completed to `done`, never beyond its capacity.
    fn poll(&mut self, done: &mut Vec<Done>);
    /// Operations submitted and not yet reported.
    fn pending(&self) -> usize;
    /// True if completions of this lane ring no waker: the thread must poll.
    fn needs_polling(&self) -> bool;
}

/// A place that holds slabs: GPU memory, RAM, a disk.
///
/// All but `name`, `max_slabs` and `is_lost` may block and allocate, and are called
/// by the keeper and at start-up, never by an I/O thread.
pub trait Tier: Send + Sync {
    /// A short name for status and errors: `ram`, `spill`, `cuda:0`.
    fn name(&self) -> &str;
    /// What is behind the name, for a person; empty if the name says it all.
    fn about(&self) -> String {
        String::new()
    }
    /// How many slabs the tier could ever hold; slab numbers are below it.
    fn max_slabs(&self) -> u32;
    /// Allocates and maps a slab. Contents are undefined.
    fn take(&self, slab: SlabIndex) -> Result<()>;
    /// Gives the slab's memory back. The caller made sure nobody uses it.
    fn release(&self, slab: SlabIndex) -> Result<()>;
    /// A descriptor that keeps the slab's memory alive by itself.
    fn export(&self, slab: SlabIndex) -> Result<OwnedFd>;
    /// Makes `slab` the memory behind a descriptor from [`Tier::export`].
    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()>;
    /// A new lane with everything it will ever need allocated and warmed.
    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>>;
    /// Bytes of the tier's memory that anybody could still take. `None`: the
    /// tier shares its memory with nobody. A closed device is not woken to ask.
    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Gives back all that the device itself costs, as far as a process can
    /// ([`Tier::lingers`]); lanes stay and are of use again once it was opened.
    /// No slab is held and no operation is open.
    fn close(&self) -> Result<()> {
        Ok(())
    }
    /// Opens the device after [`Tier::close`], with its lanes, and takes no slab.
    /// Costs what a start costs. [`Tier::take`] would open it, too.
    fn open(&self) -> Result<()> {
        Ok(())
    }
    /// False after [`Tier::close`], until it is opened.
    fn is_open(&self) -> bool {
        true
    }
    /// Whether slabs may be given to requests: it is open, and every thread that
    /// has a lane is prepared for the device as it was opened last.
    fn is_ready(&self) -> bool {
        self.is_open()
    }
    /// True once this process can neither read nor write any more what the tier
    /// holds, by whichever lane, until the device is opened anew: each operation
    /// is answered with an error. Of a device that only refuses, or is slow, it is
    /// false. Neither blocks nor allocates.
    fn is_lost(&self) -> bool {
        false
    }
    /// What of the closed device this process still has open and only its end
    /// lets go of, in words; `None`: nothing.
    fn lingers(&self) -> Option<String> {
        None
    }
    /// What names the device in every process; `None`: nothing does, or there is
    /// no device.
    fn device(&self) -> Option<GpuSelector> {
        None
    }
}
