// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each thread counts: relaxed atomics on cache lines of its own, written
//! by the thread and read by whoever reports. Counting allocates nothing and
//! orders nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::io::Command;
use super::tier::{Direction, PageOp};
use super::units::PAGE_BYTES;

/// Buckets of a histogram of times.
pub const BUCKETS: usize = 32;

/// Times by their binary logarithm: bucket 0 counts those below 1 µs, bucket n
/// those from 2^(n-1) µs to below 2^n µs, the last all longer ones. And their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts one time.
    pub(super) fn count(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        Counters::bump(&self.buckets[bucket.min(BUCKETS - 1)]);
        Counters::raise(&self.sum_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// A sum of histograms at about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many times fell in each bucket, see [`Histogram`].
    pub buckets: [u64; BUCKETS],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Times {
    fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        self.sum_ns += histogram.sum_ns.load(Ordering::Relaxed);
    }

    /// How many times were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Microseconds that `per_mille` of all times stayed below: the end of the
    /// bucket where they are reached. `None`: nothing was counted.
    #[must_use]
    pub fn below_us(&self, per_mille: u64) -> Option<u64> {
        let wanted = (self.total() * per_mille).div_ceil(1000).max(1);
        let mut sum = 0;
        for (bucket, count) in (0..).zip(&self.buckets) {
            sum += count;
            if sum >= wanted {
                return Some(1 << bucket);
            }
        }
        None
    }
}

macro_rules! counters {
    (
        sums { $($(#[$doc:meta])* $name:ident),+ $(,)? }
        longest { $($(#[$most_doc:meta])* $most:ident),+ $(,)? }
        tier { $($(#[$tier_doc:meta])* $tier:ident),+ $(,)? }
        times { $($(#[$time_doc:meta])* $time:ident),+ $(,)? }
    ) => {
        /// Counters of one thread.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
            $($(#[$most_doc])* pub $most: AtomicU64,)+
            /// For each tier in the store's order.
            pub tiers: Box<[TierCounters]>,
        }

        /// What one thread counts of one tier.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct TierCounters {
            $($(#[$tier_doc])* pub $tier: AtomicU64,)+
            $($(#[$time_doc])* pub $time: Histogram,)+
        }

        /// A sum of counters at about one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$most_doc])* pub $most: u64,)+
            /// For each tier in the store's order.
            pub tiers: Vec<TierTotals>,
        }

        /// A sum of one tier's counters at about one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TierTotals {
            $($(#[$tier_doc])* pub $tier: u64,)+
            $($(#[$time_doc])* pub $time: Times,)+
        }

        impl Totals {
            /// Adds one thread's counters.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name += counters.$name.load(Ordering::Relaxed);)+
                $(self.$most = self.$most.max(counters.$most.load(Ordering::Relaxed));)+
                self.tiers.resize(self.tiers.len().max(counters.tiers.len()), TierTotals::default());
                for (sum, tier) in self.tiers.iter_mut().zip(&counters.tiers) {
                    $(sum.$tier += tier.$tier.load(Ordering::Relaxed);)+
                    $(sum.$time.add(&tier.$time);)+
                }
            }
        }
    };
}

counters! {
    sums {
        /// Read requests finished.
        reads,
        /// Bytes of them.
        read_bytes,
        /// Write requests finished.
        writes,
        /// Bytes of them.
        written_bytes,
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
        /// Requests and moves ended because a tier did not answer in time.
        timed_out,
        /// Extents that went to the spill because no faster slot was ready.
        spilled,
        /// Extents moved between slots.
        moved,
        /// Bytes copied for them.
        moved_bytes,
        /// Of the moved, those that left a fast tier.
        evacuated,
        /// Of the moved, those that stayed in their tier.
        compacted,
        /// Of the moved, those that came from the spill.
        promoted,
        /// Pages given up because no tier could read them.
        lost_pages,
        /// Reads answered from the spill's copy because the fast tier failed.
        rescued,
    }
    longest {
        /// The longest time that a request was parked at one go, in microseconds.
        longest_parked_us,
    }
    tier {
        /// Read operations that the tier completed.
        reads,
        /// Write operations that the tier completed.
        writes,
        /// Bytes of the read operations given to the tier.
        read_bytes,
        /// Bytes of the write operations given to the tier.
        written_bytes,
        /// Operations that the tier answered with an error.
        faults,
        /// Pages read from the tier that did not match their checksum.
        checksum_errors,
        /// Operations not answered in time.
        timed_out,
    }
    times {
        /// From the submission of a read to the pass that saw it completed.
        read_times,
        /// From the submission of a write to the pass that saw it completed.
        write_times,
    }
}

impl Counters {
    /// Counters for so many tiers.
    pub(super) fn new(tiers: usize) -> Self {
        Self { tiers: (0..tiers).map(|_| TierCounters::default()).collect(), ..Self::default() }
    }

    /// Counts one more of `counter`.
    pub(super) fn bump(counter: &AtomicU64) {
        Self::raise(counter, 1);
    }

    /// Counts `by` more of `counter`.
    pub(super) fn raise(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    /// A request was carried out; `pages` of payload came or went with it.
    pub(super) fn answered(&self, command: Command, pages: u32) {
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        Self::bump(match command {
            Command::Read => {
                Self::raise(&self.read_bytes, bytes);
                &self.reads
            }
            Command::Write => {
                Self::raise(&self.written_bytes, bytes);
                &self.writes
            }
            Command::Trim => &self.trims,
            Command::WriteZeroes => &self.write_zeroes,
            Command::Flush => &self.flushes,
        });
    }

    /// A request was parked for `time` and goes on.
    pub(super) fn was_parked(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.longest_parked_us.fetch_max(micros, Ordering::Relaxed);
    }
}

impl TierCounters {
    /// An operation is handed to the tier.
    pub(super) fn given(&self, operation: &PageOp) {
        let bytes = match operation.direction {
            Direction::Read => &self.read_bytes,
            Direction::Write => &self.written_bytes,
        };
        Counters::raise(bytes, operation.bytes.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_bucket_of_their_logarithm() {
        let histogram = Histogram::default();
        let counted = [0, 999, 1000, 1999, 2000, 3999, 4000, 1_000_000, 1 << 62];
        for nanos in counted {
            histogram.count(Duration::from_nanos(nanos));
        }
        let mut times = Times::default();
        times.add(&histogram);
        let filled = |n: usize| times.buckets[n];
        assert_eq!([0, 1, 2, 3, 10, BUCKETS - 1].map(filled), [2, 2, 2, 1, 1, 1]);
        assert_eq!((times.total(), times.sum_ns), (9, counted.iter().sum()));
        assert_eq!((times.below_us(1), times.below_us(500)), (Some(1), Some(4)));
        assert_eq!(times.below_us(1000), Some(1 << (BUCKETS - 1)));
        assert_eq!(Times::default().below_us(500), None);
    }

    #[test]
    fn totals_add_what_threads_count_and_keep_the_longest_wait() {
        let mut totals = Totals::default();
        for wait in [5, 3] {
            let counters = Counters::new(2);
            counters.answered(Command::Read, 2);
            counters.answered(Command::Trim, 0);
            Counters::raise(&counters.tiers[1].read_bytes, 4096);
            counters.was_parked(Duration::from_micros(wait));
            totals.add(&counters);
        }
        assert_eq!((totals.reads, totals.read_bytes, totals.trims), (2, 16_384, 2));
        assert_eq!((totals.written_bytes, totals.longest_parked_us), (0, 5));
        assert_eq!((totals.tiers[0].read_bytes, totals.tiers[1].read_bytes), (0, 8192));
    }
}
