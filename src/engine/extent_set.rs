// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set of extents, one bit each, that every thread may change.
//!
//! # Order
//! None: membership tells a request how long to wait, never what it may touch.

use std::sync::atomic::{AtomicU64, Ordering};

use super::units::ExtentIndex;

/// See the module.
#[derive(Debug)]
pub(super) struct ExtentSet(Box<[AtomicU64]>);

impl ExtentSet {
    /// The empty set over so many extents.
    pub(super) fn new(extents: u32) -> Self {
        Self((0..extents.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn of(&self, extent: ExtentIndex) -> (&AtomicU64, u64) {
        (&self.0[extent.0 as usize / 64], 1 << (extent.0 % 64))
    }

    pub(super) fn insert(&self, extent: ExtentIndex) {
        let (word, bit) = self.of(extent);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, extent: ExtentIndex) {
        let (word, bit) = self.of(extent);
        // Nearly always there is nothing to remove.
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    pub(super) fn contains(&self, extent: ExtentIndex) -> bool {
        let (word, bit) = self.of(extent);
        word.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_come_and_go_one_by_one() {
        let set = ExtentSet::new(130);
        for extent in [0, 63, 64, 129] {
            set.insert(ExtentIndex(extent));
        }
        set.remove(ExtentIndex(63));
        set.remove(ExtentIndex(1));
        let within = (0..130).filter(|n| set.contains(ExtentIndex(*n))).collect::<Vec<_>>();
        assert_eq!(within, [0, 64, 129]);
        set.clear();
        assert!((0..130).all(|n| !set.contains(ExtentIndex(n))));
    }
}
