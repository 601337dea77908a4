// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides, over all fast tiers in declared order, when slabs are taken, given
//! back or emptied, and when an extent comes back from the spill. Facts in, one
//! step out; [`super::housekeeping`] executes it.
//!
//! Slabs are taken ahead of need so that no I/O thread ever asks a driver for
//! memory. Without a spill every slab is held from before the device is armed
//! until it is gone: capacity never lies.
//!
//! # It comes to rest
//! With no requests coming in and orders that stay, every chain of steps ends:
//! a slab is given back at [`SPARE_SLOTS`] free slots and taken below
//! [`LOW_SLOTS`]; it is taken only while a slab more than the reserve stays
//! available, and given back only when the reserve is touched; an extent is
//! promoted only into room that no rule takes away again ([`PROMOTE_SLOTS`]).

use super::slots::{PoolCount, SlotPool};
use super::units::{ExtentIndex, SLAB_BYTES, SLOTS_PER_SLAB};

/// Free slots below which another slab is taken.
pub const LOW_SLOTS: u32 = SLOTS_PER_SLAB as u32;
/// Free slots that stay after a slab is given back: the gap to [`LOW_SLOTS`]
/// keeps one extent from taking and releasing a slab in turns.
pub const HIGH_SLOTS: u32 = 2 * SLOTS_PER_SLAB as u32;
/// Free slots at which a slab is given back.
pub const SPARE_SLOTS: u32 = HIGH_SLOTS + SLOTS_PER_SLAB as u32;
/// Slots that must be free, or could be, before an extent is promoted: new
/// pages find room in the fast tier before old ones come back.
pub const PROMOTE_SLOTS: u32 = HIGH_SLOTS;
/// Bytes that must stay available above the reserve after a slab is taken.
pub const MARGIN_BYTES: u64 = SLAB_BYTES as u64;

/// How a tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// As far as anybody knows.
    Well,
    /// It failed: no new pages, and what it has leaves.
    Faulty,
    /// It failed for good: what it has cannot leave.
    Lost,
}

/// What the keeper knows of one fast tier at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFacts {
    /// Slabs and slots.
    pub count: PoolCount,
    /// Slabs the tier may hold.
    pub target_slabs: u32,
    /// Memory of the tier that others could use now, in bytes; `None`: not known.
    pub available_bytes: Option<u64>,
    /// Bytes that must stay available to others.
    pub reserve_bytes: u64,
    /// How it is.
    pub health: Health,
    /// Its device is open.
    pub is_open: bool,
    /// It was refused memory, or its device did not close, a moment ago.
    pub is_waiting: bool,
}

impl TierFacts {
    /// True if it failed, for good or not.
    #[must_use]
    pub fn is_faulty(&self) -> bool {
        self.health != Health::Well
    }

    /// Slabs that may stay held: the target, less what others are short of.
    #[must_use]
    pub fn cap(&self) -> u32 {
        let short = self.available_bytes.map_or(0, |available| {
            self.reserve_bytes.saturating_sub(available).div_ceil(SLAB_BYTES as u64)
        });
        let short = u32::try_from(short).unwrap_or(u32::MAX);
        let kept = if short == 0 { u32::MAX } else { self.count.held.saturating_sub(short) };
        self.target_slabs.min(kept)
    }

    /// Slabs that could be taken now.
    fn growth(&self) -> u32 {
        if self.is_faulty() || self.is_waiting {
            return 0;
        }
        let left = self.cap().saturating_sub(self.count.held);
        let fit = self.available_bytes.map_or(u64::from(left), |available| {
            available.saturating_sub(self.reserve_bytes.saturating_add(MARGIN_BYTES))
                / SLAB_BYTES as u64
        });
        u64::from(left).min(fit) as u32
    }

    /// Extents could come here from elsewhere and stay: slots that are free or
    /// could be.
    #[must_use]
    pub fn headroom(&self) -> u32 {
        if self.is_faulty() || self.count.held > self.cap() {
            return 0;
        }
        self.count.free.saturating_add(self.growth().saturating_mul(SLOTS_PER_SLAB as u32))
    }

    /// True if another slab can be taken now.
    #[must_use]
    pub fn can_grow(&self) -> bool {
        self.growth() > 0
    }
}

/// What the keeper knows.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The fast tiers in declared order.
    pub tiers: &'a [TierFacts],
    /// A spill backs the whole device.
    pub has_spill: bool,
    /// Tiers whose target is 0 are to be closed.
    pub close: bool,
}

/// What costs a look over slabs or extents; asked only when it matters. Slabs
/// that resisted a moment ago are left out. Tiers by position in the facts.
pub trait Survey {
    /// The slab in service with the fewest used slots, at least one: its number
    /// and its used slots.
    fn sparsest(&self, tier: usize) -> Option<(u32, u32)>;
    /// The slab with the fewest written pages, the coldest among equals.
    fn lightest(&self, tier: usize) -> Option<u32>;
    /// A slab under quarantine with used slots.
    fn quarantined(&self, tier: usize) -> Option<u32>;
    /// The extent in the spill that was read most since it went there.
    fn hottest(&self) -> Option<ExtentIndex>;
}

