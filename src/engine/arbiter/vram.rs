// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other programs leave of the GPUs' memory, as a bound of what the store
//! may hold.

use crate::engine::units::{ByteLen, SLAB_BYTES};

/// A bound that rises by less is not worth moving pages for.
const STEP: ByteLen = ByteLen(256 << 20);

/// A fast tier of the store, and what is free beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// What the tier holds.
    pub held: ByteLen,
    /// What it could hold.
    pub full: ByteLen,
    /// What is free on its device; `None`: it is not on a device that others
    /// use, or nobody can say.
    pub free: Option<ByteLen>,
}

/// The most that the store may hold so that `reserve` stays free on each
/// device; `None`: as much as it could. `before` is the bound so far.
///
/// A total is filled in the order of the tiers, so nothing behind the first
/// tier that is short of memory may be counted.
#[must_use]
pub fn vram_bound(tiers: &[Lent], reserve: ByteLen, before: Option<ByteLen>) -> Option<ByteLen> {
    let mut sum = ByteLen(0);
    for tier in tiers {
        let room = tier.free.map_or(u64::MAX, |free| {
            let room = tier.held.0.saturating_add(free.0).saturating_sub(reserve.0);
            room / SLAB_BYTES as u64 * SLAB_BYTES as u64
        });
        sum.0 += room.min(tier.full.0);
        if room < tier.full.0 {
            let rises_little = |before: &ByteLen| before.0 < sum.0 && sum.0 - before.0 < STEP.0;
            return Some(before.filter(rises_little).unwrap_or(sum));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn lent(held: u64, full: u64, free: u64) -> Lent {
        let bytes = |mib| ByteLen(mib * MIB);
        Lent { held: bytes(held), full: bytes(full), free: Some(bytes(free)) }
    }

    fn mib(bound: Option<ByteLen>) -> Option<u64> {
        bound.map(|bytes| bytes.0 / MIB)
    }

    #[test]
    fn a_device_with_room_for_all_of_it_is_no_bound() {
        assert_eq!(vram_bound(&[lent(0, 4096, 5000)], ByteLen(512 * MIB), None), None);
        assert_eq!(vram_bound(&[lent(4096, 4096, 512)], ByteLen(512 * MIB), None), None);
        assert_eq!(vram_bound(&[], ByteLen(512 * MIB), None), None);
    }

    #[test]
    fn what_others_take_of_the_reserve_is_given_back_in_whole_slabs() {
        let at = |free| mib(vram_bound(&[lent(4096, 4096, free)], ByteLen(512 * MIB), None));
        assert_eq!(at(511), Some(4032));
        assert_eq!(at(448), Some(4032));
        assert_eq!(at(447), Some(3968));
        assert_eq!(at(0), Some(3584));
        assert_eq!(mib(vram_bound(&[lent(0, 4096, 100)], ByteLen(512 * MIB), None)), Some(0));
    }

    #[test]
    fn a_bound_falls_at_once_and_rises_in_steps() {
        let at = |free, before: u64| {
            let before = Some(ByteLen(before * MIB));
            mib(vram_bound(&[lent(2048, 8192, free)], ByteLen(0), before))
        };
        assert_eq!(at(1024, 3136), Some(3072));
        assert_eq!(at(1024, 3008), Some(3008), "64 MiB more are not worth it");
        assert_eq!(at(1024, 2816), Some(3072), "256 MiB are");
        assert_eq!(at(8192, 3008), None);
    }

    #[test]
    fn nothing_is_counted_behind_a_tier_that_is_short() {
        let tiers = [lent(1024, 2048, 64), lent(1024, 2048, 4096)];
        assert_eq!(mib(vram_bound(&tiers, ByteLen(0), None)), Some(1088));
        let tiers = [lent(2048, 2048, 0), lent(1024, 2048, 64)];
        assert_eq!(mib(vram_bound(&tiers, ByteLen(0), None)), Some(2048 + 1088));
        let unseen = Lent { free: None, ..lent(0, 512, 0) };
        assert_eq!(mib(vram_bound(&[unseen, lent(0, 512, 64)], ByteLen(0), None)), Some(576));
    }

    proptest! {
        /// With the bound kept, each device has its reserve, or holds nothing of ours.
        #[test]
        fn the_reserve_is_free_once_the_bound_is_kept(
            cards in prop::collection::vec((0..64_u64, 0..64_u64, 0..8192_u64), 1..4),
            reserve in 0..4096_u64,
        ) {
            let tiers: Vec<Lent> = cards
                .iter()
                .map(|(held, more, free)| lent(held * 64, (held + more) * 64, *free))
                .collect();
            let bound = vram_bound(&tiers, ByteLen(reserve * MIB), None);
            let mut left = bound.map_or(u64::MAX, |bytes| bytes.0);
            for tier in &tiers {
                let holds = left.min(tier.full.0);
                left -= holds;
                let all = tier.held.0 + tier.free.unwrap().0;
                prop_assert!(holds == 0 || all - holds >= reserve * MIB);
            }
        }
    }
}
