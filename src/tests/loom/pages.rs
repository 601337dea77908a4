// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages: writers against readers, writers and the sweep, as the session
//! orders its steps (`src/engine/session/pieces.rs`) over the real index, lock
//! and slot pool.
//!
//! A tier's memory is one atomic per half page, released by the write and
//! acquired by the read, which is what a tier promises between an operation it
//! completed and one submitted afterwards, and no more.
//!
//! That these models can fail was tried; each of these was caught. In
//! `index.rs`: open, the look for open pages, or the look at a checksum acquires
//! nothing; commit releases nothing with the checksum, the written bit or the
//! closed journal; commit closes the journal first, or forgets a word of the
//! written map; open does not refuse; a refused open gives back another writer's
//! bits, or keeps its own; settle overwrites; an extent with written pages counts
//! as vacant. In the session's order of steps: a read does not look for open
//! pages, does not count writes, or counts them late; a write is not counted, or
//! counted after its data; a write settles its extent without a pin; the sweep
//! frees the slot before the flip; a write out of a lost tier gives up no page.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread::{self, yield_now};
use sluice_loom::explore;
use sluice_loom::index::{Index, OpenPages, PageRun, Place};
use sluice_loom::pins::{Pin, Unpinned};
use sluice_loom::slots::SlotPool;
use sluice_loom::units::{ExtentIndex, SlabIndex, SlotIndex};

const EXTENT: ExtentIndex = ExtentIndex(0);
/// Two pages on both sides of a border between map words.
const PAGE: u32 = 63;
/// Slots that are in play.
const SLOTS: usize = 2;

fn run(first: u32, count: u32) -> PageRun {
    PageRun { extent: EXTENT, first, count }
}

fn place(slot: u32) -> Place {
    Place { tier: 0, slot: SlotIndex(slot) }
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    Data(u32),
    Zeros,
    /// To be tried again.
    Parked,
    Corrupt,
}

/// A store of one extent and one slab.
struct Store {
    index: Index,
    pin: Pin,
    pool: SlotPool,
    writes_begun: AtomicU32,
    /// The page's two halves, for the models with a reader.
    halves: [AtomicU32; 2],
    /// The page in each slot, for the models without: only who opened the
    /// page touches it.
    pages: [UnsafeCell<()>; SLOTS],
}

impl Store {
    fn new() -> Arc<Self> {
        let pool = SlotPool::new(1);
        assert!(pool.open(0));
        Arc::new(Self {
            index: Index::new(1),
            pin: Pin::default(),
            pool,
            writes_begun: AtomicU32::new(0),
            halves: [AtomicU32::new(0), AtomicU32::new(0)],
            pages: [UnsafeCell::new(()), UnsafeCell::new(())],
        })
    }

    /// One whose page was written with `data`.
    fn written(data: u32) -> Arc<Self> {
        let store = Self::new();
        assert_eq!(store.write(data), Ok(()));
        store
    }

    fn pin(&self) {
        while !self.pin.pin() {
            yield_now();
        }
    }

    /// As `Store::unpin`.
    fn unpin(&self) {
        if self.pin.unpin() == Unpinned::Sweep {
            if self.index.is_vacant(EXTENT)
                && let Some(place) = self.index.place(EXTENT)
            {
                self.index.flip(EXTENT, None);
                self.pool.free(0, place.slot.within());
            }
            self.pin.end_sweep();
        }
    }

    /// As `Table::place_for_write`.
    fn place_for_write(&self) -> Place {
        if let Some(place) = self.index.place(EXTENT) {
            return place;
        }
        let (slab, within) = self.pool.alloc().expect("slots enough");
        let place = Place { tier: 0, slot: SlotIndex::new(SlabIndex(slab), within) };
        match self.index.settle(EXTENT, place) {
            Ok(()) => place,
            Err(winner) => {
                self.pool.free(slab, within);
                winner
            }
        }
    }

