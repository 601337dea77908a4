// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves extents from their slots to others while requests go on, several at a
//! time, each through a buffer of its own.
//!
//! ```text
//!   start ──► Draining ──► Reading ──► Writing ──► flip, old slot freed
//!              │ pins gone   │   ▲ verified │ complete
//!              │             ▼   │          │
//!              │           Rereading        │   page by page, after any trouble:
//!              │             │              │   what stays unreadable is marked bad
//!              └─────────────┴──────────────┴──► abandoned: entry unchanged, new slot freed
//!                                               (given up: when its tier has answered)
//! ```
//! The entry names the old place until the one store that flips it, so a crash
//! or an abandoned move costs nothing. Only written pages are copied. While
//! the mover owns an extent, requests for it are parked by their sessions, for
//! [`PATIENCE`] at most; everything else runs at full speed. One mover per store.
//!
//! In a mirrored store the spill has a current copy of every extent: a move
//! there is the flip alone, and trouble on the way elsewhere ends there.

use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::error::Result;
use super::index::{PageMap, PageRun, Place, runs_in};
use super::store::{Role, Store};
use super::tier::{Direction, Done, HostMemory, Lane, LaneSetup, PageOp, Wake};
use super::units::{EXTENT_BYTES, ExtentIndex, PAGE_BYTES, PAGES_PER_EXTENT, SlabIndex, SlotIndex};

/// Extents that can be on their way at once, where memory allows.
pub const JOBS: usize = 6;
/// Of them from one tier: one that stops answering keeps no more buffers than
/// these from the others.
pub const JOBS_PER_TIER: usize = 4;
/// How long one move may take before it is given up; so long at most does a
/// request wait for it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long requests may keep their pins of an extent that should move: those
/// that come meanwhile wait, and an operation that never ends keeps its pin.
const DRAIN: Duration = Duration::from_secs(1);

/// What [`Mover::advance`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No move is under way.
    Idle,
    /// Nothing ended; advance again.
    Busy,
    /// An extent is in its new place.
    Moved(Moved),
    /// An extent stays where it was.
    Abandoned(ExtentIndex, Place, Reason),
}

/// An extent that changed its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The extent.
    pub extent: ExtentIndex,
    /// Where it was.
    pub from: Place,
    /// Where it is.
    pub to: Place,
    /// Bytes copied for it.
    pub bytes: u64,
    /// Its pages that could not be read and are lost.
    pub lost_pages: u32,
}

/// Why a move was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The extent was emptied or moved before the mover owned it.
    Gone,
    /// A tier answered with an error; it takes no new pages.
    Fault,
    /// A page did not match its checksum; its slab is quarantined.
    Checksum,
    /// A page that was being written at a crash has not been adopted yet.
    Torn,
    /// Given up: a request or a tier kept the extent too long.
    TimedOut,
}

/// Why a move did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Every buffer is in use, or as many as one tier may have.
    Full,
    /// No extent uses the slot.
    Vacant,
    /// Somebody else moves the extent already.
    Locked,
    /// The tier has no free slot outside the slot's own slab.
    NoRoom,
    /// The tier failed: nothing new goes there.
    Faulty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Draining,
    Reading,
    Rereading,
    Writing,
}

struct Job {
    extent: ExtentIndex,
    from: Place,
    to: Place,
    stage: Stage,
    operations: usize,
    fault: bool,
    /// Pages to copy.
    pages: PageMap,
    /// Of them those whose operation failed, by its first page.
    failed: PageMap,
    /// Pages that will be marked as lost.
    bad: PageMap,
    since: Option<Duration>,
    /// Given up while a tier has the buffer.
    lost: bool,
}

const NONE: PageMap = [0; PAGES_PER_EXTENT / 64];

fn pages_in(map: &PageMap) -> u32 {
    map.iter().map(|word| word.count_ones()).sum()
}

/// See the module.
pub struct Mover {
    store: Arc<Store>,
    memory: Arc<dyn HostMemory>,
    lanes: Vec<Box<dyn Lane>>,
    group: Vec<PageOp>,
    done: Vec<Done>,
    counters: Arc<Counters>,
    jobs: Box<[Option<Job>]>,
}

