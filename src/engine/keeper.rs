// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides, for one fast tier, when slabs are taken, given back or emptied.
//! Facts in, one step out; a thread of the runtime executes it.
//!
//! Slabs are taken ahead of need so that no I/O thread ever asks a driver for
//! memory. Without a spill every slab is held from before the device is armed
//! until it is gone: capacity never lies.

use super::slots::{PoolCount, SlotPool};
use super::units::{SLAB_BYTES, SLOTS_PER_SLAB};

/// Free slots below which another slab is taken.
pub const LOW_SLOTS: u32 = SLOTS_PER_SLAB as u32;
/// Free slots that stay after a slab is given back: the gap to [`LOW_SLOTS`]
/// keeps one extent from taking and releasing a slab in turns.
pub const HIGH_SLOTS: u32 = 2 * SLOTS_PER_SLAB as u32;

/// What the keeper knows of a tier at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Slabs and slots.
    pub count: PoolCount,
    /// Slabs the tier may hold.
    pub target_slabs: u32,
    /// A spill backs the whole device.
    pub has_spill: bool,
    /// Memory of the tier that others could use now, in bytes; `None`: not known.
    pub available_bytes: Option<u64>,
    /// Bytes that must stay available to others.
    pub reserve_bytes: u64,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Rest,
    /// Take one slab.
    Take,
    /// Give one empty slab back.
    Release,
    /// Move the extents of this slab into other slabs of the tier.
    Empty(u32),
}

/// The next step for a tier. `sparsest` is asked only when fragmentation is worth it.
pub fn next(facts: &Facts, sparsest: impl FnOnce() -> Option<(u32, u32)>) -> Step {
    let count = &facts.count;
    if !facts.has_spill {
        return Step::Rest;
    }
    let over_target = count.held > facts.target_slabs;
    if count.empty > 0 && (over_target || count.free >= HIGH_SLOTS + SLOTS_PER_SLAB as u32) {
        return Step::Release;
    }
    let fits = facts
        .available_bytes
        .is_none_or(|bytes| bytes >= facts.reserve_bytes.saturating_add(SLAB_BYTES as u64));
    if count.free < LOW_SLOTS && count.held < facts.target_slabs && fits {
        return Step::Take;
    }
    if count.empty == 0 && count.free >= HIGH_SLOTS + SLOTS_PER_SLAB as u32 {
        // Everything used in the sparsest slab fits into the others with room to spare.
        if let Some((slab, used)) = sparsest()
            && count.free >= HIGH_SLOTS + SLOTS_PER_SLAB as u32 + used
        {
            return Step::Empty(slab);
        }
    }
    Step::Rest
}

/// The held slab with the fewest used slots, not counting empty and
/// quarantined ones: its number and its used slots.
#[must_use]
pub fn sparsest(pool: &SlotPool) -> Option<(u32, u32)> {
    (0..pool.max_slabs())
        .filter(|&slab| !pool.is_quarantined(slab))
        .filter_map(|slab| Some((slab, pool.used_in(slab).filter(|&used| used > 0)?)))
        .min_by_key(|&(_, used)| used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(held: u32, used: u32, empty: u32) -> Facts {
        Facts {
            count: PoolCount { held, used, empty, free: held * 32 - used, quarantined: 0 },
            target_slabs: 10,
            has_spill: true,
            available_bytes: None,
            reserve_bytes: 0,
        }
    }

    #[test]
    fn slabs_are_taken_ahead_of_need_up_to_the_target() {
        assert_eq!(next(&facts(0, 0, 0), || None), Step::Take);
        assert_eq!(next(&facts(2, 40, 0), || None), Step::Take);
        assert_eq!(next(&facts(2, 20, 0), || None), Step::Rest);
        assert_eq!(next(&facts(10, 320, 0), || None), Step::Rest);
    }

    #[test]
    fn the_reserve_is_never_touched() {
        let mut tight = facts(1, 30, 0);
        tight.reserve_bytes = 1 << 30;
        tight.available_bytes = Some((1 << 30) + SLAB_BYTES as u64 - 1);
        assert_eq!(next(&tight, || None), Step::Rest);
        tight.available_bytes = Some((1 << 30) + SLAB_BYTES as u64);
        assert_eq!(next(&tight, || None), Step::Take);
    }

    #[test]
    fn without_a_spill_nothing_is_given_back() {
        let mut alone = facts(10, 0, 10);
        alone.has_spill = false;
        assert_eq!(next(&alone, || None), Step::Rest);
    }

    #[test]
    fn a_sparse_slab_is_emptied_only_when_the_others_have_room() {
        assert_eq!(next(&facts(6, 90, 0), || Some((5, 4))), Step::Empty(5));
        assert_eq!(next(&facts(6, 90, 0), || Some((5, 30))), Step::Rest);
    }

    proptest! {
        /// From any state, with no requests coming in, the keeper comes to rest:
        /// it never takes and releases in turns.
        #[test]
        fn the_keeper_comes_to_rest(held in 0u32..12, used_part in 0u32..=32, target in 0u32..12) {
            let mut used: Vec<u32> = vec![used_part; held as usize];
            for step in 0..200 {
                let count = PoolCount {
                    held: used.len() as u32,
                    used: used.iter().sum(),
                    empty: used.iter().filter(|u| **u == 0).count() as u32,
                    free: used.iter().map(|u| 32 - u).sum(),
                    quarantined: 0,
                };
                let now = Facts { count, target_slabs: target, has_spill: true, available_bytes: None, reserve_bytes: 0 };
                let find = || used.iter().enumerate().filter(|(_, u)| **u > 0)
                    .min_by_key(|(_, u)| **u).map(|(n, u)| (n as u32, *u));
                match next(&now, find) {
                    Step::Rest => return Ok(()),
                    Step::Take => used.push(0),
                    Step::Release => { let n = used.iter().position(|u| *u == 0).unwrap(); used.remove(n); }
                    Step::Empty(slab) => {
                        let mut left = std::mem::take(&mut used[slab as usize]);
                        for (n, u) in used.iter_mut().enumerate() {
                            if n != slab as usize {
                                let fit = left.min(32 - *u);
                                *u += fit;
                                left -= fit;
                            }
                        }
                        prop_assert_eq!(left, 0, "emptied a slab that did not fit");
                    }
                }
                prop_assert!(step < 199, "still busy");
            }
        }
    }
}
