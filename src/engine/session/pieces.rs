// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pieces: one extent's part of a request, from the split to its end.
//!
//! ```text
//!   split ──► begin ──► in flight ──► committed or verified ──► ended
//!               │ ▲         │ a write overtook the read
//!        refused▼ │drive    │
//!              parked ◄─────┘
//! ```
//! A piece holds its extent's pin exactly while it is in flight.

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
    /// When a drive first saw the piece in its present stage. Requests start
    /// between drives, where the session knows no time: it may have slept.
    pub(super) since: Option<Duration>,
    open: Option<OpenPages>,
    writes_begun: u32,
    operations: u32,
    failure: Option<Failure>,
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
        let writes_begun = store.writes_begun[run.extent.0 as usize].load(Ordering::Acquire);
        if store.index.any_open(run) {
            store.unpin(run.extent);
            return false;
        }
        let host = self.pieces[id as usize].host_page;
        let Some(place) = store.index.place(run.extent) else {
            self.zero(host, run.count);
            store.unpin(run.extent);
            self.end_piece(id, None);
            return true;
        };
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
        piece.operations = operations;
        true
    }

    fn begin_write(&mut self, store: &Store, id: u32, run: PageRun) -> bool {
        if !store.pins[run.extent.0 as usize].pin() {
            return false;
        }
        let Some(place) = self.place_for_write(store, run.extent) else {
            store.unpin(run.extent);
            return false;
        };
        let tier = &self.lanes[place.tier as usize];
        let full = tier.lane.pending() + tier.group.len() + 1 > LANE_DEPTH;
        let open = if full { None } else { store.index.open(run) };
        let Some(open) = open else {
            // An extent placed just now and not written is swept.
            store.pins[run.extent.0 as usize].request_sweep();
            store.unpin(run.extent);
            return false;
        };
        store.writes_begun[run.extent.0 as usize].fetch_add(1, Ordering::AcqRel);
        let host = self.pieces[id as usize].host_page;
        if store.checksums {
            for page in host..host + run.count {
                self.checksums[page as usize] =
                    self.memory.crc32c(page * PAGE_BYTES as u32, PAGE_BYTES as u32);
            }
        }
        self.lanes[place.tier as usize].group.push(operation(
            id,
            Direction::Write,
            place,
            run.first,
            host,
            run.count,
        ));
        let piece = &mut self.pieces[id as usize];
        piece.stage = Stage::InFlight;
        piece.since = None;
        piece.place = Some(place);
        piece.open = Some(open);
        piece.operations = 1;
        true
    }

    /// The extent's place, allocated if it has none. The caller holds a pin.
    fn place_for_write(&self, store: &Store, extent: ExtentIndex) -> Option<Place> {
        if let Some(place) = store.index.place(extent) {
            return Some(place);
        }
        let (place, spilled) = store.alloc()?;
        match store.index.settle(extent, place) {
            Ok(()) => {
                if spilled {
                    Counters::bump(&self.counters.spilled);
                }
                store.tiers[place.tier as usize].set_owner(place.slot, Some(extent));
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
    pub(super) fn operation_done(&mut self, store: &Store, done: Done) {
        let piece = &mut self.pieces[done.tag as usize];
        if done.result.is_err() {
            piece.failure = Some(Failure::Io);
            Counters::bump(&self.counters.io_errors);
            if let Some(place) = piece.place {
                store.fault(place.tier);
            }
        }
        piece.operations -= 1;
        if piece.operations == 0 {
            self.piece_done(store, done.tag);
        }
    }

    /// All operations of a piece are back: commit or verify, unpin, end.
    fn piece_done(&mut self, store: &Store, id: u32) {
        let piece = &mut self.pieces[id as usize];
        let run = piece.run.expect("a piece in flight has a run");
        let place = piece.place.expect("a piece in flight has a place");
        let mut failure = piece.failure;
        if let Some(open) = piece.open.take() {
            if failure.is_none() {
                let host = piece.host_page as usize;
                let sums = &self.checksums[host..host + run.count as usize];
                store.index.commit(open, sums.iter().copied());
            } else {
                store.index.abandon(open);
            }
        } else if failure.is_none() && store.checksums {
            match self.verify(store, id, run) {
                Verdict::Good => {}
                Verdict::Overtaken => {
                    store.unpin(run.extent);
                    let piece = &mut self.pieces[id as usize];
                    piece.stage = Stage::Parked;
                    piece.since = None;
                    piece.place = None;
                    Counters::bump(&self.counters.parked);
                    self.parked.push(id);
                    return;
                }
                Verdict::Corrupt => {
                    Counters::bump(&self.counters.checksum_errors);
                    store.tiers[place.tier as usize].pool.quarantine(place.slab().0);
                    failure = Some(Failure::Checksum);
                }
            }
        }
        store.unpin(run.extent);
        self.end_piece(id, failure);
    }

    fn verify(&self, store: &Store, id: u32, run: PageRun) -> Verdict {
        let piece = &self.pieces[id as usize];
        let index = &store.index;
        for page in run.first..run.first + run.count {
            if !index.is_written(run.extent, page) {
                continue;
            }
            let host = (piece.host_page + (page - run.first)) * PAGE_BYTES as u32;
            if self.memory.crc32c(host, PAGE_BYTES as u32) == index.checksum(run.extent, page) {
                continue;
            }
            let begun = store.writes_begun[run.extent.0 as usize].load(Ordering::Acquire);
            return if begun == piece.writes_begun && !index.any_open(run) {
                Verdict::Corrupt
            } else {
                Verdict::Overtaken
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

enum Verdict {
    Good,
    /// A write of these pages began or ended meanwhile: read again.
    Overtaken,
    Corrupt,
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
