// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which slots of a tier are free: one word per slab, no lock.
//!
//! ```text
//!   absent ── open ──► OPEN, 32 free ── alloc/free ──► OPEN, n free
//!     ▲                     │                             │ close
//!     └────── retire ◄──────┴──── all 32 free ◄───── closed, draining
//! ```
//! A slab gives slots only while OPEN. `retire` succeeds only when all 32 are
//! free, in the same atomic step that takes the slab away from allocators, so
//! a slab's memory is never released under a slot in use. A quarantined slab
//! gives no slots; once it is empty, `retire_quarantined` lets its memory go. A
//! condemned slab, whose release failed, is in nobody's hands and stays so. Free
//! lists are rebuilt at recovery ([`SlotPool::adopt`]), never stored.

use super::sync::{AtomicU32, AtomicU64, Ordering};

const ALL_FREE: u64 = 0xffff_ffff;
const OPEN: u64 = 1 << 32;
const HELD: u64 = 1 << 33;
const QUARANTINED: u64 = 1 << 34;
const CONDEMNED: u64 = 1 << 35;

/// The slabs of one tier and the free slots in them.
#[derive(Debug)]
pub struct SlotPool {
    slabs: Box<[AtomicU64]>,
    /// Where a search begins: slabs below are probably full. Only a hint.
    first: AtomicU32,
}

/// A snapshot of a pool for status and for the keeper. Slabs and slots, not bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCount {
    /// Slabs whose memory is held, in whatever state.
    pub held: u32,
    /// Held slabs without a used slot that could be retired.
    pub empty: u32,
    /// Held slabs under quarantine.
    pub quarantined: u32,
    /// Of them those without a used slot, whose memory could be given back.
    pub spent: u32,
    /// Of them those that could not be given back and are used for nothing.
    pub condemned: u32,
    /// Slots in use.
    pub used: u32,
    /// Slots that `alloc` could give.
    pub free: u32,
}

impl SlotPool {
    /// A pool for slabs `0..max_slabs`, none held.
    #[must_use]
    pub fn new(max_slabs: u32) -> Self {
        Self {
            slabs: (0..max_slabs).map(|_| AtomicU64::new(0)).collect(),
            first: AtomicU32::new(0),
        }
    }

    /// Slabs the pool can describe.
    #[must_use]
    pub fn max_slabs(&self) -> u32 {
        self.slabs.len() as u32
    }

    /// Opens an absent slab, whose memory the tier now holds, with all slots free.
    /// False if it is held already.
    pub fn open(&self, slab: u32) -> bool {
        let opened = self.slabs[slab as usize]
            .compare_exchange(0, HELD | OPEN | ALL_FREE, Ordering::Release, Ordering::Relaxed)
            .is_ok();
        if opened {
            self.first.fetch_min(slab, Ordering::Relaxed);
        }
        opened
    }

    /// Takes a free slot, lowest slab first so that high slabs drain.
    /// Returns slab and slot within it.
    pub fn alloc(&self) -> Option<(u32, u32)> {
        let count = self.slabs.len() as u32;
        let start = self.first.load(Ordering::Relaxed).min(count);
        for slab in (start..count).chain(0..start) {
            if let Some(slot) = self.alloc_in(slab) {
                self.first.store(slab, Ordering::Relaxed);
                return Some((slab, slot));
            }
        }
        None
    }

    /// Takes a free slot of one slab.
    pub fn alloc_in(&self, slab: u32) -> Option<u32> {
        let word = &self.slabs[slab as usize];
        let mut now = word.load(Ordering::Relaxed);
        while now & OPEN != 0 && now & ALL_FREE != 0 {
            let slot = now.trailing_zeros();
            match word.compare_exchange_weak(
                now,
                now & !(1 << slot),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(slot),
                Err(other) => now = other,
            }
        }
        None
    }

