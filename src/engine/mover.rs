// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves one extent at a time from its slot to another while requests go on.
//!
//! ```text
//!   start ──► Draining ──► Reading ──► Writing ──► flip, old slot freed
//!              │ pins gone   │ verified   │ complete
//!              └─────────────┴────────────┴──► abandoned: entry unchanged, new slot freed
//!                                              (given up: when its tier has answered)
//! ```
//! The entry names the old place until the one store that flips it, so a crash
//! or an abandoned move costs nothing. Only written pages are copied. While
//! the mover owns an extent, requests for it are parked by their sessions;
//! everything else runs at full speed. One mover per store.

use std::sync::Arc;

use super::counters::Counters;
use super::error::Result;
use super::index::{PageRun, Place};
use super::store::Store;
use super::tier::{Direction, Done, HostMemory, Lane, LaneSetup, PageOp, Wake};
use super::units::{ExtentIndex, PAGE_BYTES, PAGES_PER_EXTENT, SlabIndex, SlotIndex};

/// Written runs of one extent, at the very most.
const DEPTH: usize = PAGES_PER_EXTENT / 2;

/// What [`Mover::advance`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No move is under way.
    Idle,
    /// Not finished; advance again.
    Busy,
    /// The extent is in its new place.
    Moved(ExtentIndex),
    /// The extent stays where it was.
    Abandoned(ExtentIndex, Reason),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Draining,
    Reading,
    Writing,
}

struct Job {
    extent: ExtentIndex,
    from: Place,
    to: Place,
    stage: Stage,
    operations: usize,
    fault: bool,
}

/// See the module.
pub struct Mover {
    store: Arc<Store>,
    memory: Arc<dyn HostMemory>,
    lanes: Vec<Box<dyn Lane>>,
    group: Vec<PageOp>,
    done: Vec<Done>,
    counters: Arc<Counters>,
    job: Option<Job>,
    /// A move that was given up while a tier had the buffer.
    lost: Option<Job>,
}