impl Mover {
    /// A mover that copies through `memory`: as many extents at a time as fit,
    /// [`JOBS`] at most, one at least.
    pub fn new(
        store: Arc<Store>,
        memory: Arc<dyn HostMemory>,
        waker: &Arc<dyn Wake>,
    ) -> Result<Self> {
        let jobs = (memory.bytes() / EXTENT_BYTES).min(JOBS);
        assert!(jobs > 0, "the mover needs 2 MiB");
        let depth = jobs * PAGES_PER_EXTENT;
        let lanes = store
            .tiers
            .iter()
            .map(|slots| {
                slots.tier().lane(LaneSetup {
                    memory: Arc::clone(&memory),
                    depth,
                    waker: Arc::clone(waker),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            counters: store.counters(),
            store,
            memory,
            lanes,
            group: Vec::with_capacity(PAGES_PER_EXTENT),
            done: Vec::with_capacity(depth),
            jobs: (0..jobs).map(|_| None).collect(),
        })
    }

    /// Prepares the calling thread to be the one that moves; see [`Lane::enter`].
    pub fn enter(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.enter());
    }

    /// True if another move can begin.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.jobs.iter().any(Option::is_none)
    }

    /// Moves under way, those given up apart.
    #[must_use]
    pub fn active(&self) -> usize {
        self.jobs.iter().flatten().filter(|job| !job.lost).count()
    }

    /// Moves under way, those given up apart, out of slabs for which `of` holds.
    pub fn moves_from(&self, of: impl Fn(Place) -> bool) -> usize {
        self.jobs.iter().flatten().filter(|job| !job.lost && of(job.from)).count()
    }

    /// Begins to move the extent in `slot` of `tier` into any free slot of
    /// `to_tier`.
    pub fn start(
        &mut self,
        tier: usize,
        slot: SlotIndex,
        to_tier: usize,
    ) -> std::result::Result<(), Refused> {
        let store = &self.store;
        let from_tier = |job: &&Job| usize::from(job.from.tier) == tier;
        if self.jobs.iter().flatten().filter(from_tier).count() >= JOBS_PER_TIER {
            return Err(Refused::Full);
        }
        let buffer = self.jobs.iter_mut().find(|job| job.is_none()).ok_or(Refused::Full)?;
        if store.tiers[to_tier].is_faulty() && store.tiers[to_tier].role() == Role::Fast {
            return Err(Refused::Faulty);
        }
        let extent = store.tiers[tier].owner(slot).ok_or(Refused::Vacant)?;
        let from = Place { tier: tier as u8, slot };
        let to = store.copy_of(extent).filter(|copy| usize::from(copy.tier) == to_tier);
        let to = if let Some(copy) = to {
            if copy == from {
                return Err(Refused::NoRoom);
            }
            copy
        } else {
            let (slab, within) = store.tiers[to_tier].pool.alloc().ok_or(Refused::NoRoom)?;
            Place { tier: to_tier as u8, slot: SlotIndex::new(SlabIndex(slab), within) }
        };
        if to_tier == tier && to.slab() == from.slab() {
            store.free(to);
            return Err(Refused::NoRoom);
        }
        if !store.pins[extent.0 as usize].want() {
            store.free(to);
            return Err(Refused::Locked);
        }
        *buffer = Some(Job {
            extent,
            from,
            to,
            stage: Stage::Draining,
            operations: 0,
            fault: false,
            pages: NONE,
            failed: NONE,
            bad: NONE,
            since: None,
            lost: false,
        });
        Ok(())
    }

    /// Does what can be done now, without waiting, until one move ends. `now`
    /// is a monotonic time.
    pub fn advance(&mut self, now: Duration) -> Progress {
        self.collect();
        for n in 0..self.jobs.len() {
            let Some(mut job) = self.jobs[n].take() else { continue };
            if job.lost {
                self.settle_lost(n, job);
                continue;
            }
            let since = *job.since.get_or_insert(now);
            if let Some(end) = self.advance_job(n, &mut job) {
                return end;
            }
            self.jobs[n] = Some(job);
            let draining = self.jobs[n].as_ref().is_some_and(|job| job.stage == Stage::Draining);
            if now > since + if draining { DRAIN } else { PATIENCE } {
                return self.give_up_job(n);
            }
        }
        if self.active() > 0 { Progress::Busy } else { Progress::Idle }
    }

