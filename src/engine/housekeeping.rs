// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's work, step by step: looks at the tiers, asks
//! [`super::keeper::next`] what to do, and does it. It takes time as an
//! argument and never waits, except in the tiers' own calls for memory.
//!
//! # Emptying a slab
//! ```text
//!   in service ── close ──► closed, extents on their way ──► empty ──► given back
//!       ▲                        │ some stayed                 │ damaged
//!       └────── RETRY later ◄────┘                             └──► kept closed
//! ```
//! A closed slab gives no slots, so it only empties. Two slabs at most are being
//! emptied, so that the copying does not pause where one ends.

mod looking;

use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::error::{Error, Result};
use super::index::Place;
use super::keeper::{Facts, LOW_SLOTS, Step, TierFacts, next};
use super::mover::{self, Moved, Mover, Reason, Refused};
use super::orders::{Progress, State, TierProgress};
use super::store::{Role, Store};
use super::units::{ByteLen, ExtentIndex, SLAB_BYTES, SLOTS_PER_SLAB, SlabIndex, SlotIndex};
use looking::Candidates;

/// How often tiers are asked for their free memory and the spill is searched
/// for extents that are read.
pub const LOOK: Duration = Duration::from_secs(2);
/// How often all uses so far lose half their weight.
pub const DECAY: Duration = Duration::from_secs(30);
/// After a slab could not be emptied, before it is tried again.
pub const RETRY: Duration = Duration::from_secs(5);
/// After a tier refused memory or failed to close, before it is asked again.
pub const REFUSED: Duration = Duration::from_secs(1);
/// The longest pause after a device that could not be opened; it begins with
/// [`REFUSED`] and doubles.
pub const OPEN_AGAIN: Duration = Duration::from_secs(64);
/// How long a session that was lost is looked at closely.
const TENDING: Duration = Duration::from_secs(1);
/// Slabs that are being emptied at once.
const EMPTYING: usize = 2;
/// Extents that are promoted at once: the spill is needed by requests too.
const PROMOTING: usize = 2;
/// Rounds over a slab whose slots were just being given out.
const ROUNDS: u32 = 3;

/// How soon to step again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Now,
    /// When a tier rings, or after a short pause: extents are on their way.
    Soon,
    /// When the store rings, or after [`LOOK`].
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The slab's memory is not needed.
    Tidy,
    /// The tier holds more than it may; the extents fit into its other slabs.
    Pack,
    /// The tier holds more than it may, or the place is not to be trusted.
    Leave,
}

/// A slab on its way to empty; tiers by position among the fast ones.
#[derive(Debug)]
struct Emptying {
    tier: usize,
    slab: u32,
    purpose: Purpose,
    next: u32,
    round: u32,
    trouble: Option<String>,
    /// New orders came: it is not known whether this is still wanted.
    cancelled: bool,
}

/// What is remembered of a fast tier.
#[derive(Debug, Default)]
struct Watch {
    target_slabs: u32,
    available_bytes: Option<u64>,
    waiting_until: Duration,
    /// Slabs that could not be emptied, and until when they are left alone.
    resisting: Vec<(u32, Duration)>,
    pages_over_target: u64,
    released_slabs: u64,
    moved_extents: u64,
    moved_bytes: u64,
    /// Its device was told to close; some have nothing to close.
    closed: bool,
    /// Times in a row that its device could not be opened, and why not.
    unopened: u32,
    trouble: Option<String>,
}

/// See the module.
pub struct Housekeeping {
    store: Arc<Store>,
    mover: Mover,
    counters: Arc<Counters>,
    /// Positions in the store of the fast tiers, and of the spill.
    fast: Vec<usize>,
    spill: Option<usize>,
    watch: Vec<Watch>,
    reserve: ByteLen,
    close: bool,
    order: u64,
    emptying: Vec<Emptying>,
    candidates: Candidates,
    stuck: Option<String>,
    look_at: Duration,
    decay_at: Duration,
    /// Sessions that ended with operations under way, and how long to look at
    /// them closely: their tiers do not ring for the keeper.
    lost_sessions: usize,
    tend_until: Duration,
}

