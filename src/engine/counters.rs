// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one I/O thread counts: relaxed atomics on cache lines of its own,
//! written by the thread and read by whoever reports.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters of one I/O thread.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64),+ }

        /// A sum of counters at about one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals { $($(#[$doc])* pub $name: u64),+ }

        impl Totals {
            /// Adds one thread's counters.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name += counters.$name.load(Ordering::Relaxed);)+
            }
        }
    };
}

counters! {
    /// Read requests finished.
    reads,
    /// Write requests finished.
    writes,
    /// Trim requests finished.
    trims,
    /// Write-zeroes requests finished.
    write_zeroes,
    /// Flush requests finished.
    flushes,
    /// Times a request was parked: its extent was moving, its page was being
    /// written, or no slot was ready.
    parked,
    /// Page operations that a tier answered with an error.
    io_errors,
    /// Pages whose data did not match their checksum.
    checksum_errors,
    /// Requests answered because a tier did not answer in time.
    timed_out,
    /// Extents that went to the spill because no faster slot was ready.
    spilled,
    /// Extents moved between slots.
    moved,
}

impl Counters {
    /// Counts one more of `counter`.
    pub(super) fn bump(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