    /// One move's next stage, if it can go on; its end.
    fn advance_job(&mut self, n: usize, job: &mut Job) -> Option<Progress> {
        if job.stage == Stage::Draining {
            if !self.store.pins[job.extent.0 as usize].try_own() {
                return None;
            }
            if let Some(reason) = self.unmovable(job) {
                return Some(self.abandon(job, reason));
            }
            if self.store.copy_of(job.extent) == Some(job.to) {
                return Some(self.finish(job));
            }
            job.pages = self.store.index.sound_map(job.extent);
            job.stage = Stage::Reading;
            self.submit(n, job, Direction::Read, PAGES_PER_EXTENT as u32);
        }
        if job.operations > 0 {
            return None;
        }
        match job.stage {
            Stage::Draining => unreachable!("left above"),
            Stage::Reading => {
                if job.fault || pages_in(&self.mismatches(n, job)) > 0 {
                    job.stage = Stage::Rereading;
                    job.fault = false;
                    job.failed = NONE;
                    self.submit(n, job, Direction::Read, 1);
                    return None;
                }
                self.write(n, job)
            }
            Stage::Rereading => self.judge(n, job),
            Stage::Writing if job.fault => Some(self.abandon(job, Reason::Fault)),
            Stage::Writing => Some(self.finish(job)),
        }
    }

    /// Why the extent, which is owned now, cannot be moved.
    fn unmovable(&self, job: &Job) -> Option<Reason> {
        let store = &self.store;
        if store.index.place(job.extent) != Some(job.from) {
            // A write that left a faulty tier in a hurry left the slot behind.
            if store.copy_of(job.extent).is_some()
                && store.tiers[job.from.tier as usize].owner(job.from.slot) == Some(job.extent)
            {
                store.free(job.from);
            }
            return Some(Reason::Gone);
        }
        // No request has a page open here, but a crash may have left some.
        store.index.any_open(PageRun::whole(job.extent)).then_some(Reason::Torn)
    }

    /// After the second reading, page by page: what is lost and what goes on.
    fn judge(&mut self, n: usize, job: &mut Job) -> Option<Progress> {
        let mut wrong = self.mismatches(n, job);
        let unreachable = self.unreachable(n, job, &wrong);
        if pages_in(&unreachable) > 0 {
            Counters::bump(&self.counters.io_errors);
            Counters::bump(&self.counters.tiers[job.from.tier as usize].faults);
            self.store.fault(job.from.tier);
            for (word, pages) in unreachable.iter().enumerate() {
                wrong[word] &= !pages;
                job.failed[word] |= pages;
            }
        }
        let sound = |n: usize| job.pages[n] & !job.failed[n] & !wrong[n];
        let any_sound = (0..NONE.len()).any(|n| sound(n) != 0);
        if pages_in(&wrong) > 0 {
            Counters::bump(&self.counters.checksum_errors);
            Counters::bump(&self.counters.tiers[job.from.tier as usize].checksum_errors);
            self.store.tiers[job.from.tier as usize].pool.quarantine(job.from.slab().0);
        }
        let troubled = pages_in(&wrong) + pages_in(&job.failed) > 0;
        if let Some(copy) =
            self.store.copy_of(job.extent).filter(|copy| troubled && *copy != job.from)
        {
            self.store.free(job.to);
            job.to = copy;
            return Some(self.finish(job));
        }
        let stays = self.store.tiers[job.from.tier as usize].role() == Role::Spill && troubled;
        let is_down = pages_in(&unreachable) > 0;
        if pages_in(&job.failed) > 0 && (!any_sound || stays || is_down) {
            // Nothing says that the tier works: its pages may yet be read.
            return Some(self.abandon(job, Reason::Fault));
        }
        if stays {
            return Some(self.abandon(job, Reason::Checksum));
        }
        job.bad = std::array::from_fn(|n| job.failed[n] | wrong[n]);
        job.pages = std::array::from_fn(sound);
        self.write(n, job)
    }

