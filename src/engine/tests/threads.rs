// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real threads: several sessions, a mover and a keeper on one store at once.
//!
//! Each thread alone writes its *own* pages, one request at a time, so that
//! what a read may return is known to all: the page's step before the read
//! began, the one after it ended, or one between. *Shared* pages are written by
//! all; of those a read knows only that it is whole and of this page.
//!
//! Bounded by requests, not by time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::super::io::{BlockIo, Command};
use super::super::mover::{Mover, Progress, Reason};
use super::super::store::Store;
use super::super::units::ExtentIndex;
use super::memory_tier::{Dice, PAGE, contents};
use super::world::{Desk, EXTENTS, World};

const THREADS: u64 = 3;
const REQUESTS: u64 = 2500;
/// Every fourth step of an own page is a trim, step 0 (never written) included.
const TRIM_EACH: u64 = 4;

/// How far each own page is: steps begun and steps acknowledged.
#[derive(Default)]
struct Steps {
    begun: AtomicU64,
    acked: AtomicU64,
}

type Board = [[Steps; THREADS as usize]; EXTENTS as usize];

/// Close together, so that pages share map words and extents empty often.
fn own_page(extent: u64, thread: u64) -> u64 {
    extent * 512 + 62 + thread
}

/// Across extent borders.
fn shared_page(extent: u64) -> u64 {
    extent * 512 + 511
}

struct Client {
    thread: u64,
    desk: Desk,
    dice: Dice,
    board: Arc<Board>,
}

impl Client {
    /// One request from start to end; the first words of its memory for a read.
    fn ask(&mut self, command: Command, page: u64, count: u32, tag: u64) -> Vec<Vec<u64>> {
        let Desk { session, memory, .. } = &mut self.desk;
        let carries = matches!(command, Command::Read | Command::Write);
        let ticket = session.reserve(if carries { count * PAGE } else { 0 }).unwrap();
        if command == Command::Write {
            for n in 0..count {
                memory.put(ticket.host + n * PAGE, &contents(page + u64::from(n), tag));
            }
        }
        let bytes = u64::from(count * PAGE);
        session.start(ticket.token, command, page * u64::from(PAGE), bytes);
        let mut finished = Vec::with_capacity(256);
        // Time stands still: no deadline may decide anything here.
        for _ in 0..10_000_000u64 {
            session.drive(Duration::ZERO, &mut finished);
            if !finished.is_empty() {
                break;
            }
            thread::yield_now();
        }
        assert!(!finished.is_empty(), "{command:?} of page {page} never finishes");
        assert_eq!(finished[0].result, Ok(()), "{command:?} of page {page}");
        let pages = (0..count).filter(|_| command == Command::Read);
        let pages = pages.map(|n| memory.page(ticket.host + n * PAGE)).collect();
        session.release(ticket.token);
        pages
    }

    fn run(mut self) {
        for request in 0..REQUESTS {
            let extent = self.dice.roll(u64::from(EXTENTS));
            match self.dice.roll(8) {
                0..4 => self.next_step(extent),
                4..6 => {
                    let thread = self.dice.roll(THREADS);
                    self.read_own_page_of(extent, thread);
                }
                6 if extent + 1 < u64::from(EXTENTS) => {
                    let tag = (self.thread + 1) << 20 | request;
                    self.ask(Command::Write, shared_page(extent), 2, tag);
                }
                _ => self.read_shared(extent),
            }
        }
    }

    /// Writes or trims the next value of an own page and reads it back.
    fn next_step(&mut self, extent: u64) {
        let page = own_page(extent, self.thread);
        let board = Arc::clone(&self.board);
        let steps = &board[extent as usize][self.thread as usize];
        let step = steps.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if step.is_multiple_of(TRIM_EACH) {
            let zeroes = step.is_multiple_of(2 * TRIM_EACH);
            let command = if zeroes { Command::WriteZeroes } else { Command::Trim };
            self.ask(command, page, 1, 0);
        } else {
            self.ask(Command::Write, page, 1, step);
        }
        steps.acked.store(step, Ordering::SeqCst);
        self.read_own_page_of(extent, self.thread);
    }

