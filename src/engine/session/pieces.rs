// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pieces: one extent's part of a request, from the split to its end.
//!
//! ```text
//!   split ──► begin ──► in flight ──► committed or verified ──► ended
//!               │ ▲         │ a write overtook the read, or the mirror
//!        refused▼ │drive    │ is to be asked
//!              parked ◄─────┘
//! ```
//! A piece holds its extent's pin exactly while it is in flight.
//!
//! In a mirrored store a write in flight is two operations, one to the place and
//! one to the copy. When only the place fails, the entry is diverted to the copy
//! before the write is committed: an entry never names a place without what was
//! acknowledged.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::counters::Counters;
use super::super::index::{OpenPages, PageRun, Place};
use super::super::io::{Command, Failure};
use super::super::store::Store;
use super::super::tier::{Direction, Done, PageOp};
use super::super::units::{ExtentIndex, PAGE_BYTES, PAGES_PER_EXTENT};
use super::{LANE_DEPTH, Table};

/// Extents a trim clears before the thread looks at other requests again.
const TRIM_BATCH: u32 = 64;

/// Operations that a failed tier may owe before it is asked for nothing more. With
/// the 128 requests that the kernel has open at most, all under way when the tier
/// falls silent, they are fewer than [`super::MAX_REQUESTS`].
const OWED: u32 = 32;
const _: () = assert!(OWED as usize + 128 < super::MAX_REQUESTS);

#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Free,
    Parked,
    InFlight,
}

#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) stage: Stage,
    pub(super) request: u32,
    pub(super) run: Option<PageRun>,
    host_page: u32,
    /// For trims: extents still to do, from the run's extent on.
    through: u32,
    pub(super) place: Option<Place>,
    /// Where else a write goes.
    pub(super) copy: Option<Place>,
    /// A read that goes to the copy because the place failed.
    from_copy: bool,
    /// A write whose extent left its old place for this write alone.
    moved: bool,
    /// When a drive first saw the piece in its present stage. Requests start
    /// between drives, where the session knows no time: it may have slept.
    pub(super) since: Option<Duration>,
    /// When its operations were handed to their tiers.
    pub(super) submitted: Duration,
    /// Given up: whoever asked has been answered.
    pub(super) lost: bool,
    open: Option<OpenPages>,
    writes_begun: u32,
    /// Operations not answered yet: at the place, at the copy.
    pub(super) pending: [u32; 2],
    /// Whether one failed there.
    failed: [bool; 2],
    failure: Option<Failure>,
}

/// What became of a write whose extent should leave its place.
enum Elsewhere {
    Begun,
    Park,
    /// There is no better place.
    InPlace,
    /// There is, and the extent cannot be moved there.
    Stays,
}

impl Table {
    pub(super) fn split(&mut self, store: &Store, token: u32, offset: u64, bytes: u64) {
        let page_bytes = PAGE_BYTES as u64;
        let mut page = offset / page_bytes;
        let end = (offset + bytes) / page_bytes;
        let mut host_page = self.requests[token as usize].host_page;
        while page < end {
            let extent = ExtentIndex((page / PAGES_PER_EXTENT as u64) as u32);
            let first = (page % PAGES_PER_EXTENT as u64) as u32;
            let count = u64::from(PAGES_PER_EXTENT as u32 - first).min(end - page) as u32;
            let run = PageRun { extent, first, count };
            self.add_piece(store, token, run, host_page, 0);
            page += u64::from(count);
            host_page += count;
        }
    }

    /// A trim is one piece that walks its extents.
    pub(super) fn add_trim(&mut self, store: &Store, token: u32, offset: u64, bytes: u64) {
        let page = offset / PAGE_BYTES as u64;
        let end = (offset + bytes) / PAGE_BYTES as u64;
        let extent = ExtentIndex((page / PAGES_PER_EXTENT as u64) as u32);
        let first = (page % PAGES_PER_EXTENT as u64) as u32;
        let count = u64::from(PAGES_PER_EXTENT as u32 - first).min(end - page) as u32;
        let last_pages = (end - page - u64::from(count)) as u32;
        self.add_piece(store, token, PageRun { extent, first, count }, 0, last_pages);
    }