    fn write(&mut self, n: usize, job: &mut Job) -> Option<Progress> {
        job.stage = Stage::Writing;
        // What the reading met is settled by now.
        job.fault = false;
        job.failed = NONE;
        self.submit(n, job, Direction::Write, PAGES_PER_EXTENT as u32);
        (job.operations == 0).then(|| self.finish(job))
    }

    /// Ends the oldest move that is under way, which takes longer than the
    /// caller will wait: a request does not give the extent back, or a tier does
    /// not answer. A tier with a deadline is faulty from here on; one without
    /// is slow. The extent stays where it was and its requests go on. What the
    /// tier may still touch, buffer and slots, is kept until it answers.
    pub fn give_up(&mut self) -> Progress {
        let oldest = (0..self.jobs.len())
            .filter(|n| self.jobs[*n].as_ref().is_some_and(|job| !job.lost))
            .min_by_key(|n| self.jobs[*n].as_ref().and_then(|job| job.since));
        oldest.map_or(Progress::Idle, |n| self.give_up_job(n))
    }

    fn give_up_job(&mut self, n: usize) -> Progress {
        let Some(mut job) = self.jobs[n].take() else { return Progress::Idle };
        let pin = &self.store.pins[job.extent.0 as usize];
        let abandoned = Progress::Abandoned(job.extent, job.from, Reason::TimedOut);
        if job.stage == Stage::Draining {
            // One who is only slow has given it back when this is tried again.
            let holder_is_lost = self.store.orphans.contains(job.extent)
                || self.store.tiers[job.from.tier as usize].lost_operations() > 0;
            if holder_is_lost {
                self.store.stays(job.extent, job.from);
            }
            pin.withdraw();
            self.store.free(job.to);
            return abandoned;
        }
        if job.operations == 0 {
            return self.abandon(&job, Reason::TimedOut);
        }
        let slow = if job.stage == Stage::Writing { job.to } else { job.from };
        Counters::bump(&self.counters.timed_out);
        Counters::bump(&self.counters.tiers[slow.tier as usize].timed_out);
        let slots = &self.store.tiers[slow.tier as usize];
        slots.operations_lost(job.operations as u32);
        if slots.setup.deadline.is_some() {
            self.store.fault(slow.tier);
        }
        self.store.stays(job.extent, job.from);
        if job.stage == Stage::Writing {
            pin.end_move();
        } else {
            self.store.free(job.to);
            pin.end_move_pinned();
        }
        job.lost = true;
        self.jobs[n] = Some(job);
        abandoned
    }

    /// Gives back what a lost move kept, once its tier has answered.
    fn settle_lost(&mut self, n: usize, job: Job) {
        if job.operations > 0 {
            self.jobs[n] = Some(job);
        } else if job.stage == Stage::Writing {
            self.store.free(job.to);
        } else {
            self.store.unpin(job.extent);
        }
    }