    /// As `Table::begin_write`.
    fn begin_write(&self, run: PageRun) -> Option<(Place, OpenPages)> {
        self.pin();
        let place = self.place_for_write();
        let Some(open) = self.index.open(run) else {
            self.pin.request_sweep();
            self.unpin();
            return None;
        };
        self.writes_begun.fetch_add(1, Ordering::AcqRel);
        Some((place, open))
    }

    /// A whole write of the page; `Err`: parked.
    fn write(&self, data: u32) -> Result<(), ()> {
        let (_, open) = self.begin_write(run(PAGE, 1)).ok_or(())?;
        for half in &self.halves {
            half.store(data, Ordering::Release);
        }
        self.index.commit(open, [data]);
        self.unpin();
        Ok(())
    }

    /// As `Table::begin_read`, `piece_done` and `verify`; the "checksum" of a
    /// page is its value, of a torn page it is none that was ever stored.
    fn read(&self) -> Read {
        self.pin();
        let answer = self.read_pinned();
        self.unpin();
        answer
    }

    fn read_pinned(&self) -> Read {
        let begun = self.writes_begun.load(Ordering::Acquire);
        if self.index.any_open(run(PAGE, 1)) {
            return Read::Parked;
        }
        if self.index.place(EXTENT).is_none() {
            return Read::Zeros;
        }
        let (_, _, written) = self.index.runs(run(PAGE, 1)).next().unwrap();
        let data = if written {
            let [low, high] = [0, 1].map(|n: usize| self.halves[n].load(Ordering::Acquire));
            if low == high { low } else { u32::MAX }
        } else {
            0
        };
        let answer = if written { Read::Data(data) } else { Read::Zeros };
        if !self.index.is_written(EXTENT, PAGE) || self.index.checksum(EXTENT, PAGE) == data {
            return answer;
        }
        if self.writes_begun.load(Ordering::Acquire) == begun && !self.index.any_open(run(PAGE, 1))
        {
            Read::Corrupt
        } else {
            Read::Parked
        }
    }

    fn trim(&self) {
        self.pin();
        self.index.clear_written(PageRun::whole(EXTENT));
        if self.index.place(EXTENT).is_some() {
            self.pin.request_sweep();
        }
        self.unpin();
    }

    /// A write whose data only the opener may touch, in the extent's slot.
    fn write_alone(&self, run: PageRun) -> bool {
        let Some((place, open)) = self.begin_write(run) else { return false };
        self.pages[place.slot.0 as usize].with_mut(|_| ());
        for page in run.first..run.first + run.count {
            let page = PageRun { first: page, count: 1, ..run };
            assert!(self.index.any_open(page), "somebody else closed page {}", page.first);
        }
        self.index.commit(open, (run.first..).take(run.count as usize));
        self.unpin();
        true
    }

    /// With no request open: a place is a used slot and the only one, and an
    /// extent without written pages has none.
    fn assert_consistent(&self) {
        assert!(!self.index.any_open(PageRun::whole(EXTENT)), "a page stayed open");
        let placed = self.index.place(EXTENT).is_some();
        assert_eq!(self.pool.used_in(0), Some(u32::from(placed)), "slots do not match the entry");
        assert_eq!(self.index.written_pages(EXTENT) > 0, placed);
    }
}

#[test]
fn a_read_beside_a_write_is_old_new_or_parked_and_never_an_alarm() {
    explore(|| {
        let store = Store::written(1);
        let writer = Arc::clone(&store);
        let writer = thread::spawn(move || assert_eq!(writer.write(2), Ok(())));
        let read = store.read();
        assert!(matches!(read, Read::Data(1 | 2) | Read::Parked), "{read:?}");
        writer.join().unwrap();
        assert_eq!(store.read(), Read::Data(2));
    });
}

