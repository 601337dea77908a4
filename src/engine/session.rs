// SPDX-License-Identifier: MIT OR Apache-2.0
//! One I/O thread's way into the store: the [`BlockIo`] that front ends serve from.
//!
//! A request is split into *pieces*, one per extent. A piece that cannot begin
//! (its extent is moving, a page of it is being written, no slot or no room in
//! the lane) is *parked* and tried again at each `drive`. A piece that began
//! holds its extent's pin until its tier has answered. All pieces that begin in
//! one `drive` go to each tier as one group.
//!
//! Every table is allocated by [`Session::new`]; nothing here allocates, waits
//! or locks afterwards.

mod pieces;

use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::error::Result;
use super::io::{BlockIo, Command, Failure, Finished, Idle, Ticket};
use super::mover::PATIENCE;
use super::ranges::Ranges;
use super::store::{Store, TierSlots};
use super::tier::{Done, HostMemory, Lane, LaneSetup, PageOp, Wake};
use super::units::{EXTENT_BYTES, ExtentIndex, PAGE_BYTES};
use pieces::{Piece, Stage};

/// The most requests open at once per session.
pub const MAX_REQUESTS: usize = 256;
/// Operations a lane must be able to hold: twice the worst single piece.
const LANE_DEPTH: usize = 1024;
/// How long a request waits for a slot or a better place where no deadline
/// says so.
const NO_ROOM: Duration = Duration::from_secs(10);
/// What giving a move up may take beyond its patience.
const GIVING_UP: Duration = Duration::from_millis(500);
/// How often deadlines are looked at.
const DEADLINE_CHECK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Reserved,
    /// Pieces are open.
    Running,
    /// Answered; the front end has not released it yet.
    Answered,
    /// Answered or released while a tier still holds its memory.
    Zombie,
}

#[derive(Clone, Debug)]
struct Request {
    phase: Phase,
    released: bool,
    command: Command,
    host_page: u32,
    host_pages: u32,
    pieces: u32,
    failure: Option<Failure>,
}

/// One tier's lane and the group being gathered for it.
struct TierLane {
    lane: Box<dyn Lane>,
    /// The tier gave none: what is there leaves it by another, or fails.
    is_absent: bool,
    group: Vec<PageOp>,
    deadline: Option<Duration>,
}

/// See the module.
pub struct Session {
    store: Arc<Store>,
    /// Taken out only when dropped.
    table: Option<Table>,
}

/// The session's own state; apart from the store so that both can be borrowed.
pub(super) struct Table {
    memory: Arc<dyn HostMemory>,
    ranges: Ranges,
    max_payload: u32,
    requests: Box<[Request]>,
    free_requests: Vec<u32>,
    pieces: Box<[Piece]>,
    free_pieces: Vec<u32>,
    parked: Vec<u32>,
    retry: Vec<u32>,
    finished: Vec<Finished>,
    lanes: Vec<TierLane>,
    done: Vec<Done>,
    /// CRC32C by page of host memory, computed when a write begins.
    checksums: Box<[u32]>,
    counters: Arc<Counters>,
    now: Duration,
    deadlines_checked: Duration,
    running: u32,
    /// In the middle of a change: after a panic, not to be trusted.
    is_changing: bool,
}

