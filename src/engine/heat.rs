// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much each extent is used: one word an extent, reads and writes apart.
//!
//! # Order
//! None. The words are relaxed and an increment may be lost between two
//! threads: they decide what is moved first, never what is right to move. The
//! keeper halves them now and then, so that a use counts for less the older it is.

use std::sync::atomic::{AtomicU32, Ordering};

use super::units::ExtentIndex;

/// Where one half of a word is full.
const FULL: u32 = 0xffff;

/// The counters; reads in the low half of each word, writes in the high half.
#[derive(Debug)]
pub struct Heat(Box<[AtomicU32]>);

impl Heat {
    /// All cold.
    #[must_use]
    pub fn new(extents: u32) -> Self {
        Self((0..extents).map(|_| AtomicU32::new(0)).collect())
    }

    fn word(&self, extent: ExtentIndex) -> &AtomicU32 {
        &self.0[extent.0 as usize]
    }

    /// One more request that reads the extent.
    pub fn read(&self, extent: ExtentIndex) {
        let word = self.word(extent).load(Ordering::Relaxed);
        if word & FULL != FULL {
            self.word(extent).store(word + 1, Ordering::Relaxed);
        }
    }

    /// One more request that writes the extent.
    pub fn write(&self, extent: ExtentIndex) {
        let word = self.word(extent).load(Ordering::Relaxed);
        if word >> 16 != FULL {
            self.word(extent).store(word + (1 << 16), Ordering::Relaxed);
        }
    }

    /// Reads, the older ones counting for less.
    #[must_use]
    pub fn reads(&self, extent: ExtentIndex) -> u32 {
        self.word(extent).load(Ordering::Relaxed) & FULL
    }

    /// Reads and writes, the older ones counting for less.
    #[must_use]
    pub fn uses(&self, extent: ExtentIndex) -> u32 {
        let word = self.word(extent).load(Ordering::Relaxed);
        (word & FULL) + (word >> 16)
    }

    /// The extent went to a slower place: only reads from now on bring it back.
    pub fn forget_reads(&self, extent: ExtentIndex) {
        self.word(extent).fetch_and(!FULL, Ordering::Relaxed);
    }

    /// All uses so far count for half.
    pub fn decay(&self) {
        for word in &self.0 {
            let now = word.load(Ordering::Relaxed);
            if now != 0 {
                word.store(now >> 1 & 0x7fff_7fff, Ordering::Relaxed);
            }
        }
    }

    /// Bytes of memory the counters take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.0.len() as u64 * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_counted_apart_saturate_and_decay() {
        let heat = Heat::new(2);
        let extent = ExtentIndex(1);
        for _ in 0..70_000 {
            heat.read(extent);
            heat.write(extent);
        }
        assert_eq!((heat.reads(extent), heat.uses(extent)), (0xffff, 2 * 0xffff));
        heat.decay();
        assert_eq!((heat.reads(extent), heat.uses(extent)), (0x7fff, 2 * 0x7fff));
        heat.forget_reads(extent);
        assert_eq!((heat.reads(extent), heat.uses(extent)), (0, 0x7fff));
        assert_eq!(heat.uses(ExtentIndex(0)), 0);
        for _ in 0..15 {
            heat.decay();
        }
        assert_eq!(heat.uses(extent), 0, "an extent that nobody uses grows cold");
    }
}