    fn add_piece(&mut self, store: &Store, token: u32, run: PageRun, host_page: u32, through: u32) {
        let id = self.free_pieces.pop().expect("a piece for each extent of each request");
        self.pieces[id as usize] = Piece {
            stage: Stage::Parked,
            request: token,
            run: Some(run),
            host_page,
            through,
            ..Piece::default()
        };
        self.requests[token as usize].pieces += 1;
        if !self.begin(store, id) {
            Counters::bump(&self.counters.parked);
            self.parked.push(id);
        }
    }

    /// Begins (or continues) a piece; false: park it.
    pub(super) fn begin(&mut self, store: &Store, id: u32) -> bool {
        let piece = &self.pieces[id as usize];
        let run = piece.run.expect("a piece in use has a run");
        match self.requests[piece.request as usize].command {
            Command::Read => self.begin_read(store, id, run),
            Command::Write => self.begin_write(store, id, run),
            Command::Trim | Command::WriteZeroes => self.trim(store, id),
            Command::Flush => unreachable!("a flush has no pieces"),
        }
    }

    fn begin_read(&mut self, store: &Store, id: u32, run: PageRun) -> bool {
        let pin = &store.pins[run.extent.0 as usize];
        if !pin.pin() {
            return false;
        }
        store.heat.read(run.extent);
        let writes_begun = store.writes_begun[run.extent.0 as usize].load(Ordering::Acquire);
        if store.index.any_open(run) {
            store.unpin(run.extent);
            return false;
        }
        if store.index.any_bad(run) {
            store.unpin(run.extent);
            self.end_piece(id, Some(Failure::Io));
            return true;
        }
        let host = self.pieces[id as usize].host_page;
        let Some(mut place) = store.index.place(run.extent) else {
            self.zero(host, run.count);
            store.unpin(run.extent);
            self.end_piece(id, None);
            return true;
        };
        if let Some(copy) = store.copy_of(run.extent)
            && (self.pieces[id as usize].from_copy || store.must_leave(place))
        {
            place = copy;
        }
        if self.lanes[place.tier as usize].is_absent
            && store.must_leave(place)
            && !store.is_lost(place)
            && store.index.runs(run).any(|(_, _, written)| written)
        {
            // The mover may still have a way to it.
            store.unpin(run.extent);
            let Elsewhere::Stays = ask_for_move(store, run.extent) else { return false };
            self.end_piece(id, Some(Failure::Io));
            return true;
        }
        if is_silent(store, place) && store.index.runs(run).any(|(_, _, written)| written) {
            store.unpin(run.extent);
            self.give_up(id, place);
            return true;
        }
        let tier = &mut self.lanes[place.tier as usize];
        // At most one operation a page: concurrent trims and commits can split
        // runs finer than any settled state has them.
        if tier.lane.pending() + tier.group.len() + run.count as usize > LANE_DEPTH {
            store.unpin(run.extent);
            return false;
        }
        let mut operations = 0;
        for (first, count, written) in store.index.runs(run) {
            let at = host + (first - run.first);
            if written {
                tier.group.push(operation(id, Direction::Read, place, first, at, count));
                operations += 1;
            } else {
                self.memory.zero(at * PAGE_BYTES as u32, count * PAGE_BYTES as u32);
            }
        }
        if operations == 0 {
            store.unpin(run.extent);
            self.end_piece(id, None);
            return true;
        }
        let piece = &mut self.pieces[id as usize];
        piece.stage = Stage::InFlight;
        piece.since = None;
        piece.place = Some(place);
        piece.writes_begun = writes_begun;
        piece.pending = [operations, 0];
        piece.failed = [false; 2];
        true
    }

    fn begin_write(&mut self, store: &Store, id: u32, run: PageRun) -> bool {
        if let Some(place) = store.index.place(run.extent)
            && store.must_leave(place)
            && !store.is_mirrored()
        {
            match self.write_elsewhere(store, id, run, place) {
                Elsewhere::Begun => return true,
                Elsewhere::Park => return false,
                Elsewhere::Stays => {
                    self.end_piece(id, Some(Failure::Io));
                    return true;
                }
                Elsewhere::InPlace => {}
            }
        }
        if !store.pins[run.extent.0 as usize].pin() {
            return false;
        }
        store.heat.write(run.extent);
        let Some(mut place) = self.place_for_write(store, run.extent) else {
            store.unpin(run.extent);
            return false;
        };
        if let Some(copy) = store.copy_of(run.extent)
            && store.must_leave(place)
        {
            let diverted = store.index.divert(run.extent, place, copy);
            debug_assert!(diverted, "only a diversion changes a place under a pin");
            place = copy;
        }
        if is_silent(store, place) {
            // An extent placed just now and not written is swept.
            store.pins[run.extent.0 as usize].request_sweep();
            store.unpin(run.extent);
            self.give_up(id, place);
            return true;
        }
        let copy = store.copy_of(run.extent).filter(|copy| *copy != place);
        let full = !self.has_room(place) || copy.is_some_and(|copy| !self.has_room(copy));
        let open = if full { None } else { store.index.open(run) };
        let Some(open) = open else {
            // An extent placed just now and not written is swept.
            store.pins[run.extent.0 as usize].request_sweep();
            store.unpin(run.extent);
            return false;
        };
        self.send_write(store, id, open, place, copy);
        true
    }

