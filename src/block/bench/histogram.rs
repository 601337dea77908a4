// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies in buckets of fixed relative width: 128 to each doubling, so any
//! percentile is within 0.8 % of the true one. Recording touches one counter.

use std::time::Duration;

const SUB_BITS: u32 = 7;
const SUB: usize = 1 << SUB_BITS;
/// Up to 2^40 ns, eighteen minutes; what is longer counts into the last bucket.
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) * SUB;

/// Counts of latencies by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, max: Duration::ZERO }
    }
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.counts[bucket(latency.as_nanos() as u64)] += 1;
        self.total += 1;
        self.max = self.max.max(latency);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
        self.max = Duration::ZERO;
    }

    /// How many were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest, exact.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The latency that `per_mille` of a thousand do not exceed; zero if
    /// nothing was counted.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> Duration {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (number, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(middle(number)).min(self.max);
            }
        }
        self.max
    }
}

/// Values below 128 have a bucket each; above, the top seven bits choose.
fn bucket(nanos: u64) -> usize {
    let exponent = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let within = (nanos >> exponent) as usize;
    // `within` is in SUB..2*SUB once the exponent is above zero.
    (exponent as usize * SUB + within).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle(number: usize) -> u64 {
    let exponent = (number / SUB).saturating_sub(1) as u32;
    let low = ((number - exponent as usize * SUB) as u64) << exponent;
    low + ((1 << exponent) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_within_their_promise(
            mut nanos in proptest::collection::vec(0_u64..1 << 39, 1..200),
            per_mille in 1_u64..=1000,
        ) {
            let mut histogram = Histogram::default();
            for value in &nanos {
                histogram.record(Duration::from_nanos(*value));
            }
            nanos.sort_unstable();
            let rank = (nanos.len() as u64 * per_mille).div_ceil(1000) as usize;
            let exact = nanos[rank - 1] as f64;
            let told = histogram.percentile(per_mille).as_nanos() as f64;
            prop_assert!((told - exact).abs() <= exact * 0.008 + 1.0, "{told} for {exact}");
            prop_assert_eq!(histogram.max(), Duration::from_nanos(nanos[nanos.len() - 1]));
        }

        #[test]
        fn buckets_never_go_back(a: u64, b: u64) {
            prop_assert_eq!(bucket(a.min(b)).cmp(&bucket(a.max(b))).is_gt(), false);
            prop_assert!(bucket(a) < BUCKETS);
        }
    }

    #[test]
    fn an_empty_histogram_says_zero() {
        let histogram = Histogram::default();
        assert_eq!(histogram.percentile(500), Duration::ZERO);
        assert_eq!(histogram.max(), Duration::ZERO);
    }
}