impl Housekeeping {
    /// Keeps `store` with `mover`. Holds what is held until told.
    #[must_use]
    pub fn new(store: Arc<Store>, mover: Mover) -> Self {
        let with = |role| {
            let tiers = store.tiers().iter().enumerate();
            tiers.filter(move |(_, slots)| slots.role() == role).map(|(n, _)| n)
        };
        let fast: Vec<usize> = with(Role::Fast).collect();
        let spill = with(Role::Spill).next();
        let watch = fast
            .iter()
            .map(|n| Watch { target_slabs: store.tiers()[*n].count().held, ..Watch::default() });
        Self {
            watch: watch.collect(),
            counters: store.counters(),
            fast,
            spill,
            mover,
            reserve: ByteLen(0),
            close: false,
            order: 0,
            emptying: Vec::with_capacity(EMPTYING),
            candidates: Candidates::default(),
            stuck: None,
            look_at: Duration::ZERO,
            decay_at: DECAY,
            lost_sessions: 0,
            tend_until: Duration::ZERO,
            store,
        }
    }

    /// Orders number `order`, as [`super::orders::check_orders`] passed them:
    /// slabs for each fast tier.
    pub fn order(&mut self, order: u64, targets: &[u32], reserve: ByteLen, close: bool) {
        assert_eq!(targets.len(), self.watch.len(), "one target for each fast tier");
        for (watch, target) in self.watch.iter_mut().zip(targets) {
            let kept = Watch { available_bytes: watch.available_bytes, ..Watch::default() };
            *watch = Watch { target_slabs: *target, ..kept };
        }
        (self.order, self.reserve, self.close) = (order, reserve, close);
        self.stuck = None;
        // What is under way ends; whether its slab goes is then seen anew.
        for emptying in &mut self.emptying {
            emptying.next = SLOTS_PER_SLAB as u32;
            emptying.cancelled = true;
        }
        self.look_at = Duration::ZERO;
    }

    /// Prepares the calling thread to be the keeper's.
    pub fn enter(&mut self) {
        self.mover.enter();
    }

    /// Ends every move that can be ended. True: no tier has the mover's memory.
    pub fn stop(&mut self) -> bool {
        while self.mover.give_up() != mover::Progress::Idle {}
        self.mover.is_quiet()
    }

    /// Does what can be done now. An error is for a person to read; the tier it
    /// names is left alone for a moment.
    pub fn step(&mut self, now: Duration) -> Result<Pace> {
        self.look(now);
        let lost = self.store.tend_lost_sessions(now);
        if lost > self.lost_sessions {
            self.tend_until = now + TENDING;
        }
        self.lost_sessions = lost;
        loop {
            match self.mover.advance(now) {
                mover::Progress::Moved(moved) => self.moved(&moved),
                mover::Progress::Abandoned(extent, from, reason) => {
                    self.abandoned(extent, from, reason);
                }
                mover::Progress::Busy | mover::Progress::Idle => break,
            }
        }
        self.end_emptied(now)?;
        self.feed_urgent(now)?;
        self.feed(now)?;
        if self.emptying.iter().any(|slab| self.is_through(slab)) {
            return Ok(Pace::Now);
        }
        if self.mover.has_room() && self.act(now)? {
            return Ok(Pace::Now);
        }
        let tending = lost > 0 && now < self.tend_until;
        Ok(if tending || self.mover.active() > 0 { Pace::Soon } else { Pace::Rest })
    }

    /// Decides and does one thing; false: nothing, or nothing at the moment.
    fn act(&mut self, now: Duration) -> Result<bool> {
        match self.decide(now) {
            Step::Rest => {
                if self.emptying.is_empty() && self.is_busy(now) && self.stuck.is_none() {
                    self.stuck = Some(self.obstacle(now));
                }
                Ok(false)
            }
            Step::Take(tier) => {
                if self.emptying.iter().any(|slab| slab.tier == tier) {
                    return Ok(false);
                }
                self.take(tier, now)
            }
            Step::Release(tier) => self.release(tier, None, now),
            Step::Empty(tier, slab) => {
                let over = self.facts(tier, now).count.held > self.facts(tier, now).cap();
                Ok(self.begin(tier, slab, if over { Purpose::Pack } else { Purpose::Tidy }))
            }
            Step::Evacuate(tier, slab) => Ok(self.begin(tier, slab, Purpose::Leave)),
            Step::Promote(tier, extent) => Ok(self.promote(tier, extent)),
            Step::Close(tier) => {
                // A slab on its way out counts as gone, but is not.
                if self.emptying.iter().any(|slab| slab.tier == tier) {
                    return Ok(false);
                }
                let slots = &self.store.tiers()[self.fast[tier]];
                slots.tier().close().map_err(|error| self.refused(tier, now, error))?;
                self.watch[tier].closed = true;
                Ok(true)
            }
        }
    }