impl Mover {
    /// A mover that copies through `memory`, at least one extent long.
    pub fn new(
        store: Arc<Store>,
        memory: Arc<dyn HostMemory>,
        waker: &Arc<dyn Wake>,
    ) -> Result<Self> {
        assert!(memory.bytes() >= PAGES_PER_EXTENT * PAGE_BYTES, "the mover needs 2 MiB");
        let lanes = store
            .tiers
            .iter()
            .map(|slots| {
                slots.tier().lane(LaneSetup {
                    memory: Arc::clone(&memory),
                    depth: DEPTH,
                    waker: Arc::clone(waker),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            counters: store.counters(),
            store,
            memory,
            lanes,
            group: Vec::with_capacity(DEPTH),
            done: Vec::with_capacity(DEPTH),
            job: None,
            lost: None,
        })
    }

    /// Begins to move the extent in `slot` of `tier` into any free slot of
    /// `to_tier`. False: a move is under way, one that was given up still has
    /// the buffer, the slot is not in use, or
    /// `to_tier` is faulty or has no free slot outside the slot's own slab.
    pub fn start(&mut self, tier: usize, slot: SlotIndex, to_tier: usize) -> bool {
        if self.job.is_some() || self.lost.is_some() {
            return false;
        }
        let store = &self.store;
        if store.tiers[to_tier].is_faulty() {
            return false;
        }
        let Some(extent) = store.tiers[tier].owner(slot) else { return false };
        let from = Place { tier: tier as u8, slot };
        let Some((slab, within)) = store.tiers[to_tier].pool.alloc() else { return false };
        let to = Place { tier: to_tier as u8, slot: SlotIndex::new(SlabIndex(slab), within) };
        if to_tier == tier && to.slab() == from.slab() {
            store.free(to);
            return false;
        }
        if !store.pins[extent.0 as usize].want() {
            store.free(to);
            return false;
        }
        self.job =
            Some(Job { extent, from, to, stage: Stage::Draining, operations: 0, fault: false });
        true
    }

    /// Does what can be done now, without waiting.
    pub fn advance(&mut self) -> Progress {
        let Some(mut job) = self.job.take() else {
            self.collect_lost();
            return Progress::Idle;
        };
        if job.stage == Stage::Draining {
            let pin = &self.store.pins[job.extent.0 as usize];
            if !pin.try_own() {
                self.job = Some(job);
                return Progress::Busy;
            }
            if self.store.index.place(job.extent) != Some(job.from) {
                return self.end(&job, Err(Reason::Gone));
            }
            // No request has a page open here, but a crash may have left some.
            if self.store.index.any_open(PageRun::whole(job.extent)) {
                return self.end(&job, Err(Reason::Torn));
            }
            job.stage = Stage::Reading;
            self.submit(&mut job, Direction::Read);
        }
        self.collect(&mut job);
        if job.operations > 0 {
            self.job = Some(job);
            return Progress::Busy;
        }
        if job.fault {
            return self.end(&job, Err(Reason::Fault));
        }
        if job.stage == Stage::Reading {
            if !self.verify(&job) {
                return self.end(&job, Err(Reason::Checksum));
            }
            job.stage = Stage::Writing;
            self.submit(&mut job, Direction::Write);
            self.job = Some(job);
            return Progress::Busy;
        }
        self.end(&job, Ok(()))
    }

    /// Ends a move that takes longer than the caller will wait: a request does
    /// not give the extent back, or a tier does not answer, which is faulty from
    /// here on. The extent stays where it was and its requests go on. What the
    /// tier may still touch, buffer and slots, is kept until it answers.
    pub fn give_up(&mut self) -> Progress {
        let Some(job) = self.job.take() else { return Progress::Idle };
        let extent = job.extent;
        let pin = &self.store.pins[extent.0 as usize];
        if job.stage == Stage::Draining {
            pin.withdraw();
            self.store.free(job.to);
        } else if job.operations == 0 {
            return self.end(&job, Err(Reason::TimedOut));
        } else {
            Counters::bump(&self.counters.timed_out);
            if job.stage == Stage::Reading {
                self.store.fault(job.from.tier);
                self.store.free(job.to);
                pin.end_move_pinned();
            } else {
                self.store.fault(job.to.tier);
                pin.end_move();
            }
            self.lost = Some(job);
        }
        Progress::Abandoned(extent, Reason::TimedOut)
    }

    /// Gives back what a lost move kept, once its tier has answered.
    fn collect_lost(&mut self) {
        let Some(mut job) = self.lost.take() else { return };
        self.collect(&mut job);
        if job.operations > 0 {
            self.lost = Some(job);
        } else if job.stage == Stage::Reading {
            self.store.unpin(job.extent);
        } else {
            self.store.free(job.to);
        }
    }

    /// The lanes' memory may be reused: no operation is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|lane| lane.pending() == 0)
    }

    fn submit(&mut self, job: &mut Job, direction: Direction) {
        let place = if direction == Direction::Read { job.from } else { job.to };
        self.group.clear();
        for (first, count, written) in self.store.index.runs(PageRun::whole(job.extent)) {
            if written {
                let at = first * PAGE_BYTES as u32;
                self.group.push(PageOp {
                    tag: place.tier.into(),
                    direction,
                    slab: place.slab(),
                    offset: place.slot.byte_in_slab() + at,
                    host: at,
                    bytes: count * PAGE_BYTES as u32,
                });
            }
        }
        job.operations = self.group.len();
        self.lanes[place.tier as usize].submit(&self.group);
    }

    fn collect(&mut self, job: &mut Job) {
        for lane in &mut self.lanes {
            if lane.pending() == 0 {
                continue;
            }
            lane.poll(&mut self.done);
            for done in self.done.drain(..) {
                job.operations -= 1;
                if done.result.is_err() {
                    job.fault = true;
                    Counters::bump(&self.counters.io_errors);
                    self.store.fault(done.tag as u8);
                }
            }
        }
    }

    fn verify(&self, job: &Job) -> bool {
        let index = &self.store.index;
        let bad = |page: &u32| {
            index.is_written(job.extent, *page)
                && self.memory.crc32c(page * PAGE_BYTES as u32, PAGE_BYTES as u32)
                    != index.checksum(job.extent, *page)
        };
        let good = !self.store.checksums || (0..PAGES_PER_EXTENT as u32).find(bad).is_none();
        if !good {
            Counters::bump(&self.counters.checksum_errors);
            self.store.tiers[job.from.tier as usize].pool.quarantine(job.from.slab().0);
        }
        good
    }

    fn end(&self, job: &Job, result: std::result::Result<(), Reason>) -> Progress {
        let pin = &self.store.pins[job.extent.0 as usize];
        match result {
            Ok(()) => {
                let slots = &self.store.tiers[job.to.tier as usize];
                slots.set_owner(job.to.slot, Some(job.extent));
                self.store.flip(job.extent, Some(job.to));
                self.store.free(job.from);
                pin.end_move();
                Counters::bump(&self.counters.moved);
                Progress::Moved(job.extent)
            }
            Err(reason) => {
                self.store.free(job.to);
                pin.end_move();
                Progress::Abandoned(job.extent, reason)
            }
        }
    }
}