    /// The lanes' memory may be reused: no operation is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|lane| lane.pending() == 0)
    }

    /// One operation for each run of the job's pages, `longest` pages at most.
    fn submit(&mut self, n: usize, job: &mut Job, direction: Direction, longest: u32) {
        let place = if direction == Direction::Read { job.from } else { job.to };
        self.group.clear();
        for (first, count) in runs_in(&job.pages) {
            for at in (first..first + count).step_by(longest as usize) {
                let within = at * PAGE_BYTES as u32;
                self.group.push(PageOp {
                    tag: (n as u32) << 16 | at,
                    direction,
                    slab: place.slab(),
                    offset: place.slot.byte_in_slab() + within,
                    host: n as u32 * EXTENT_BYTES as u32 + within,
                    bytes: (first + count - at).min(longest) * PAGE_BYTES as u32,
                });
            }
        }
        for operation in &self.group {
            self.counters.tiers[place.tier as usize].given(operation);
        }
        job.operations = self.group.len();
        self.lanes[place.tier as usize].submit(&self.group);
    }

    fn collect(&mut self) {
        for tier in 0..self.lanes.len() {
            if self.lanes[tier].pending() == 0 {
                continue;
            }
            self.lanes[tier].poll(&mut self.done);
            for done in self.done.drain(..) {
                let (n, page) = ((done.tag >> 16) as usize, done.tag & 0xffff);
                let Some(job) = &mut self.jobs[n] else { continue };
                job.operations -= 1;
                if job.lost {
                    self.store.tiers[tier].operation_found();
                }
                let counted = &self.counters.tiers[tier];
                if done.result.is_err() {
                    Counters::bump(&counted.faults);
                    job.fault = true;
                    job.failed[(page / 64) as usize] |= 1 << (page % 64);
                    Counters::bump(&self.counters.io_errors);
                    self.store.fault(tier as u8);
                } else if job.stage == Stage::Writing {
                    Counters::bump(&counted.writes);
                } else {
                    Counters::bump(&counted.reads);
                }
            }
        }
    }

    /// Pages that were read and do not match their checksums.
    fn mismatches(&self, n: usize, job: &Job) -> PageMap {
        let mut wrong = NONE;
        if !self.store.checksums {
            return wrong;
        }
        for (first, count) in runs_in(&job.pages) {
            for page in first..first + count {
                let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
                let host = n as u32 * EXTENT_BYTES as u32 + page * PAGE_BYTES as u32;
                if job.failed[word] & bit == 0
                    && self.memory.crc32c(host, PAGE_BYTES as u32)
                        != self.store.index.checksum(job.extent, page)
                {
                    wrong[word] |= bit;
                }
            }
        }
        wrong
    }

    /// Of these pages those that say nothing but that the device cannot be reached.
    fn unreachable(&self, n: usize, job: &Job, wrong: &PageMap) -> PageMap {
        let mut found = NONE;
        for (first, count) in runs_in(wrong) {
            for page in first..first + count {
                let host = n as u32 * EXTENT_BYTES as u32 + page * PAGE_BYTES as u32;
                if self.store.is_unreachable(Some(job.from), &*self.memory, host) {
                    found[(page / 64) as usize] |= 1 << (page % 64);
                }
            }
        }
        found
    }

    fn finish(&self, job: &Job) -> Progress {
        let store = &self.store;
        store.index.mark_bad(job.extent, &job.bad);
        store.tiers[job.to.tier as usize].set_owner(job.to.slot, Some(job.extent));
        store.flip(job.extent, Some(job.to));
        store.free(job.from);
        if store.tiers[job.to.tier as usize].role() == Role::Spill {
            store.heat.forget_reads(job.extent);
        }
        store.pins[job.extent.0 as usize].end_move();
        let flipped = store.copy_of(job.extent) == Some(job.to);
        let copied = if flipped { 0 } else { pages_in(&job.pages) };
        let moved = Moved {
            extent: job.extent,
            from: job.from,
            to: job.to,
            bytes: u64::from(copied) * PAGE_BYTES as u64,
            lost_pages: pages_in(&job.bad),
        };
        self.count(&moved);
        Progress::Moved(moved)
    }

    fn count(&self, moved: &Moved) {
        let counters = &self.counters;
        Counters::bump(&counters.moved);
        Counters::raise(&counters.moved_bytes, moved.bytes);
        Counters::raise(&counters.lost_pages, moved.lost_pages.into());
        let came_from = self.store.tiers[moved.from.tier as usize].role();
        Counters::bump(if moved.from.tier == moved.to.tier {
            &counters.compacted
        } else if came_from == Role::Spill {
            &counters.promoted
        } else {
            &counters.evacuated
        });
    }

    fn abandon(&self, job: &Job, reason: Reason) -> Progress {
        if reason != Reason::Gone {
            self.store.stays(job.extent, job.from);
        }
        self.store.free(job.to);
        self.store.pins[job.extent.0 as usize].end_move();
        Progress::Abandoned(job.extent, job.from, reason)
    }
}