    /// Gives a slot back; true if its slab is now without a used slot.
    pub fn free(&self, slab: u32, slot: u32) -> bool {
        let before = self.slabs[slab as usize].fetch_or(1 << slot, Ordering::Release);
        debug_assert_eq!(before & (1 << slot), 0, "slot {slot} of slab {slab} freed twice");
        self.first.fetch_min(slab, Ordering::Relaxed);
        (before | (1 << slot)) & ALL_FREE == ALL_FREE
    }

    /// Stops giving slots of this slab (it is to be emptied).
    pub fn close(&self, slab: u32) {
        self.slabs[slab as usize].fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Gives slots of a closed slab again, unless it is absent or quarantined.
    pub fn reopen(&self, slab: u32) -> bool {
        self.slabs[slab as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                (word & HELD != 0 && word & QUARANTINED == 0).then_some(word | OPEN)
            })
            .is_ok()
    }

    /// Gives no slot of this slab again until it was given back. True the
    /// first time; false also for a slab that is absent, which stays usable.
    pub fn quarantine(&self, slab: u32) -> bool {
        self.slabs[slab as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                (word & HELD != 0 && word & QUARANTINED == 0)
                    .then_some((word | QUARANTINED) & !OPEN)
            })
            .is_ok()
    }

    /// Takes an empty slab away from allocators for good. True: the caller now
    /// owns its memory and releases it.
    pub fn retire(&self, slab: u32) -> bool {
        self.slabs[slab as usize]
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| {
                (word & ALL_FREE == ALL_FREE && word & HELD != 0 && word & QUARANTINED == 0)
                    .then_some(0)
            })
            .is_ok()
    }

    /// As [`SlotPool::retire`], for a slab under quarantine: with its memory
    /// the quarantine ends.
    pub fn retire_quarantined(&self, slab: u32) -> bool {
        self.slabs[slab as usize]
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| {
                (word == HELD | QUARANTINED | ALL_FREE).then_some(0)
            })
            .is_ok()
    }

    /// Ends the quarantine of a slab without a used slot: it gives slots again.
    pub fn pardon(&self, slab: u32) -> bool {
        self.slabs[slab as usize]
            .compare_exchange(
                HELD | QUARANTINED | ALL_FREE,
                HELD | OPEN | ALL_FREE,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Takes a free slot of a slab under quarantine: for the page that has no
    /// other place. Its checksum tells whether the memory kept it.
    pub fn alloc_quarantined(&self) -> Option<(u32, u32)> {
        for (slab, word) in (0..).zip(&self.slabs) {
            let taken = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
                let usable = now & QUARANTINED != 0 && now & CONDEMNED == 0;
                (usable && now & ALL_FREE != 0).then(|| now & (now - 1))
            });
            if let Ok(before) = taken {
                return Some((slab, before.trailing_zeros()));
            }
        }
        None
    }

    /// Quarantines a slab that was retired but could not be released: it is
    /// never opened again.
    pub fn condemn(&self, slab: u32) {
        let held = self.slabs[slab as usize].compare_exchange(
            0,
            HELD | QUARANTINED | CONDEMNED | ALL_FREE,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        debug_assert!(held.is_ok(), "slab {slab} is condemned by who retired it");
    }

    /// Marks a slot used at recovery, opening its slab if need be.
    /// False if the slot is used already: two extents claim one place.
    pub fn adopt(&self, slab: u32, slot: u32) -> bool {
        self.open(slab);
        let before = self.slabs[slab as usize].fetch_and(!(1 << slot), Ordering::Relaxed);
        before & (1 << slot) != 0
    }

    /// Marks a slot of a held slab used: for slots that are not allocated but
    /// belong to one extent for good.
    pub fn claim(&self, slab: u32, slot: u32) {
        self.slabs[slab as usize].fetch_and(!(1 << slot), Ordering::Relaxed);
    }

    /// Used slots of one slab; `None` if it is absent.
    #[must_use]
    pub fn used_in(&self, slab: u32) -> Option<u32> {
        let word = self.slabs[slab as usize].load(Ordering::Relaxed);
        (word & HELD != 0).then(|| (!word & ALL_FREE).count_ones())
    }

    /// True if the slab is held and under quarantine.
    #[must_use]
    pub fn is_quarantined(&self, slab: u32) -> bool {
        self.slabs[slab as usize].load(Ordering::Relaxed) & QUARANTINED != 0
    }

    /// The lowest absent slab.
    #[must_use]
    pub fn first_absent(&self) -> Option<u32> {
        (0..self.max_slabs()).find(|&slab| self.used_in(slab).is_none())
    }

    /// Counts over all slabs; each slab is read once, the whole is not one instant.
    #[must_use]
    pub fn count(&self) -> PoolCount {
        let mut sum = PoolCount::default();
        for word in &self.slabs {
            let word = word.load(Ordering::Relaxed);
            if word & HELD == 0 {
                continue;
            }
            let free = (word & ALL_FREE).count_ones();
            sum.held += 1;
            sum.used += 32 - free;
            sum.free += if word & OPEN != 0 { free } else { 0 };
            sum.quarantined += u32::from(word & QUARANTINED != 0);
            sum.empty += u32::from(free == 32 && word & QUARANTINED == 0);
            sum.condemned += u32::from(word & CONDEMNED != 0);
            sum.spent += u32::from(word == HELD | QUARANTINED | ALL_FREE);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_gives_32_slots_and_retires_only_when_all_are_back() {
        let pool = SlotPool::new(2);
        assert_eq!(pool.alloc(), None);
        assert!(pool.open(1));
        assert!(!pool.open(1));
        let taken: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(taken.len(), 32);
        assert!(!pool.retire(1));
        for (n, &(slab, slot)) in taken.iter().enumerate() {
            assert_eq!(pool.free(slab, slot), n == 31);
        }
        assert!(pool.retire(1));
        assert_eq!(pool.alloc(), None);
        assert_eq!(pool.count(), PoolCount::default());
    }

    #[test]
    fn closed_and_quarantined_slabs_give_nothing() {
        let pool = SlotPool::new(1);
        pool.open(0);
        pool.close(0);
        assert_eq!(pool.alloc(), None);
        assert!(pool.reopen(0));
        assert!(pool.alloc().is_some());
        assert!(pool.quarantine(0));
        assert!(!pool.quarantine(0));
        assert_eq!(pool.alloc(), None);
        assert!(!pool.reopen(0));
        assert!(!pool.retire_quarantined(0));
        pool.free(0, 0);
        assert!(!pool.retire(0));
        assert_eq!((pool.count().quarantined, pool.count().spent), (1, 1));
    }

    #[test]
    fn an_empty_slab_under_quarantine_is_pardoned_or_given_back_and_a_condemned_one_is_not() {
        let pool = SlotPool::new(1);
        pool.open(0);
        pool.quarantine(0);
        assert_eq!(pool.alloc_quarantined(), Some((0, 0)));
        assert!(!pool.pardon(0));
        pool.free(0, 0);
        assert!(pool.pardon(0));
        assert_eq!(pool.alloc(), Some((0, 0)));
        pool.free(0, 0);
        pool.quarantine(0);
        assert!(pool.retire_quarantined(0));
        assert_eq!(pool.used_in(0), None);
        pool.condemn(0);
        assert!(!pool.pardon(0));
        assert!(!pool.retire_quarantined(0));
        assert_eq!(pool.alloc_quarantined(), None);
        assert_eq!(pool.count().spent, 0);
    }

    #[test]
    fn two_owners_of_one_slot_are_noticed_at_recovery() {
        let pool = SlotPool::new(1);
        assert!(pool.adopt(0, 7));
        assert!(pool.adopt(0, 8));
        assert!(!pool.adopt(0, 7));
        assert_eq!(pool.count().used, 2);
    }
}