    fn read_own_page_of(&mut self, extent: u64, thread: u64) {
        let page = own_page(extent, thread);
        let board = Arc::clone(&self.board);
        let steps = &board[extent as usize][thread as usize];
        let oldest = steps.acked.load(Ordering::SeqCst);
        let words = self.ask(Command::Read, page, 1, 0).remove(0);
        let newest = steps.begun.load(Ordering::SeqCst);
        let tag = words[0] >> 32;
        assert_eq!(words, contents(page, tag), "page {page} is torn");
        let possible =
            (oldest..=newest).any(|step| tag == if step % TRIM_EACH == 0 { 0 } else { step });
        assert!(possible, "page {page} reads as step {tag}, not in {oldest}..={newest}");
    }

    fn read_shared(&mut self, extent: u64) {
        let page = shared_page(extent);
        let words = self.ask(Command::Read, page, 1, 0).remove(0);
        assert_eq!(words, contents(page, words[0] >> 32), "shared page {page} is torn");
    }
}

/// Moves extents to and fro and takes and gives slabs until told to stop.
fn keep(store: &Store, mover: &mut Mover, dice: &Dice, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match dice.roll(8) {
            0 => assert!(store.take_slab(0).is_ok()),
            1 => assert!(store.release_empty_slab(0).is_ok()),
            _ => {
                let extent = ExtentIndex(dice.roll(u64::from(EXTENTS)) as u32);
                let Some(place) = store.index.place(extent) else { continue };
                let _ = mover.start(place.tier as usize, place.slot, dice.roll(2) as usize);
                while dice.roll(4) > 0 || !mover.has_room() {
                    // Time stands still: no patience may decide anything here.
                    match mover.advance(Duration::ZERO) {
                        Progress::Busy => thread::yield_now(),
                        Progress::Idle | Progress::Abandoned(_, _, Reason::Gone) => {}
                        Progress::Moved(done) => assert_eq!(done.lost_pages, 0),
                        end @ Progress::Abandoned(..) => panic!("{end:?}"),
                    }
                }
            }
        }
    }
    while mover.advance(Duration::ZERO) != Progress::Idle {
        thread::yield_now();
    }
}

#[test]
fn threads_on_one_store_lose_nothing_and_give_every_slot_back() {
    let World { store, tiers, desks, mut mover, .. } = World::new(7, THREADS as usize + 1);
    let board = Arc::<Board>::default();
    let mut clients: Vec<_> = (0..)
        .zip(desks)
        .map(|(thread, desk)| Client {
            thread,
            desk,
            dice: Dice(AtomicU64::new(0x5eed + thread)),
            board: Arc::clone(&board),
        })
        .collect();
    let mut last = clients.pop().unwrap();
    let stop = Arc::<AtomicBool>::default();
    let keeper = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        thread::spawn(move || keep(&store, &mut mover, &Dice(AtomicU64::new(99)), &stop))
    };
    let threads: Vec<_> =
        clients.into_iter().map(|client| thread::spawn(move || client.run())).collect();
    let results: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    stop.store(true, Ordering::Relaxed);
    keeper.join().unwrap();
    for result in results {
        result.unwrap();
    }
    for extent in 0..u64::from(EXTENTS) {
        for thread in 0..THREADS {
            last.read_own_page_of(extent, thread);
        }
        last.read_shared(extent);
    }
    let totals = store.totals();
    assert_eq!((totals.checksum_errors, totals.io_errors, totals.timed_out), (0, 0, 0));
    assert!(totals.moved > 0, "the mover was kept out for the whole test");
    // All trimmed: no page, no slot, no pin and no quarantine is left behind.
    last.ask(Command::Trim, 0, EXTENTS * 512, 0);
    assert_eq!(store.written_pages(), 0);
    while store.release_empty_slab(0).unwrap() {}
    for (tier, slots) in tiers.iter().zip(store.tiers()) {
        let count = slots.count();
        assert_eq!((count.used, count.quarantined), (0, 0));
        assert_eq!(tier.state.held.lock().unwrap().len() as u32, count.held);
    }
    assert_eq!(store.tiers()[0].count().held, 0);
}