    /// Ends a piece that only a silent tier could have answered.
    fn give_up(&mut self, id: u32, place: Place) {
        Counters::bump(&self.counters.timed_out);
        Counters::bump(&self.counters.tiers[place.tier as usize].timed_out);
        self.end_piece(id, Some(Failure::TimedOut));
    }

    fn has_room(&self, place: Place) -> bool {
        let tier = &self.lanes[place.tier as usize];
        tier.lane.pending() + tier.group.len() < LANE_DEPTH
    }

    /// Hands a write to its tiers. The caller holds a pin, which the piece keeps.
    fn send_write(
        &mut self,
        store: &Store,
        id: u32,
        open: OpenPages,
        place: Place,
        copy: Option<Place>,
    ) {
        let run = open.run();
        store.writes_begun[run.extent.0 as usize].fetch_add(1, Ordering::AcqRel);
        let host = self.pieces[id as usize].host_page;
        if store.checksums {
            for page in host..host + run.count {
                self.checksums[page as usize] =
                    self.memory.crc32c(page * PAGE_BYTES as u32, PAGE_BYTES as u32);
            }
        }
        for place in [Some(place), copy].into_iter().flatten() {
            let operation = operation(id, Direction::Write, place, run.first, host, run.count);
            self.lanes[place.tier as usize].group.push(operation);
        }
        let piece = &mut self.pieces[id as usize];
        piece.stage = Stage::InFlight;
        piece.since = None;
        piece.place = Some(place);
        piece.copy = copy;
        piece.open = Some(open);
        piece.pending = [1, u32::from(copy.is_some())];
        piece.failed = [false; 2];
    }

    /// Writes to an extent of a faulty tier do not go there. One that covers all
    /// that the extent has takes it along to a new place; for any other the
    /// keeper has to move the extent first. Where the tier is lost, nobody can:
    /// then the rest of what it has is given up.
    fn write_elsewhere(&mut self, store: &Store, id: u32, run: PageRun, place: Place) -> Elsewhere {
        let pin = &store.pins[run.extent.0 as usize];
        if !pin.want() {
            return Elsewhere::Park;
        }
        let is_lost = store.is_lost(place);
        if !pin.try_own() {
            pin.withdraw();
            // Whoever works on a lost tier is answered in a moment.
            return if is_lost { Elsewhere::Park } else { ask_for_move(store, run.extent) };
        }
        let index = &store.index;
        let unchanged = index.place(run.extent) == Some(place);
        let is_free =
            (is_lost || index.is_covered_by(run)) && !index.any_open(PageRun::whole(run.extent));
        if !unchanged || !is_free {
            pin.end_move();
            if !unchanged {
                return Elsewhere::Park;
            }
            if !store.has_spill() {
                return Elsewhere::InPlace;
            }
            return ask_for_move(store, run.extent);
        }
        let new = store.alloc(run.extent);
        let is_better = |to: Place| to.tier != place.tier && !is_silent(store, to);
        let Some((to, spilled)) = new.filter(|(to, _)| is_better(*to)) else {
            if let Some((to, _)) = new {
                store.free(to);
            }
            pin.end_move();
            return Elsewhere::InPlace;
        };
        if !self.has_room(to) {
            store.free(to);
            pin.end_move();
            return Elsewhere::Park;
        }
        // Before the new place is named, which has none of them.
        let lost = index.lose_outside(run);
        Counters::raise(&self.counters.lost_pages, lost.into());
        let open = index.open(run).expect("an owned extent has no open page");
        if spilled {
            Counters::bump(&self.counters.spilled);
        }
        store.heat.write(run.extent);
        store.settled(run.extent, to);
        store.flip(run.extent, Some(to));
        store.free(place);
        pin.end_move_pinned();
        self.pieces[id as usize].moved = true;
        self.send_write(store, id, open, to, None);
        Elsewhere::Begun
    }