    fn decide(&self, now: Duration) -> Step {
        let tiers: Vec<TierFacts> = (0..self.fast.len())
            .map(|tier| {
                let mut facts = self.facts(tier, now);
                // Slabs on their way out are as good as gone, and others have them.
                let leaving = self.emptying.iter().filter(|slab| slab.tier == tier).count();
                facts.count.held = facts.count.held.saturating_sub(leaving as u32);
                if let Some(available) = &mut facts.available_bytes {
                    *available = available.saturating_add((leaving * SLAB_BYTES) as u64);
                }
                facts
            })
            .collect();
        let facts = Facts { tiers: &tiers, has_spill: self.spill.is_some(), close: self.close };
        next(&facts, &self.survey(now))
    }

    /// Notes a refusal, so that the tier is left alone for a moment.
    fn refused(&mut self, tier: usize, now: Duration, error: Error) -> Error {
        self.watch[tier].waiting_until = now + REFUSED;
        self.stuck = Some(format!("tier {}: {error}", self.name(tier)));
        error
    }

    fn name(&self, tier: usize) -> &str {
        self.store.tiers()[self.fast[tier]].tier().name()
    }

    /// Takes a slab; of a closed device, opens it. False: not at the moment.
    fn take(&mut self, tier: usize, now: Duration) -> Result<bool> {
        let slots = &self.store.tiers()[self.fast[tier]];
        if !slots.tier().is_open() {
            return self.open(tier, now).map(|()| true);
        }
        if !slots.tier().is_ready() {
            return Ok(false);
        }
        let taken = self
            .store
            .take_slab(self.fast[tier])
            .map_err(|error| self.refused(tier, now, error))?;
        self.watch[tier].closed = false;
        if taken && let Some(available) = &mut self.watch[tier].available_bytes {
            *available = available.saturating_sub(SLAB_BYTES as u64);
        }
        Ok(taken)
    }

    /// Opens the tier's device. One that fails is left alone for longer each time.
    fn open(&mut self, tier: usize, now: Duration) -> Result<()> {
        let n = self.fast[tier];
        let opened = self.store.tiers()[n].tier().open();
        // What is free of its memory is known only now.
        self.look_at = Duration::ZERO;
        let Err(error) = opened else {
            let watch = &mut self.watch[tier];
            (watch.closed, watch.unopened, watch.trouble) = (false, 0, None);
            return Ok(());
        };
        Counters::bump(&self.counters.tiers[n].faults);
        let trouble = format!("tier {} is not opened: {error}", self.name(tier));
        let watch = &mut self.watch[tier];
        let pause = REFUSED.saturating_mul(1 << watch.unopened.min(16)).min(OPEN_AGAIN);
        watch.waiting_until = now + pause;
        watch.unopened += 1;
        watch.trouble = Some(trouble);
        Err(error)
    }

    /// Gives back this slab, or any empty one.
    fn release(&mut self, tier: usize, slab: Option<u32>, now: Duration) -> Result<bool> {
        let n = self.fast[tier];
        let released = match slab {
            Some(slab) => self.store.release_slab(n, slab),
            None => self.store.release_empty_slab(n).and_then(|released| {
                if released { Ok(true) } else { self.store.release_spent_slab(n) }
            }),
        };
        let released = released.map_err(|error| self.refused(tier, now, error))?;
        if released {
            self.stuck = None;
            let watch = &mut self.watch[tier];
            watch.released_slabs += 1;
            if let Some(available) = &mut watch.available_bytes {
                *available = available.saturating_add(SLAB_BYTES as u64);
            }
            self.count_over_target(tier, now);
        }
        Ok(released)
    }

    fn begin(&mut self, tier: usize, slab: u32, purpose: Purpose) -> bool {
        if self.emptying.len() == EMPTYING {
            return false;
        }
        self.store.tiers()[self.fast[tier]].pool().close(slab);
        self.emptying.push(Emptying {
            tier,
            slab,
            purpose,
            next: 0,
            round: 0,
            trouble: None,
            cancelled: false,
        });
        true
    }

    fn promote(&mut self, tier: usize, extent: ExtentIndex) -> bool {
        let spill = self.spill;
        let promoting = self.mover.moves_from(|from| Some(usize::from(from.tier)) == spill);
        if promoting >= PROMOTING || !self.emptying.is_empty() {
            return false;
        }
        self.candidates.drop_hottest();
        let Some(place) = self.store.place(extent) else { return true };
        let _ = self.mover.start(place.tier as usize, place.slot, self.fast[tier]);
        true
    }

