// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slot pool: no slot is given twice, a retired slab has no used slot, and
//! whoever gets a slot or a slab comes after everyone who had it before.
//!
//! That these models can fail was tried on `slots.rs`; each of these was caught:
//! alloc or retire acquires nothing; free or open releases nothing; retire looks
//! at no slot, takes quarantined slabs, or reads and writes in two steps; alloc
//! reads and writes in two steps, or gives slots of a closed slab; reopen ignores
//! the quarantine; quarantine leaves the slab open, or marks an absent one.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, yield_now};
use sluice_loom::explore;
use sluice_loom::slots::SlotPool;

/// Slots that are in play at once, so that memory for two is enough.
const SLOTS: u32 = 2;

/// One slab and the memory of the slots in play. Only the holder of a slot
/// touches its memory, and whoever retires the slab touches all.
struct Tier {
    pool: SlotPool,
    memory: [UnsafeCell<()>; SLOTS as usize],
}

impl Tier {
    /// All slots free.
    fn new() -> Arc<Self> {
        let pool = SlotPool::new(1);
        assert!(pool.open(0));
        Arc::new(Self { pool, memory: [UnsafeCell::new(()), UnsafeCell::new(())] })
    }

    /// All but two slots in use for good.
    fn nearly_full() -> Arc<Self> {
        let tier = Self::new();
        for _ in 0..32 - SLOTS {
            tier.pool.alloc().unwrap();
        }
        tier
    }

    fn take(&self) -> Option<u32> {
        let (slab, slot) = self.pool.alloc()?;
        assert_eq!(slab, 0);
        self.touch(slot);
        Some(slot)
    }

    fn touch(&self, slot: u32) {
        self.memory[(slot % SLOTS) as usize].with_mut(|_| ());
    }

    fn give(&self, slot: u32) {
        self.touch(slot);
        self.pool.free(0, slot);
    }

    fn retire(&self) -> bool {
        let retired = self.pool.retire(0);
        if retired {
            (0..SLOTS).for_each(|slot| self.touch(slot));
        }
        retired
    }
}

#[test]
fn no_slot_has_two_holders() {
    explore(|| {
        let tier = Tier::nearly_full();
        let threads = [(); 2].map(|()| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || {
                if let Some(slot) = tier.take() {
                    tier.give(slot);
                }
            })
        });
        let mine = tier.take();
        for thread in threads {
            thread.join().unwrap();
        }
        let held = u32::from(mine.is_some());
        assert_eq!(tier.pool.used_in(0), Some(32 - SLOTS + held));
    });
}

#[test]
fn a_slab_is_retired_only_when_its_last_slot_is_back() {
    explore(|| {
        let tier = Tier::new();
        let slots = [(); 2].map(|()| tier.take().unwrap());
        tier.pool.close(0);
        let threads = slots.map(|slot| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || tier.give(slot))
        });
        while !tier.retire() {
            yield_now();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(tier.pool.used_in(0), None);
    });
}

#[test]
fn an_open_slab_is_retired_and_opened_again_between_allocations() {
    explore(|| {
        let tier = Tier::new();
        let threads = [(); 2].map(|()| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || {
                if let Some(slot) = tier.take() {
                    tier.give(slot);
                }
            })
        });
        if tier.retire() {
            (0..SLOTS).for_each(|slot| tier.touch(slot));
            assert!(tier.pool.open(0), "a retired slab can be taken again");
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(tier.pool.used_in(0), Some(0));
        assert!(tier.retire());
    });
}

#[test]
fn a_quarantined_slab_gives_nothing_and_stays() {
    explore(|| {
        let tier = Tier::new();
        let user = Arc::clone(&tier);
        let user = thread::spawn(move || {
            if let Some(slot) = user.take() {
                user.give(slot);
            }
        });
        let keeper = Arc::clone(&tier);
        let keeper = thread::spawn(move || {
            keeper.pool.close(0);
            keeper.pool.reopen(0)
        });
        assert!(tier.pool.quarantine(0));
        user.join().unwrap();
        keeper.join().unwrap();
        assert_eq!(tier.take(), None);
        assert!(!tier.retire());
        let count = tier.pool.count();
        assert_eq!((count.held, count.quarantined, count.used), (1, 1, 0));
    });
}

#[test]
fn an_empty_slab_under_quarantine_goes_back_only_when_its_last_slot_is_back() {
    explore(|| {
        let tier = Tier::new();
        let slot = tier.take().unwrap();
        assert!(tier.pool.quarantine(0));
        let user = Arc::clone(&tier);
        let user = thread::spawn(move || user.give(slot));
        let last = Arc::clone(&tier);
        let last = thread::spawn(move || {
            if let Some((_, slot)) = last.pool.alloc_quarantined() {
                last.give(slot);
            }
        });
        while !tier.pool.retire_quarantined(0) {
            yield_now();
        }
        (0..SLOTS).for_each(|slot| tier.touch(slot));
        user.join().unwrap();
        last.join().unwrap();
        assert_eq!(tier.pool.used_in(0), None);
    });
}

#[test]
fn quarantine_comes_before_or_after_retirement_never_between() {
    explore(|| {
        let tier = Tier::new();
        let keeper = Arc::clone(&tier);
        let keeper = thread::spawn(move || keeper.retire());
        let quarantined = tier.pool.quarantine(0);
        let retired = keeper.join().unwrap();
        assert_ne!(quarantined, retired);
        assert_eq!(tier.pool.open(0), retired, "a slab that is gone can be taken again");
    });
}