#[test]
fn a_read_beside_a_first_write_is_zeros_new_or_parked() {
    explore(|| {
        let store = Store::new();
        let writer = Arc::clone(&store);
        let writer = thread::spawn(move || assert_eq!(writer.write(2), Ok(())));
        let read = store.read();
        assert!(matches!(read, Read::Zeros | Read::Data(2) | Read::Parked), "{read:?}");
        writer.join().unwrap();
        assert_eq!(store.read(), Read::Data(2));
    });
}

#[test]
fn a_read_beside_two_writes_and_a_trim_raises_no_alarm() {
    explore(|| {
        let store = Store::written(1);
        let writer = Arc::clone(&store);
        let writer = thread::spawn(move || {
            writer.trim();
            assert_eq!(writer.write(2), Ok(()));
        });
        let read = store.read();
        assert_ne!(read, Read::Corrupt);
        writer.join().unwrap();
        assert_eq!(store.read(), Read::Data(2));
        store.assert_consistent();
    });
}

#[test]
fn two_writers_of_a_page_never_overlap_and_the_last_checksum_is_the_last_writers() {
    explore(|| {
        let store = Store::new();
        let threads = [2, 3].map(|data| {
            let store = Arc::clone(&store);
            thread::spawn(move || store.write(data))
        });
        let results = threads.map(|thread| thread.join().unwrap());
        assert!(results.contains(&Ok(())), "both were refused");
        let Read::Data(data) = store.read() else { panic!("not readable afterwards") };
        assert!(results[data as usize - 2].is_ok());
    });
}

#[test]
fn overlapping_runs_across_map_words_never_overlap_and_leave_nothing_open() {
    explore(|| {
        let store = Store::new();
        let threads = [run(PAGE, 2), run(PAGE + 1, 2)].map(|run| {
            let store = Arc::clone(&store);
            thread::spawn(move || store.write_alone(run))
        });
        let wrote = threads.map(|thread| thread.join().unwrap());
        let pages = match wrote {
            [true, true] => 3,
            [false, false] => panic!("both were refused"),
            _ => 2,
        };
        store.assert_consistent();
        assert_eq!(store.index.written_pages(EXTENT), pages);
    });
}

#[test]
fn a_sweep_never_takes_the_slot_of_a_write_and_never_leaves_one_behind() {
    explore(|| {
        let store = Store::new();
        assert!(store.write_alone(run(PAGE, 1)));
        let trimmer = Arc::clone(&store);
        let trimmer = thread::spawn(move || trimmer.trim());
        assert!(store.write_alone(run(PAGE, 1)));
        trimmer.join().unwrap();
        store.assert_consistent();
    });
}

#[test]
fn a_slot_that_is_given_out_is_named_by_no_entry() {
    explore(|| {
        let store = Store::new();
        assert!(store.write_alone(run(PAGE, 1)));
        let own = store.index.place(EXTENT);
        while store.pool.alloc().is_some() {}
        let trimmer = Arc::clone(&store);
        let trimmer = thread::spawn(move || trimmer.trim());
        // Another extent's write wants a slot: the only one is that of the trim.
        if let Some((_, within)) = store.pool.alloc() {
            assert_eq!(Some(place(within)), own);
            assert_eq!(store.index.place(EXTENT), None, "two extents in one slot");
        }
        trimmer.join().unwrap();
    });
}