    /// The extent that a write waits for goes first, or stays for now.
    fn feed_urgent(&mut self, now: Duration) -> Result<()> {
        if !self.mover.has_room() && self.mover.active() > 0 {
            return Ok(());
        }
        let Some(extent) = self.store.take_urgent() else { return Ok(()) };
        let place = self.store.place(extent).filter(|place| self.store.must_leave(*place));
        if let Some(place) = place
            && let Some(tier) = self.tier_of(place)
            && let Err(refused) = self.start_move(tier, place.slot, Purpose::Leave, now)?
        {
            let from_there = |from: Place| from.tier == place.tier;
            // Whether there is a point in asking again, as whoever waits does.
            let soon = match refused {
                Refused::Full => self.mover.moves_from(from_there) > 0,
                Refused::Locked | Refused::Vacant => true,
                Refused::NoRoom | Refused::Faulty => false,
            };
            if !soon {
                self.store.stays(extent, place);
            }
        }
        Ok(())
    }

    /// Starts moves out of the slabs that are being emptied, while there are buffers.
    fn feed(&mut self, now: Duration) -> Result<()> {
        for n in 0..self.emptying.len() {
            while self.mover.has_room() && self.emptying[n].next < SLOTS_PER_SLAB as u32 {
                let Emptying { tier, slab, purpose, next, .. } = self.emptying[n];
                let slot = SlotIndex::new(SlabIndex(slab), next);
                let started = self.start_move(tier, slot, purpose, now)?;
                let emptying = &mut self.emptying[n];
                match started {
                    Ok(()) | Err(Refused::Vacant) => {}
                    Err(Refused::Full) => {
                        let from = self.fast[tier];
                        if self.mover.moves_from(|place| usize::from(place.tier) == from) == 0 {
                            emptying.trouble = Some("its tier does not answer".to_owned());
                            emptying.next = SLOTS_PER_SLAB as u32;
                        }
                        break;
                    }
                    Err(Refused::Locked) => {
                        emptying.trouble = Some("an extent is locked".to_owned());
                    }
                    Err(Refused::NoRoom | Refused::Faulty) => {
                        emptying.trouble = Some("no other tier has room".to_owned());
                        emptying.next = SLOTS_PER_SLAB as u32;
                        break;
                    }
                }
                emptying.next += 1;
            }
        }
        Ok(())
    }

    /// Starts to move what is in the slot to the best place for the purpose.
    fn start_move(
        &mut self,
        tier: usize,
        slot: SlotIndex,
        purpose: Purpose,
        now: Duration,
    ) -> Result<std::result::Result<(), Refused>> {
        let from = self.fast[tier];
        if self.store.tiers()[from].owner(slot).is_none() {
            return Ok(Err(Refused::Vacant));
        }
        // Within the tier first; a slab that is only damaged leaves a good tier.
        let faulty = self.store.tiers()[from].is_faulty();
        let own = !faulty && (purpose != Purpose::Leave || self.spill.is_none());
        let mut refused = Refused::NoRoom;
        if own {
            match self.mover.start(from, slot, from) {
                Err(Refused::NoRoom) => {}
                other => return Ok(other),
            }
            if purpose == Purpose::Tidy {
                return Ok(Err(Refused::NoRoom));
            }
        }
        // A mirror's copy costs nothing; it comes back when it is read.
        if !self.store.is_mirrored() {
            for other in (0..self.fast.len()).filter(|other| *other != tier) {
                let facts = self.facts(other, now);
                if facts.headroom() < LOW_SLOTS && self.spill.is_some() {
                    continue;
                }
                if facts.count.free == 0 && facts.can_grow() {
                    self.take(other, now)?;
                }
                match self.mover.start(from, slot, self.fast[other]) {
                    Err(Refused::NoRoom | Refused::Faulty) => {}
                    other => return Ok(other),
                }
            }
        }
        if let Some(spill) = self.spill {
            refused = match self.mover.start(from, slot, spill) {
                Err(refused) => refused,
                Ok(()) => return Ok(Ok(())),
            };
        }
        Ok(Err(refused))
    }

    fn tier_of(&self, place: Place) -> Option<usize> {
        self.fast.iter().position(|n| *n == usize::from(place.tier))
    }

    fn emptying_of(&mut self, place: Place) -> Option<&mut Emptying> {
        let tier = self.tier_of(place)?;
        self.emptying.iter_mut().find(|e| e.tier == tier && e.slab == place.slab().0)
    }

    fn moved(&mut self, moved: &Moved) {
        let Some(tier) = self.tier_of(moved.from) else { return };
        self.stuck = None;
        let watch = &mut self.watch[tier];
        watch.moved_extents += 1;
        watch.moved_bytes += moved.bytes;
        watch.pages_over_target =
            watch.pages_over_target.saturating_sub(moved.bytes / super::units::PAGE_BYTES as u64);
    }

