// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the keeper looks at: free memory, slabs, extents in the spill. The
//! expensive looks are taken once per [`super::LOOK`] and remembered.

use std::time::Duration;

use super::super::keeper::{Health, Survey, TierFacts, sparsest};
use super::super::store::TierSlots;
use super::super::units::{ExtentIndex, SLOTS_PER_SLAB, SlabIndex, SlotIndex};
use super::{DECAY, Housekeeping, LOOK};

/// Extents found by one search of the spill.
const FOUND: usize = 64;

/// Extents in the spill that were read, the most used last.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    list: Vec<ExtentIndex>,
    /// The last search found all that the list takes: there may be more.
    more: bool,
}

impl Candidates {
    pub(super) fn drop_hottest(&mut self) {
        self.list.pop();
    }
}

impl Housekeeping {
    /// Asks what costs something, if it is time.
    pub(super) fn look(&mut self, now: Duration) {
        if self.candidates.list.is_empty() && self.candidates.more {
            self.search_spill();
        }
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        for tier in 0..self.fast.len() {
            let slots = &self.store.tiers()[self.fast[tier]];
            let watch = &mut self.watch[tier];
            // A driver that failed may not come back from a call.
            if !slots.is_faulty() {
                watch.available_bytes = slots.tier().free_bytes().ok().flatten();
            }
            watch.resisting.retain(|(_, until)| *until > now);
            self.count_over_target(tier, now);
        }
        self.search_spill();
        if now >= self.decay_at {
            self.decay_at = now + DECAY;
            self.store.heat.decay();
        }
    }

    fn search_spill(&mut self) {
        let Some(spill) = self.spill else { return };
        let (store, list) = (&self.store, &mut self.candidates.list);
        list.clear();
        list.extend((0..store.extents()).map(ExtentIndex).filter(|extent| {
            store.heat.reads(*extent) > 0
                && store.place(*extent).is_some_and(|place| usize::from(place.tier) == spill)
        }));
        self.candidates.more = list.len() > FOUND;
        list.sort_unstable_by_key(|extent| (store.heat.uses(*extent), extent.0));
        let excess = list.len().saturating_sub(FOUND);
        list.drain(..excess);
    }

    pub(super) fn facts(&self, tier: usize, now: Duration) -> TierFacts {
        let slots = &self.store.tiers()[self.fast[tier]];
        let watch = &self.watch[tier];
        TierFacts {
            count: slots.count(),
            target_slabs: watch.target_slabs,
            available_bytes: watch.available_bytes,
            reserve_bytes: self.reserve.0,
            // A mirror's extents leave without being read.
            health: match slots.is_faulty() {
                false => Health::Well,
                true if slots.is_lost() && !self.store.is_mirrored() => Health::Lost,
                true => Health::Faulty,
            },
            is_open: slots.tier().is_open() && !watch.closed,
            is_waiting: watch.waiting_until > now,
        }
    }

    pub(super) fn survey(&self, now: Duration) -> Looking<'_> {
        Looking { keeping: self, now }
    }

    /// True while orders are not carried out or pages are in danger.
    pub(super) fn is_busy(&self, now: Duration) -> bool {
        (0..self.fast.len()).any(|tier| {
            let facts = self.facts(tier, now);
            let count = &facts.count;
            let unwanted = self.spill.is_some() && count.held > facts.cap();
            let endangered = (facts.is_faulty() && count.used > 0)
                || count.quarantined > count.spent + count.condemned;
            unwanted || endangered || (self.close && facts.target_slabs == 0 && facts.is_open)
        })
    }

    /// Why nothing can be done although something should.
    pub(super) fn obstacle(&self, now: Duration) -> String {
        let busy = (0..self.fast.len()).find(|tier| {
            let facts = self.facts(*tier, now);
            facts.count.held > facts.cap() || facts.is_faulty() || facts.count.quarantined > 0
        });
        let Some(tier) = busy else { return "a device does not close".to_owned() };
        let count = self.facts(tier, now).count;
        if count.condemned > 0 && count.used == 0 {
            return format!(
                "tier {}: {} slabs could not be given back to the device",
                self.name(tier),
                count.condemned
            );
        }
        let used = count.used;
        if self.facts(tier, now).health == Health::Lost {
            // Without a number, which each write changes and nobody would renew.
            return format!(
                "tier {}: its device is lost, and what is in it cannot be read",
                self.name(tier)
            );
        }
        format!("tier {}: {used} extents have no other place for now", self.name(tier))
    }

    /// Written pages in the slabs that must still leave: the lightest ones.
    pub(super) fn count_over_target(&mut self, tier: usize, now: Duration) {
        let facts = self.facts(tier, now);
        let over = facts.count.held.saturating_sub(facts.cap()) as usize;
        let slots = &self.store.tiers()[self.fast[tier]];
        let mut pages = Vec::new();
        if over > 0 {
            pages.extend(
                (0..slots.pool().max_slabs()).filter_map(|slab| {
                    slots.pool().used_in(slab).map(|_| self.weight(slots, slab).0)
                }),
            );
            pages.sort_unstable();
        }
        self.watch[tier].pages_over_target = pages.iter().take(over).sum();
    }

    /// A slab's written pages, and how much they are used.
    fn weight(&self, slots: &TierSlots, slab: u32) -> (u64, u64) {
        let owners = (0..SLOTS_PER_SLAB as u32)
            .filter_map(|within| slots.owner(SlotIndex::new(SlabIndex(slab), within)));
        owners.fold((0, 0), |(pages, uses), extent| {
            let written = self.store.index.written_pages(extent);
            (pages + u64::from(written), uses + u64::from(self.store.heat.uses(extent)))
        })
    }
}

/// The [`Survey`] of one moment.
pub(super) struct Looking<'a> {
    keeping: &'a Housekeeping,
    now: Duration,
}

impl Looking<'_> {
    fn slots(&self, tier: usize) -> &TierSlots {
        &self.keeping.store.tiers()[self.keeping.fast[tier]]
    }

    /// On its way already, or tried a moment ago.
    fn is_left_alone(&self, tier: usize, slab: u32) -> bool {
        let resisting = &self.keeping.watch[tier].resisting;
        self.keeping.emptying.iter().any(|e| e.tier == tier && e.slab == slab)
            || resisting.iter().any(|(n, until)| *n == slab && *until > self.now)
    }

    fn in_use(&self, tier: usize) -> impl Iterator<Item = u32> {
        let pool = self.slots(tier).pool();
        (0..pool.max_slabs()).filter(move |slab| {
            pool.used_in(*slab).is_some_and(|used| used > 0) && !self.is_left_alone(tier, *slab)
        })
    }
}

impl Survey for Looking<'_> {
    fn sparsest(&self, tier: usize) -> Option<(u32, u32)> {
        sparsest(self.slots(tier).pool(), |slab| self.is_left_alone(tier, slab))
    }

    fn lightest(&self, tier: usize) -> Option<u32> {
        self.in_use(tier).min_by_key(|slab| self.keeping.weight(self.slots(tier), *slab))
    }

    fn quarantined(&self, tier: usize) -> Option<u32> {
        self.in_use(tier).find(|slab| self.slots(tier).pool().is_quarantined(*slab))
    }

    fn hottest(&self) -> Option<ExtentIndex> {
        self.keeping.candidates.list.last().copied()
    }
}