#[test]
fn of_two_writes_that_settle_an_extent_one_place_wins() {
    explore(|| {
        let store = Store::new();
        let threads = [0, 100].map(|page| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let (place, open) = store.begin_write(run(page, 1)).expect("different pages");
                assert_eq!(store.index.place(EXTENT), Some(place), "moved under a pin");
                store.index.commit(open, [page]);
                store.unpin();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        store.assert_consistent();
        assert_eq!(store.index.written_pages(EXTENT), 2);
    });
}

#[test]
fn a_mover_sees_every_committed_page_and_its_flip_is_seen_by_the_next_request() {
    explore(|| {
        let store = Store::written(1);
        let writer = Arc::clone(&store);
        let writer = thread::spawn(move || {
            assert_eq!(writer.write(2), Ok(()));
            writer.index.place(EXTENT)
        });
        assert!(store.pin.want());
        while !store.pin.try_own() {
            yield_now();
        }
        // The session opens pages under a pin only, so none is open here, and
        // what the index says of the page is what the tier holds.
        assert!(!store.index.any_open(PageRun::whole(EXTENT)));
        let copied = [0, 1].map(|n: usize| store.halves[n].load(Ordering::Relaxed));
        assert_eq!(copied, [store.index.checksum(EXTENT, PAGE); 2]);
        let (slab, within) = store.pool.alloc().unwrap();
        store.index.flip(EXTENT, Some(place(within)));
        store.pool.free(slab, 0);
        store.pin.end_move();
        writer.join().unwrap();
        assert_eq!(store.index.place(EXTENT), Some(place(within)));
        assert_eq!(store.read(), Read::Data(2));
        store.assert_consistent();
    });
}

/// A mirrored extent: the fast tier's halves, which a writer may find broken,
/// and the copy's. The "fast slot" is `pages[0]`, touched by whoever has an
/// operation there.
struct Mirror {
    store: Arc<Store>,
    copy: [AtomicU32; 2],
}

impl Mirror {
    const COPY: Place = Place { tier: 1, slot: SlotIndex(0) };

    fn written(data: u32) -> Arc<Self> {
        let store = Store::written(data);
        Arc::new(Self { store, copy: [AtomicU32::new(data), AtomicU32::new(data)] })
    }

    /// As `Table::begin_write`, `send_write` and `piece_done`, the fast tier
    /// failing after half of the page.
    fn write(&self, data: u32) -> Result<(), ()> {
        let store = &self.store;
        store.pin();
        let place = store.index.place(EXTENT).expect("placed before");
        let Some(open) = store.index.open(run(PAGE, 1)) else {
            store.unpin();
            return Err(());
        };
        store.writes_begun.fetch_add(1, Ordering::AcqRel);
        if place != Self::COPY {
            store.pages[0].with(|_| ());
            store.halves[0].store(data, Ordering::Release);
        }
        for half in &self.copy {
            half.store(data, Ordering::Release);
        }
        assert!(place == Self::COPY || store.index.divert(EXTENT, place, Self::COPY));
        store.index.commit(open, [data]);
        store.unpin();
        Ok(())
    }

    /// As `Table::begin_read` and `verify`, from wherever the entry points.
    fn read(&self) -> Read {
        let store = &self.store;
        store.pin();
        let begun = store.writes_begun.load(Ordering::Acquire);
        let read = if store.index.any_open(run(PAGE, 1)) {
            Read::Parked
        } else {
            let fast = store.index.place(EXTENT) != Some(Self::COPY);
            let halves = if fast { &store.halves } else { &self.copy };
            if fast {
                store.pages[0].with(|_| ());
            }
            let [low, high] = [0, 1].map(|n: usize| halves[n].load(Ordering::Acquire));
            let data = if low == high { low } else { u32::MAX };
            if store.index.checksum(EXTENT, PAGE) == data {
                Read::Data(data)
            } else if store.writes_begun.load(Ordering::Acquire) == begun
                && !store.index.any_open(run(PAGE, 1))
            {
                Read::Corrupt
            } else {
                Read::Parked
            }
        };
        store.unpin();
        read
    }
}

#[test]
fn a_read_beside_a_write_that_diverts_its_extent_is_old_new_or_parked() {
    explore(|| {
        let mirror = Mirror::written(1);
        let writer = Arc::clone(&mirror);
        let writer = thread::spawn(move || assert_eq!(writer.write(2), Ok(())));
        let read = mirror.read();
        assert!(matches!(read, Read::Data(1 | 2) | Read::Parked), "{read:?}");
        writer.join().unwrap();
        assert_eq!(mirror.read(), Read::Data(2));
        assert_eq!(mirror.store.index.place(EXTENT), Some(Mirror::COPY));
    });
}

#[test]
fn the_slot_of_a_diverted_extent_is_freed_after_everyone_who_works_there() {
    explore(|| {
        let store = Store::written(1);
        let threads = [true, false].map(|diverts| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                if !store.pin.pin() {
                    return;
                }
                let place = store.index.place(EXTENT).expect("placed before");
                if place != Mirror::COPY {
                    store.pages[0].with(|_| ());
                    assert!(!diverts || store.index.divert(EXTENT, place, Mirror::COPY));
                }
                store.unpin();
            })
        });
        // The keeper frees the slot that no entry names any more.
        assert!(store.pin.want());
        if store.pin.try_own() {
            if store.index.place(EXTENT) == Some(Mirror::COPY) {
                store.pages[0].with_mut(|_| ());
                assert!(store.pool.free(0, 0));
            }
            store.pin.end_move();
        } else {
            store.pin.withdraw();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_write_that_takes_its_extent_to_a_new_place_and_a_reader_never_meet() {
    explore(|| {
        let store = Store::written(1);
        let reader = Arc::clone(&store);
        let reader = thread::spawn(move || {
            reader.pin();
            if !reader.index.any_open(run(PAGE, 1)) {
                let place = reader.index.place(EXTENT).expect("placed before");
                reader.pages[place.slot.0 as usize].with(|_| ());
            }
            reader.unpin();
        });
        // As `Table::write_elsewhere`.
        let pin = &store.pin;
        assert!(pin.want());
        if pin.try_own() {
            assert!(store.index.is_covered_by(run(PAGE, 1)));
            let old = store.index.place(EXTENT).unwrap();
            let (_, within) = store.pool.alloc().unwrap();
            let open = store.index.open(run(PAGE, 1)).expect("no page of an owned extent is open");
            store.index.flip(EXTENT, Some(place(within)));
            store.pages[old.slot.0 as usize].with_mut(|_| ());
            store.pool.free(0, old.slot.within());
            pin.end_move_pinned();
            store.pages[within as usize].with_mut(|_| ());
            store.index.commit(open, [2]);
            store.unpin();
        } else {
            pin.withdraw();
        }
        reader.join().unwrap();
        store.assert_consistent();
    });
}

#[test]
fn a_reader_of_a_page_that_was_given_up_never_reads_the_place_that_has_it_not() {
    explore(|| {
        let store = Store::written(1);
        let reader = Arc::clone(&store);
        let reader = thread::spawn(move || {
            reader.pin();
            // The writer's page is another one, so nothing parks this read.
            let place = reader.index.place(EXTENT).expect("placed before");
            if !reader.index.any_bad(run(PAGE, 1)) {
                assert_eq!(place.slot.0, 0, "the page was never written there");
                reader.pages[0].with(|_| ());
            }
            reader.unpin();
        });
        // As `Table::write_elsewhere`, out of a tier that is lost.
        let pin = &store.pin;
        assert!(pin.want());
        if pin.try_own() {
            let other = run(PAGE + 1, 1);
            let (_, within) = store.pool.alloc().unwrap();
            assert_eq!(store.index.lose_outside(other), 1);
            let open = store.index.open(other).expect("no page of an owned extent is open");
            store.index.flip(EXTENT, Some(place(within)));
            store.pages[0].with_mut(|_| ());
            store.pool.free(0, 0);
            pin.end_move_pinned();
            store.index.commit(open, [2]);
            store.unpin();
            assert!(store.index.any_bad(run(PAGE, 1)));
            assert!(!store.index.any_bad(other));
        } else {
            pin.withdraw();
        }
        reader.join().unwrap();
        store.assert_consistent();
    });
}