    fn abandoned(&mut self, extent: ExtentIndex, from: Place, reason: Reason) {
        if self.tier_of(from).is_none() {
            // Until somebody reads it again.
            self.store.heat.forget_reads(extent);
        }
        let what = match reason {
            // Gone is as good as moved.
            Reason::Gone => None,
            Reason::Fault => Some("cannot be read or written elsewhere"),
            Reason::Checksum => Some("is damaged"),
            Reason::Torn => Some("has a page that was never completed"),
            Reason::TimedOut => Some("is kept by a request or a tier that does not answer"),
        };
        let Some(emptying) = self.emptying_of(from) else { return };
        if let Some(what) = what {
            let tier = emptying.tier;
            let trouble = format!("extent {} {what}", extent.0);
            emptying.trouble = Some(trouble.clone());
            self.stuck = Some(format!("tier {}: {trouble}", self.name(tier)));
        }
    }

    /// Every slot was tried, and every move has ended.
    fn is_through(&self, emptying: &Emptying) -> bool {
        let tier = self.fast[emptying.tier];
        emptying.next == SLOTS_PER_SLAB as u32
            && self
                .mover
                .moves_from(|from| usize::from(from.tier) == tier && from.slab().0 == emptying.slab)
                == 0
    }

    /// Deals with slabs of which everything was tried.
    fn end_emptied(&mut self, now: Duration) -> Result<()> {
        for n in (0..self.emptying.len()).rev() {
            if !self.is_through(&self.emptying[n]) {
                continue;
            }
            let emptying = &mut self.emptying[n];
            let (tier, slab) = (emptying.tier, emptying.slab);
            let slots = &self.store.tiers[self.fast[tier]];
            let left = slots.pool.used_in(slab).unwrap_or(0);
            if left > 0 && emptying.cancelled {
                slots.pool.reopen(slab);
                self.emptying.remove(n);
                continue;
            }
            if left > 0 && emptying.trouble.is_none() && emptying.round < ROUNDS {
                emptying.round += 1;
                emptying.next = 0;
                continue;
            }
            let emptying = self.emptying.remove(n);
            if left == 0 {
                self.emptied(&emptying, now)?;
                continue;
            }
            let trouble = emptying.trouble.unwrap_or_else(|| "its slots stay in use".to_owned());
            let bytes = ByteLen(SLAB_BYTES as u64);
            self.stuck = Some(format!(
                "tier {}: slab {slab} ({bytes}) keeps {left} extents: {trouble}",
                slots.tier().name()
            ));
            // A faulty tier gets no pages while there is another; open, its slots
            // are there for those that have no other place.
            slots.pool.reopen(slab);
            self.watch[tier].resisting.push((slab, now + RETRY));
        }
        Ok(())
    }

    /// An empty slab, closed: given back where that was the purpose.
    fn emptied(&mut self, emptying: &Emptying, now: Duration) -> Result<()> {
        let (tier, slab) = (emptying.tier, emptying.slab);
        let facts = self.facts(tier, now);
        if emptying.purpose == Purpose::Tidy || facts.count.held > facts.cap() {
            self.release(tier, Some(slab), now)?;
        } else {
            self.store.tiers[self.fast[tier]].pool.reopen(slab);
        }
        Ok(())
    }

    /// How far the keeper is.
    #[must_use]
    pub fn progress(&self, now: Duration) -> Progress {
        let closed = self.watch.iter().find_map(|watch| watch.trouble.as_ref());
        let state = match (&self.stuck, closed) {
            (None, Some(why)) => State::Stuck(why.clone()),
            (_, Some(why)) if !self.is_busy(now) => State::Stuck(why.clone()),
            _ if !self.is_busy(now) => State::AtRest,
            (Some(why), _) => State::Stuck(why.clone()),
            (None, None) => State::Working,
        };
        let tiers = self.watch.iter().enumerate().map(|(tier, watch)| {
            let slots = &self.store.tiers()[self.fast[tier]];
            TierProgress {
                tier: self.fast[tier],
                name: slots.tier().name().to_owned(),
                is_open: slots.tier().is_open(),
                held_slabs: slots.count().held,
                target_slabs: watch.target_slabs,
                pages_over_target: watch.pages_over_target,
                released_slabs: watch.released_slabs,
                moved_extents: watch.moved_extents,
                moved_bytes: watch.moved_bytes,
            }
        });
        Progress { order: self.order, state, tiers: tiers.collect() }
    }
}