    /// The extent's place, allocated if it has none. The caller holds a pin.
    fn place_for_write(&self, store: &Store, extent: ExtentIndex) -> Option<Place> {
        if let Some(place) = store.index.place(extent) {
            return Some(place);
        }
        let (place, spilled) = store.alloc(extent)?;
        match store.index.settle(extent, place) {
            Ok(()) => {
                if spilled {
                    Counters::bump(&self.counters.spilled);
                }
                store.settled(extent, place);
                Some(place)
            }
            Err(winner) => {
                store.free(place);
                Some(winner)
            }
        }
    }

    /// Clears extents from the piece's cursor on; false: more to do, or an
    /// extent in the way.
    fn trim(&mut self, store: &Store, id: u32) -> bool {
        for _ in 0..TRIM_BATCH {
            let piece = &mut self.pieces[id as usize];
            let run = piece.run.expect("a trim has a run until it ends");
            let pin = &store.pins[run.extent.0 as usize];
            if !pin.pin() {
                return false;
            }
            store.index.clear_written(run);
            if store.index.place(run.extent).is_some() {
                pin.request_sweep();
            }
            store.unpin(run.extent);
            if piece.through == 0 {
                self.end_piece(id, None);
                return true;
            }
            piece.since = None;
            let count = piece.through.min(PAGES_PER_EXTENT as u32);
            piece.through -= count;
            piece.run = Some(PageRun { extent: ExtentIndex(run.extent.0 + 1), first: 0, count });
        }
        false
    }

    fn zero(&self, host_page: u32, pages: u32) {
        self.memory.zero(host_page * PAGE_BYTES as u32, pages * PAGE_BYTES as u32);
    }

    /// A tier reported one operation of a piece.
    pub(super) fn operation_done(&mut self, store: &Store, tier: u8, done: Done) {
        let piece = &mut self.pieces[done.tag as usize];
        let at_copy = piece.copy.is_some_and(|copy| copy.tier == tier);
        let side = usize::from(at_copy);
        let counted = &self.counters.tiers[tier as usize];
        if done.result.is_err() {
            piece.failed[side] = true;
            Counters::bump(&self.counters.io_errors);
            Counters::bump(&counted.faults);
            store.fault(tier);
        } else if piece.open.is_some() {
            Counters::bump(&counted.writes);
            counted.write_times.count(self.now.saturating_sub(piece.submitted));
        } else {
            Counters::bump(&counted.reads);
            counted.read_times.count(self.now.saturating_sub(piece.submitted));
        }
        if piece.lost {
            store.tiers[tier as usize].operation_found();
        }
        piece.pending[side] -= 1;
        if piece.pending == [0, 0] {
            self.piece_done(store, done.tag);
        }
    }

    /// All operations of a piece are back: commit or verify, unpin, end.
    fn piece_done(&mut self, store: &Store, id: u32) {
        let piece = &mut self.pieces[id as usize];
        let run = piece.run.expect("a piece in flight has a run");
        let place = piece.place.expect("a piece in flight has a place");
        let [at_place, at_copy] = piece.failed;
        let mut failure = piece.failure;
        if let Some(open) = piece.open.take() {
            let saved = match piece.copy {
                Some(copy) if at_place && !at_copy => store.index.divert(run.extent, place, copy),
                _ => !at_place && !at_copy,
            };
            if saved {
                let host = piece.host_page as usize;
                let sums = &self.checksums[host..host + run.count as usize];
                store.index.commit(open, sums.iter().copied());
            } else {
                failure = failure.or(Some(Failure::Io));
                // What was there before is gone, or is not the same in both.
                if piece.moved || (at_copy && !at_place) {
                    store.index.abandon_lost(open);
                } else {
                    store.index.abandon(open);
                }
            }
        } else if at_place {
            if self.asks_the_copy(store, id, run, place) {
                return;
            }
            failure = failure.or(Some(Failure::Io));
        } else if failure.is_none() && store.checksums {
            match self.verify(store, id, run) {
                Verdict::Good => {}
                Verdict::Overtaken => return self.read_again(store, id, run),
                Verdict::Corrupt => {
                    Counters::bump(&self.counters.checksum_errors);
                    Counters::bump(&self.counters.tiers[place.tier as usize].checksum_errors);
                    store.tiers[place.tier as usize].pool.quarantine(place.slab().0);
                    store.call_keeper();
                    if self.asks_the_copy(store, id, run, place) {
                        return;
                    }
                    failure = Some(Failure::Checksum);
                }
                Verdict::AllOnes => {
                    Counters::bump(&self.counters.io_errors);
                    Counters::bump(&self.counters.tiers[place.tier as usize].faults);
                    store.fault(place.tier);
                    store.call_keeper();
                    if self.asks_the_copy(store, id, run, place) {
                        return;
                    }
                    failure = Some(Failure::Io);
                }
            }
        }
        if self.pieces[id as usize].from_copy && failure.is_none() {
            Counters::bump(&self.counters.rescued);
        }
        store.unpin(run.extent);
        self.end_piece(id, failure);
    }

