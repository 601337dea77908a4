// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a front end (NBD, ublk) sees of the store: requests in, completions
//! out, never a wait.
//!
//! One [`BlockIo`] belongs to one I/O thread. A request's life:
//! [`reserve`](BlockIo::reserve) a ticket with host memory → for a write, put
//! the payload there → [`start`](BlockIo::start) → [`drive`](BlockIo::drive)
//! until its [`Finished`] appears → for a read, send the memory →
//! [`release`](BlockIo::release). Requests finish in any order; a request whose
//! extent is being moved, or whose page another request is writing, is parked
//! inside and retried by `drive`.

use std::sync::Arc;
use std::time::Duration;

use super::tier::HostMemory;

/// What a request does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Tier to host memory; never-written pages read as zeros.
    Read,
    /// Host memory to tier.
    Write,
    /// The range's contents are dead; it reads as zeros afterwards.
    Trim,
    /// The range reads as zeros afterwards.
    WriteZeroes,
    /// Everything finished before this started is as durable as the tiers make
    /// it. Every write here is complete before it finishes, so this is free.
    Flush,
}

/// A reserved place for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Names the request in [`Finished`]; below [`BlockIo::max_requests`].
    pub token: u32,
    /// First byte of the request's host memory (page-aligned).
    pub host: u32,
}

/// Why a request failed, as a front end reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A tier answered with an error.
    Io,
    /// Stored data did not match its checksum; the slab is quarantined.
    Checksum,
    /// A tier did not answer within the deadline.
    TimedOut,
    /// The range is not whole pages inside the device.
    OutOfRange,
}

/// A request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The ticket's token.
    pub token: u32,
    /// Success, or why not. A failed read leaves undefined bytes in its memory.
    pub result: Result<(), Failure>,
}

/// What the I/O thread should do when it has nothing else to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// No request is open: sleep on the socket.
    Empty,
    /// Requests are open and something will ring the waker: sleep on both.
    Woken,
    /// Requests are open that only polling can finish: poll, with short pauses.
    Poll,
    /// The same, and a device works on some that answers within microseconds:
    /// poll without a pause for a while.
    Device,
}

/// The store as one I/O thread sees it. Nothing here blocks, allocates, locks
/// or logs.
pub trait BlockIo: Send {
    /// Prepares the calling thread to be the I/O thread: called once, before
    /// the first request; may block and allocate.
    fn enter(&mut self) {}
    /// The device's size in bytes, a multiple of 4096, fixed.
    fn device_bytes(&self) -> u64;
    /// The memory that tickets point into.
    fn memory(&self) -> &Arc<dyn HostMemory>;
    /// The most requests that can be open at once.
    fn max_requests(&self) -> usize;
    /// The largest request with a payload, in bytes; always reservable when no
    /// other request is open.
    fn max_payload(&self) -> u32;
    /// Reserves a request with `payload` bytes of host memory (0 for commands
    /// without data). `None`: full at the moment, drive and release first.
    fn reserve(&mut self, payload: u32) -> Option<Ticket>;
    /// Starts a reserved request. For read and write `bytes` equals the
    /// reserved payload. A bad range finishes with `OutOfRange`.
    fn start(&mut self, token: u32, command: Command, offset: u64, bytes: u64);
    /// Submits what is ready, collects what completed, retries what is parked.
    /// `now` is a monotonic time; deadlines are measured with it. Appends at
    /// most `max_requests` entries to `finished` over the open requests.
    fn drive(&mut self, now: Duration, finished: &mut Vec<Finished>);
    /// Whoever asked is gone and may ask again elsewhere: what no tier has yet
    /// is never begun, so that it cannot overwrite what is written there
    /// meanwhile. Its requests finish as failed once their tiers have answered
    /// the rest.
    fn cancel(&mut self);
    /// Gives a ticket back: after its reply is sent, or before it was started.
    /// Memory that a timed-out operation may still touch is kept aside, for ever
    /// if need be.
    fn release(&mut self, token: u32);
    /// How to wait.
    fn idle(&self) -> Idle;
    /// Ends it with requests open, whose memory a tier may still touch: by
    /// default all of it is kept for ever.
    fn lose(self)
    where
        Self: Sized,
    {
        std::mem::forget(self);
    }
}