impl Session {
    /// A session whose requests' data passes through `memory`; `waker` is rung
    /// by tiers that complete in the background. `max_payload` bytes (whole
    /// pages) of a single request must fit in `memory`.
    pub fn new(
        store: Arc<Store>,
        memory: Arc<dyn HostMemory>,
        max_payload: u32,
        waker: Arc<dyn Wake>,
    ) -> Result<Self> {
        assert!(max_payload as usize <= memory.bytes(), "max_payload exceeds the host memory");
        let lanes = store
            .tiers
            .iter()
            .enumerate()
            .map(|(tier, slots)| {
                let setup = LaneSetup {
                    memory: Arc::clone(&memory),
                    depth: LANE_DEPTH,
                    waker: Arc::clone(&waker),
                };
                let (lane, is_absent) = store.lane(tier as u8, setup)?;
                Ok(TierLane {
                    lane,
                    is_absent,
                    group: Vec::with_capacity(LANE_DEPTH),
                    deadline: slots.setup.deadline,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let host_pages = (memory.bytes() / PAGE_BYTES) as u32;
        // A payload can straddle one extent more than it fills.
        let per_request = max_payload as usize / EXTENT_BYTES + 2;
        let pieces = MAX_REQUESTS * per_request;
        let table = Table {
            counters: store.counters(),
            memory,
            ranges: Ranges::new(host_pages),
            max_payload,
            requests: vec![
                Request {
                    phase: Phase::Free,
                    released: false,
                    command: Command::Flush,
                    host_page: 0,
                    host_pages: 0,
                    pieces: 0,
                    failure: None,
                };
                MAX_REQUESTS
            ]
            .into(),
            free_requests: (0..MAX_REQUESTS as u32).rev().collect(),
            pieces: (0..pieces).map(|_| Piece::default()).collect(),
            free_pieces: (0..pieces as u32).rev().collect(),
            parked: Vec::with_capacity(pieces),
            retry: Vec::with_capacity(pieces),
            finished: Vec::with_capacity(MAX_REQUESTS),
            lanes,
            done: Vec::with_capacity(LANE_DEPTH),
            checksums: vec![0; host_pages as usize].into(),
            now: Duration::ZERO,
            deadlines_checked: Duration::ZERO,
            running: 0,
            is_changing: false,
        };
        for slots in without_lane(&store, &table) {
            slots.session_without_lane();
        }
        Ok(Self { store, table: Some(table) })
    }

    /// True if no tier holds any of this session's memory: it may be dropped.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.table.as_ref().is_none_or(Table::is_quiet)
    }

    fn table(&self) -> &Table {
        self.table.as_ref().expect("the table is there until the session is dropped")
    }

    /// Runs one change. A panic within leaves the table marked.
    fn change<T>(&mut self, change: impl FnOnce(&mut Table, &Store) -> T) -> T {
        let table = self.table.as_mut().expect("the table is there until the session is dropped");
        table.is_changing = true;
        let result = change(table, &self.store);
        table.is_changing = false;
        result
    }
}

fn without_lane<'a>(store: &'a Store, table: &'a Table) -> impl Iterator<Item = &'a TierSlots> {
    let tiers = store.tiers.iter().zip(&table.lanes);
    tiers.filter(|(_, tier)| tier.is_absent).map(|(slots, _)| slots)
}

impl Drop for Session {
    /// A session that ends with operations under way leaves them to the keeper:
    /// what they use, memory, pins and open pages, is given back once their
    /// tiers have answered. After a panic in the middle of a change all of that
    /// is kept for ever, and whoever meets it fails after its deadline.
    fn drop(&mut self) {
        let Some(mut table) = self.table.take() else { return };
        // What is left of it begins nothing any more.
        for slots in without_lane(&self.store, &table) {
            slots.session_without_lane_ended();
        }
        if table.is_quiet() && !table.is_changing {
            return;
        }
        table.begin_anew(&self.store);
        if table.is_changing {
            std::mem::forget(table);
        } else {
            self.store.bequeath(table);
        }
    }
}

impl Table {
    fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|tier| tier.lane.pending() == 0 && tier.group.is_empty())
    }

    fn in_flight(&self) -> impl Iterator<Item = ExtentIndex> {
        let pieces = self.pieces.iter().filter(|piece| matches!(piece.stage, Stage::InFlight));
        pieces.filter_map(|piece| Some(piece.run?.extent))
    }

    /// Another thread goes on, by another clock.
    fn begin_anew(&mut self, store: &Store) {
        self.in_flight().for_each(|extent| store.orphans.insert(extent));
        (self.now, self.deadlines_checked) = (Duration::ZERO, Duration::ZERO);
        self.pieces.iter_mut().for_each(|piece| piece.since = None);
    }

    /// Ends what its session left behind; true: all of it.
    pub(super) fn wind_up(&mut self, store: &Store, now: Duration) -> bool {
        self.in_flight().for_each(|extent| store.orphans.remove(extent));
        self.cancel();
        self.finished.clear();
        let mut finished = std::mem::take(&mut self.finished);
        self.drive(store, now, &mut finished);
        if self.is_quiet() && self.parked.is_empty() {
            return true;
        }
        self.in_flight().for_each(|extent| store.orphans.insert(extent));
        false
    }

    fn cancel(&mut self) {
        std::mem::swap(&mut self.parked, &mut self.retry);
        for n in 0..self.retry.len() {
            let id = self.retry[n];
            self.end_piece(id, Some(Failure::Io));
        }
        self.retry.clear();
    }

    fn end_request(&mut self, token: u32) {
        let request = &mut self.requests[token as usize];
        match request.phase {
            Phase::Running => {
                request.phase = Phase::Answered;
                let result = request.failure.map_or(Ok(()), Err);
                if result.is_ok() {
                    self.counters.answered(request.command, request.host_pages);
                }
                self.running -= 1;
                self.finished.push(Finished { token, result });
            }
            Phase::Zombie => {
                request.phase = Phase::Answered;
                if request.released {
                    self.forget(token);
                }
            }
            phase => unreachable!("a request in phase {phase:?} has no pieces"),
        }
    }

    /// Frees the ticket and its memory.
    fn forget(&mut self, token: u32) {
        let request = &mut self.requests[token as usize];
        request.phase = Phase::Free;
        self.ranges.give(request.host_page, request.host_pages);
        self.free_requests.push(token);
    }

    fn check_deadlines(&mut self, store: &Store) {
        if self.now < self.deadlines_checked + DEADLINE_CHECK {
            return;
        }
        self.deadlines_checked = self.now;
        for id in 0..self.pieces.len() {
            let piece = &mut self.pieces[id];
            let (Stage::InFlight, Some(place)) = (&piece.stage, piece.place) else { continue };
            let Some(deadline) = self.lanes[place.tier as usize].deadline else { continue };
            let since = *piece.since.get_or_insert(self.now);
            if piece.lost || piece.pending[0] == 0 || self.now <= since + deadline {
                continue;
            }
            piece.lost = true;
            let tiers = [Some(place), piece.copy];
            for (place, pending) in tiers.into_iter().zip(piece.pending) {
                if let Some(place) = place {
                    store.tiers[place.tier as usize].operations_lost(pending);
                }
            }
            store.fault(place.tier);
            Counters::bump(&self.counters.timed_out);
            Counters::bump(&self.counters.tiers[place.tier as usize].timed_out);
            let token = piece.request;
            let request = &mut self.requests[token as usize];
            if request.phase == Phase::Running {
                request.phase = Phase::Zombie;
                self.running -= 1;
                self.finished.push(Finished { token, result: Err(Failure::TimedOut) });
            }
        }
    }

    fn reserve(&mut self, payload: u32) -> Option<Ticket> {
        let token = *self.free_requests.last()?;
        let pages = payload.div_ceil(PAGE_BYTES as u32);
        let host_page = self.ranges.take(pages)?;
        self.free_requests.pop();
        let request = &mut self.requests[token as usize];
        request.phase = Phase::Reserved;
        request.released = false;
        request.host_page = host_page;
        request.host_pages = pages;
        Some(Ticket { token, host: host_page * PAGE_BYTES as u32 })
    }

    fn start(&mut self, store: &Store, token: u32, command: Command, offset: u64, bytes: u64) {
        let request = &mut self.requests[token as usize];
        assert_eq!(request.phase, Phase::Reserved, "a request is started once");
        request.phase = Phase::Running;
        request.command = command;
        request.failure = None;
        // A piece may end within the split; this keeps the request open until all exist.
        request.pieces = 1;
        self.running += 1;
        let page = PAGE_BYTES as u64;
        let within = offset.checked_add(bytes).is_some_and(|end| end <= store.device_bytes())
            && offset.is_multiple_of(page)
            && bytes.is_multiple_of(page);
        let room = u64::from(request.host_pages) * page;
        let carries_data = matches!(command, Command::Read | Command::Write);
        if command != Command::Flush {
            if !within || (carries_data && bytes > room) {
                request.failure = Some(Failure::OutOfRange);
            } else if carries_data {
                self.split(store, token, offset, bytes);
            } else if bytes > 0 {
                self.add_trim(store, token, offset, bytes);
            }
        }
        self.requests[token as usize].pieces -= 1;
        if self.requests[token as usize].pieces == 0 {
            self.end_request(token);
        }
    }

    fn drive(&mut self, store: &Store, now: Duration, finished: &mut Vec<Finished>) {
        self.now = now;
        if !self.parked.is_empty() {
            self.retry_parked(store);
        }
        for n in 0..self.lanes.len() {
            let TierLane { lane, group, .. } = &mut self.lanes[n];
            if !group.is_empty() {
                for operation in &*group {
                    self.pieces[operation.tag as usize].submitted = now;
                    self.counters.tiers[n].given(operation);
                }
                lane.submit(group);
                group.clear();
            }
            if lane.pending() == 0 {
                continue;
            }
            let mut done = std::mem::take(&mut self.done);
            lane.poll(&mut done);
            for done in done.drain(..) {
                self.operation_done(store, n as u8, done);
            }
            self.done = done;
        }
        self.check_deadlines(store);
        finished.append(&mut self.finished);
    }

    fn retry_parked(&mut self, store: &Store) {
        std::mem::swap(&mut self.parked, &mut self.retry);
        for n in 0..self.retry.len() {
            let id = self.retry[n];
            let token = self.pieces[id as usize].request as usize;
            if self.requests[token].phase == Phase::Zombie {
                // Its failure was answered: whoever asked may have written again.
                self.end_piece(id, None);
                continue;
            }
            let since = *self.pieces[id as usize].since.get_or_insert(self.now);
            if self.begin(store, id) {
                self.counters.was_parked(self.now.saturating_sub(since));
                continue;
            }
            if let Some(failure) = self.is_stuck(store, id) {
                Counters::bump(&self.counters.timed_out);
                self.end_piece(id, Some(failure));
            } else {
                self.parked.push(id);
            }
        }
        self.retry.clear();
    }

    /// Why a parked piece waits no longer, if it waited long enough: for pages
    /// that a tier which stopped answering still holds, or a session that is
    /// lost; for a place in another tier that the keeper cannot find; for a slot
    /// where none is left.
    fn is_stuck(&mut self, store: &Store, id: u32) -> Option<Failure> {
        let piece = &self.pieces[id as usize];
        let waited = self.now.saturating_sub(piece.since?);
        let run = piece.run?;
        let Some(place) = store.index.place(run.extent) else {
            return (waited > NO_ROOM).then_some(Failure::Io);
        };
        let slots = &store.tiers[place.tier as usize];
        // In a mirror the entry may have left the tier that still holds the page.
        let deadline = if store.is_mirrored() {
            store.tiers.iter().filter_map(|tier| tier.setup.deadline).max()
        } else {
            slots.setup.deadline
        };
        let patience = if slots.is_faulty() || store.orphans.contains(run.extent) {
            // A move that is under way may still bring the pages to safety; one
            // that cannot is given up before.
            deadline.unwrap_or(NO_ROOM).max(PATIENCE) + GIVING_UP
        } else {
            // A thread that hangs in a driver's call tells nobody.
            deadline? * 2 + PATIENCE
        };
        (waited > patience).then_some(Failure::TimedOut)
    }

    fn release(&mut self, token: u32) {
        let request = &mut self.requests[token as usize];
        request.released = true;
        match request.phase {
            Phase::Reserved | Phase::Answered => self.forget(token),
            Phase::Zombie => {}
            phase => unreachable!("release of a request in phase {phase:?}"),
        }
    }

    fn idle(&self) -> Idle {
        let owed = self.lanes.iter().any(|tier| tier.lane.pending() > 0);
        if self.running == 0 {
            // What was given up is collected by looking, and holds its extent till then.
            return if owed { Idle::Woken } else { Idle::Empty };
        }
        let mut working = self.lanes.iter().filter(|tier| tier.lane.pending() > 0);
        if working.clone().any(|tier| tier.lane.needs_polling()) {
            return Idle::Device;
        }
        // A tier that hangs rings nothing: its deadline is found by looking.
        let polled = working.any(|tier| tier.deadline.is_some());
        if polled || !self.parked.is_empty() || !self.finished.is_empty() {
            Idle::Poll
        } else {
            Idle::Woken
        }
    }
}

impl BlockIo for Session {
    fn enter(&mut self) {
        self.change(|table, _| table.lanes.iter_mut().for_each(|tier| tier.lane.enter()));
    }

    fn device_bytes(&self) -> u64 {
        self.store.device_bytes()
    }

    fn memory(&self) -> &Arc<dyn HostMemory> {
        &self.table().memory
    }

    fn max_requests(&self) -> usize {
        MAX_REQUESTS
    }

    fn max_payload(&self) -> u32 {
        self.table().max_payload
    }

    fn reserve(&mut self, payload: u32) -> Option<Ticket> {
        self.change(|table, _| table.reserve(payload))
    }

    fn start(&mut self, token: u32, command: Command, offset: u64, bytes: u64) {
        self.change(|table, store| table.start(store, token, command, offset, bytes));
    }

    fn drive(&mut self, now: Duration, finished: &mut Vec<Finished>) {
        self.change(|table, store| table.drive(store, now, finished));
    }

    fn cancel(&mut self) {
        self.change(|table, _| table.cancel());
    }

    fn release(&mut self, token: u32) {
        self.change(|table, _| table.release(token));
    }

    fn idle(&self) -> Idle {
        self.table().idle()
    }

    fn lose(self) {
        drop(self);
    }
}