    /// Parks a read that its place could not answer for the mirror's copy; false:
    /// there is none, or it was the one that failed.
    fn asks_the_copy(&mut self, store: &Store, id: u32, run: PageRun, place: Place) -> bool {
        if store.copy_of(run.extent).is_none_or(|copy| copy == place) {
            return false;
        }
        self.pieces[id as usize].from_copy = true;
        self.read_again(store, id, run);
        true
    }

    fn read_again(&mut self, store: &Store, id: u32, run: PageRun) {
        store.unpin(run.extent);
        let piece = &mut self.pieces[id as usize];
        piece.stage = Stage::Parked;
        piece.since = None;
        piece.place = None;
        Counters::bump(&self.counters.parked);
        self.parked.push(id);
    }

    fn verify(&self, store: &Store, id: u32, run: PageRun) -> Verdict {
        let piece = &self.pieces[id as usize];
        let index = &store.index;
        for page in run.first..run.first + run.count {
            let host = (piece.host_page + (page - run.first)) * PAGE_BYTES as u32;
            if !index.is_written(run.extent, page) {
                // Discarded since the operation began: what it read may be half of
                // a write that failed.
                self.memory.zero(host, PAGE_BYTES as u32);
                continue;
            }
            if self.memory.crc32c(host, PAGE_BYTES as u32) == index.checksum(run.extent, page) {
                continue;
            }
            let begun = store.writes_begun[run.extent.0 as usize].load(Ordering::Acquire);
            return if begun != piece.writes_begun || index.any_open(run) {
                Verdict::Overtaken
            } else if store.is_unreachable(piece.place, &*self.memory, host) {
                Verdict::AllOnes
            } else {
                Verdict::Corrupt
            };
        }
        Verdict::Good
    }

    pub(super) fn end_piece(&mut self, id: u32, failure: Option<Failure>) {
        let token = self.pieces[id as usize].request;
        self.pieces[id as usize] = Piece::default();
        self.free_pieces.push(id);
        let request = &mut self.requests[token as usize];
        request.failure = request.failure.or(failure);
        request.pieces -= 1;
        if request.pieces == 0 {
            self.end_request(token);
        }
    }
}

/// True if the tier failed and owes too many answers to be asked for more: each
/// question that it never answers keeps a request and its memory, and those of the
/// other tiers would be out of them in the end. A tier without a deadline is slow,
/// not silent.
fn is_silent(store: &Store, place: Place) -> bool {
    let slots = &store.tiers[place.tier as usize];
    slots.setup.deadline.is_some() && slots.is_faulty() && slots.lost_operations() >= OWED
}

/// Whoever finds that an extent stays where it is has waited long enough.
fn ask_for_move(store: &Store, extent: ExtentIndex) -> Elsewhere {
    if store.staying.contains(extent) {
        return Elsewhere::Stays;
    }
    store.urge(extent);
    Elsewhere::Park
}

enum Verdict {
    Good,
    /// A write of these pages began or ended meanwhile: read again.
    Overtaken,
    Corrupt,
    /// The device cannot be reached; what it holds may be right.
    AllOnes,
}

fn operation(
    tag: u32,
    direction: Direction,
    place: Place,
    first: u32,
    host_page: u32,
    pages: u32,
) -> PageOp {
    PageOp {
        tag,
        direction,
        slab: place.slab(),
        offset: place.slot.byte_in_slab() + first * PAGE_BYTES as u32,
        host: host_page * PAGE_BYTES as u32,
        bytes: pages * PAGE_BYTES as u32,
    }
}
