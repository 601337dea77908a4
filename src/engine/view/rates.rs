// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store did between two looks at it, from the differences of its counters.

use std::time::Duration;

use serde::Serialize;

use super::{Latency, Status, Tier, Times};
use crate::engine::units::PAGE_BYTES;

/// What a store did in a second, on average over an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// The interval, in seconds.
    pub seconds: f64,
    /// Pages that were read: swapped in.
    pub pages_in: f64,
    /// Bytes of them.
    pub bytes_in: f64,
    /// Pages that were written: swapped out.
    pub pages_out: f64,
    /// Bytes of them.
    pub bytes_out: f64,
    /// Times that a request had to wait.
    pub waits: f64,
    /// Bytes copied because extents moved.
    pub moved_bytes: f64,
    /// Extents that left a fast tier.
    pub evacuated: f64,
    /// Extents that came back from the spill.
    pub promoted: f64,
    /// For each tier that the store has now, in its order.
    pub tiers: Vec<TierRates>,
}

/// What a tier did in a second, and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierRates {
    /// Its name.
    pub name: String,
    /// Operations that read.
    pub reads: f64,
    /// Operations that wrote.
    pub writes: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub written_bytes: f64,
    /// How long the interval's reads took.
    pub read_latency: Latency,
    /// How long its writes took.
    pub write_latency: Latency,
}

impl Rates {
    /// Between two looks, which are `elapsed` apart; not zero. A store that was
    /// started anew meanwhile counts from zero: what it counted since is what is known.
    #[must_use]
    pub fn between(before: &Status, after: &Status, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let is_same = before.pid == after.pid;
        let rate = |of: fn(&Status) -> u64| {
            let before = if is_same { of(before) } else { 0 };
            increase(before, of(after)) as f64 / seconds
        };
        let page = PAGE_BYTES as f64;
        let (bytes_in, bytes_out) = (
            rate(|status| status.requests.read_bytes),
            rate(|status| status.requests.written_bytes),
        );
        let tiers = after.tiers.iter().map(|tier| {
            let earlier = before.tiers.iter().find(|earlier| earlier.name == tier.name);
            TierRates::between(earlier.filter(|_| is_same), tier, seconds)
        });
        Self {
            seconds,
            pages_in: bytes_in / page,
            bytes_in,
            pages_out: bytes_out / page,
            bytes_out,
            waits: rate(|status| status.requests.parked),
            moved_bytes: rate(|status| status.moves.bytes),
            evacuated: rate(|status| status.moves.evacuated),
            promoted: rate(|status| status.moves.promoted),
            tiers: tiers.collect(),
        }
    }
}

impl TierRates {
    fn between(before: Option<&Tier>, after: &Tier, seconds: f64) -> Self {
        let rate =
            |of: fn(&Tier) -> u64| increase(before.map_or(0, of), of(after)) as f64 / seconds;
        let latency = |of: fn(&Tier) -> &Times| {
            let earlier = before.map_or(&[][..], |before| &of(before).buckets);
            let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
            let counted = of(after).buckets.iter().zip(earlier);
            let buckets: Vec<u64> =
                counted.map(|(after, before)| increase(before, *after)).collect();
            Latency::of(&buckets)
        };
        Self {
            name: after.name.clone(),
            reads: rate(|tier| tier.activity.reads),
            writes: rate(|tier| tier.activity.writes),
            read_bytes: rate(|tier| tier.activity.read_bytes),
            written_bytes: rate(|tier| tier.activity.written_bytes),
            read_latency: latency(|tier| &tier.activity.read_times),
            write_latency: latency(|tier| &tier.activity.write_times),
        }
    }
}

/// How much a counter rose; one that fell began anew.
fn increase(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that has read so many pages, each in the time of that bucket.
    fn store(pid: u32, reads: &[u64]) -> Status {
        let reply = include_str!("../../tests/trees/status/reply.json");
        let mut status: Status = serde_json::from_str(reply).unwrap();
        let count = reads.iter().sum();
        status.pid = pid;
        status.requests.read_bytes = count * 4096;
        status.requests.parked = count;
        let activity = &mut status.tiers[0].activity;
        (activity.reads, activity.read_times) = (count, Times::of(reads, 0));
        status
    }

    fn between(before: &Status, after: &Status) -> Rates {
        Rates::between(before, after, Duration::from_secs(2))
    }

    #[test]
    fn rates_are_differences_by_time() {
        let rates = between(&store(1, &[0, 4]), &store(1, &[0, 4, 0, 6]));
        assert_eq!((rates.pages_in, rates.bytes_in, rates.waits), (3.0, 12_288.0, 3.0));
        assert_eq!((rates.pages_out, rates.moved_bytes, rates.seconds), (0.0, 0.0, 2.0));
        let tier = &rates.tiers[0];
        assert_eq!((tier.name.as_str(), tier.reads, tier.writes), ("cuda:0", 3.0, 0.0));
        // Of the interval alone: what was there before took less.
        assert_eq!((tier.read_latency.p50_us, tier.read_latency.p99_us), (8, 8));
        assert_eq!(tier.write_latency, Latency::default());
    }

    #[test]
    fn a_store_that_was_started_anew_has_no_negative_rates() {
        // Another process, which has done more or less than the one before.
        for before in [store(1, &[0, 100]), store(1, &[1])] {
            let rates = between(&before, &store(2, &[0, 2, 8]));
            assert_eq!((rates.pages_in, rates.waits), (5.0, 5.0));
            assert_eq!((rates.tiers[0].reads, rates.tiers[0].read_latency.p50_us), (5.0, 4));
        }
        // The same number again.
        let rates = between(&store(1, &[0, 100]), &store(1, &[0, 2, 8]));
        assert_eq!((rates.pages_in, rates.tiers[0].reads), (5.0, 5.0));
        assert_eq!(rates.tiers[0].read_latency.p50_us, 4);
    }

    #[test]
    fn a_tier_that_was_not_there_counts_from_zero_and_one_that_left_is_not_shown() {
        let (mut before, after) = (store(1, &[8]), store(1, &[8]));
        before.tiers[0].name = "vulkan:0".to_owned();
        let rates = between(&before, &after);
        let names: Vec<&str> = rates.tiers.iter().map(|tier| tier.name.as_str()).collect();
        assert_eq!((names, rates.tiers[0].reads), (vec!["cuda:0", "spill"], 4.0));
    }
}