/// One step; tiers by position in the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Rest,
    /// Take one slab.
    Take(usize),
    /// Give one empty slab back.
    Release(usize),
    /// Move the extents of this slab into other slabs of the tier.
    Empty(usize, u32),
    /// Move the extents of this slab to another fast tier, else to the spill.
    Evacuate(usize, u32),
    /// Bring this extent from the spill into the tier.
    Promote(usize, ExtentIndex),
    /// Close the tier's device.
    Close(usize),
}

/// The next step: give back, save what is in danger, take, tidy, promote.
pub fn next(facts: &Facts<'_>, survey: &impl Survey) -> Step {
    // The last tier yields first.
    let tiers = || facts.tiers.iter().enumerate();
    for (n, tier) in tiers().rev() {
        if facts.has_spill
            && let Some(step) = give_back(n, tier, survey)
        {
            return step;
        }
    }
    for (n, tier) in tiers() {
        if let Some(step) = save(n, tier, survey) {
            return step;
        }
        let done = tier.target_slabs == 0 && tier.count.held == 0 && tier.is_open;
        if facts.close && done && !tier.is_waiting {
            return Step::Close(n);
        }
    }
    if !facts.has_spill {
        return Step::Rest;
    }
    for (n, tier) in tiers() {
        if !tier.is_faulty() && tier.count.held <= tier.cap() && tier.count.free >= LOW_SLOTS {
            break;
        }
        if tier.can_grow() && tier.count.free < LOW_SLOTS {
            return Step::Take(n);
        }
    }
    for (n, tier) in tiers() {
        if let Some(step) = tidy(n, tier, survey) {
            return step;
        }
    }
    let roomy = |tier: &TierFacts| tier.count.free > 0 && tier.headroom() >= PROMOTE_SLOTS;
    if let Some((n, _)) = tiers().find(|(_, tier)| roomy(tier))
        && let Some(extent) = survey.hottest()
    {
        return Step::Promote(n, extent);
    }
    Step::Rest
}

/// Above its cap: empty slabs go, then extents are packed together, then the
/// lightest slab is evacuated.
fn give_back(n: usize, tier: &TierFacts, survey: &impl Survey) -> Option<Step> {
    let count = &tier.count;
    if count.held <= tier.cap() {
        return None;
    }
    if count.empty + count.spent > 0 && !tier.is_waiting {
        return Some(Step::Release(n));
    }
    if !tier.is_faulty()
        && let Some((slab, used)) = survey.sparsest(n)
        && used <= count.free.saturating_sub(SLOTS_PER_SLAB as u32 - used)
    {
        // The free slots of the other slabs hold all of it.
        return Some(Step::Empty(n, slab));
    }
    let may_leave = survey.lightest(n).filter(|_| tier.health != Health::Lost);
    may_leave.map(|slab| Step::Evacuate(n, slab))
}

/// Pages leave a tier that failed and slabs under quarantine.
fn save(n: usize, tier: &TierFacts, survey: &impl Survey) -> Option<Step> {
    if tier.health == Health::Lost {
        return None;
    }
    if tier.is_faulty() && tier.count.used > 0 {
        return survey.lightest(n).map(|slab| Step::Evacuate(n, slab));
    }
    if tier.count.quarantined > tier.count.spent + tier.count.condemned {
        return survey.quarantined(n).map(|slab| Step::Evacuate(n, slab));
    }
    None
}

/// Within its cap: memory that is not needed goes back.
fn tidy(n: usize, tier: &TierFacts, survey: &impl Survey) -> Option<Step> {
    let count = &tier.count;
    if tier.is_faulty() || count.free < SPARE_SLOTS {
        return None;
    }
    if count.empty > 0 {
        return Some(Step::Release(n)).filter(|_| !tier.is_waiting);
    }
    // Everything used in the sparsest slab fits into the others with room to spare.
    let (slab, used) = survey.sparsest(n)?;
    (count.free >= SPARE_SLOTS + used).then_some(Step::Empty(n, slab))
}

/// The held slab with the fewest used slots, not counting empty and
/// quarantined ones, nor those that `skip` names.
#[must_use]
pub fn sparsest(pool: &SlotPool, skip: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
    (0..pool.max_slabs())
        .filter(|&slab| !pool.is_quarantined(slab) && !skip(slab))
        .filter_map(|slab| Some((slab, pool.used_in(slab).filter(|&used| used > 0)?)))
        .min_by_key(|&(_, used)| used)
}

#[cfg(test)]
mod tests;
