// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole engine against a plain model: random requests, completions in
//! random order, moves, slabs taken and given back, and a crash after any
//! single store of index or data, with recovery from what is left.

mod adoption;
mod elastic;
mod faults;
mod memory_tier;
mod random;
mod threads;
mod trouble;
mod world;

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::crash::until_crash;
use super::error::Kind;
use super::index::Index;
use super::io::{BlockIo, Command, Failure};
use super::store::Store;
use super::units::{ExtentIndex, SlabIndex, SlotIndex};
use memory_tier::PAGE;
use world::{EXTENTS, World, setups};

fn finish_one(world: &mut World, command: Command, page: u64, after: Duration) -> Result2 {
    let session = &mut world.desks[0].session;
    let ticket = session.reserve(PAGE).unwrap();
    session.start(ticket.token, command, page * u64::from(PAGE), PAGE.into());
    let mut finished = Vec::with_capacity(256);
    for _ in 0..1000 {
        world.now += after;
        session.drive(world.now, &mut finished);
        if let Some(end) = finished.pop() {
            session.release(ticket.token);
            return end.result;
        }
    }
    panic!("the request was never answered");
}

type Result2 = std::result::Result<(), Failure>;

#[test]
fn a_range_outside_the_device_or_off_page_is_refused_and_changes_nothing() {
    let mut world = World::new(1, 1);
    let end = world.store.device_bytes();
    for (offset, bytes) in
        [(end, 4096), (end - 4096, 8192), (u64::MAX - 4095, 4096), (1, 4096), (0, 4095)]
    {
        let session = &mut world.desks[0].session;
        let ticket = session.reserve(8192).unwrap();
        session.start(ticket.token, Command::Trim, offset, bytes);
        let mut finished = Vec::with_capacity(256);
        session.drive(Duration::ZERO, &mut finished);
        assert_eq!(finished[0].result, Err(Failure::OutOfRange), "{offset}+{bytes}");
        session.release(ticket.token);
    }
}

#[test]
fn corrupt_data_is_an_error_and_quarantines_its_slab() {
    let mut world = World::new(1, 1);
    finish_one(&mut world, Command::Write, 3, Duration::ZERO).unwrap();
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    let key = (place.slab().0, place.slot.byte_in_slab() / PAGE + 3);
    world.tiers[place.tier as usize].state.pages().get_mut(&key).unwrap()[17] ^= 1;
    let result = finish_one(&mut world, Command::Read, 3, Duration::ZERO);
    assert_eq!(result, Err(Failure::Checksum));
    assert_eq!(world.store.tiers()[place.tier as usize].count().quarantined, 1);
    assert_eq!(world.store.totals().checksum_errors, 1);
}

#[test]
fn a_failing_tier_answers_errors_and_gets_no_new_pages() {
    let mut world = World::new(1, 1);
    world.store.take_slab(0).unwrap();
    finish_one(&mut world, Command::Write, 0, Duration::ZERO).unwrap();
    world.tiers[0].state.trouble.store(1, Ordering::Relaxed);
    assert_eq!(finish_one(&mut world, Command::Read, 0, Duration::ZERO), Err(Failure::Io));
    assert!(world.store.tiers()[0].is_faulty());
    finish_one(&mut world, Command::Write, 600, Duration::ZERO).unwrap();
    assert_eq!(world.store.index.place(ExtentIndex(1)).unwrap().tier, 1);
}

#[test]
fn a_tier_that_never_answers_is_given_up_but_its_memory_is_not_reused() {
    let mut world = World::new(1, 1);
    world.store.take_slab(0).unwrap();
    finish_one(&mut world, Command::Write, 0, Duration::ZERO).unwrap();
    world.tiers[0].state.trouble.store(2, Ordering::Relaxed);
    let step = Duration::from_millis(200);
    assert_eq!(finish_one(&mut world, Command::Write, 0, step), Err(Failure::TimedOut));
    // The same page, held by the lost write: given up too, not parked for ever.
    assert_eq!(finish_one(&mut world, Command::Read, 0, step), Err(Failure::TimedOut));
    assert!(!world.desks[0].session.is_quiet());
    // 640 pages of memory, one of them kept aside.
    let session = &mut world.desks[0].session;
    assert!(session.reserve(640 * PAGE).is_none());
    let rest = session.reserve(512 * PAGE).unwrap();
    session.release(rest.token);
    // Other extents and other tiers are served.
    finish_one(&mut world, Command::Write, 600, step).unwrap();
    // A late answer sets the memory free.
    world.tiers[0].state.trouble.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        world.desks[0].session.drive(world.now, &mut Vec::with_capacity(256));
    }
    assert!(world.desks[0].session.is_quiet());
    assert!(world.desks[0].session.reserve(640 * PAGE).is_some());
}

#[test]
fn a_full_device_takes_every_write_again_and_again() {
    let mut world = World::new(1, 1);
    for round in 0..3 {
        for page in 0..u64::from(EXTENTS) * 512 {
            if page % 7 == round {
                finish_one(&mut world, Command::Write, page, Duration::ZERO).unwrap();
            }
        }
    }
    assert_eq!(world.store.tiers()[1].count().used, EXTENTS);
}

#[test]
fn an_index_that_contradicts_itself_is_refused_whole() {
    let world = World::new(1, 1);
    let slot = |tier: u64, slot: u64| (tier + 1) << 56 | slot;
    // The header's words; entries and maps follow it.
    let entry = 64;
    let written = entry + EXTENTS as usize;
    let bad: [(&[(usize, u64)], &str); 9] = [
        (&[(0, 0)], "begins with"),
        (&[(1, 99)], "layout 99"),
        (&[(2, 1 << 40)], "1099511627776 extents"),
        (&[(8, 1)], "damaged"),
        (&[(entry, slot(7, 0))], "tier 7"),
        (&[(entry, slot(1, 32))], "slab 1"),
        (&[(entry, slot(0, 5)), (entry + 1, slot(0, 5))], "another extent"),
        (&[(entry, slot(0, 5) | 1 << 40)], "no place"),
        (&[(written, 1 << 9)], "1 pages and no place"),
    ];
    for (words, part) in bad {
        let index = world.store.index.survivor();
        for (word, value) in words {
            index.corrupt(*word, *value);
        }
        let error = Store::recover(index, setups(&world.tiers), true).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_device_larger_than_its_spill_is_refused_with_the_arithmetic() {
    let world = World::new(1, 1);
    let error = Store::new(Index::new(33), setups(&world.tiers), true).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("66 MiB"), "{error}");
    assert!(error.to_string().contains("64 MiB"), "{error}");
    assert_eq!(SlotIndex::new(SlabIndex(1), 1).0, 33);
}

/// A write, a move, a write over it, a move back, and a trim, one after the
/// other, so that each of their stores is certain to be a crash's last.
fn a_short_life(world: &mut World) {
    let moved = |world: &mut World, to: usize| {
        let place = world.store.index.place(ExtentIndex(1)).unwrap();
        assert_eq!(world.mover.start(place.tier as usize, place.slot, to), Ok(()));
        world.settle().unwrap();
        assert_eq!(world.store.index.place(ExtentIndex(1)).unwrap().tier as usize, to);
    };
    world.start(0, Command::Write, 575, 2);
    world.settle().unwrap();
    world.store.take_slab(0).unwrap();
    moved(world, 0);
    world.start(0, Command::Write, 576, 3);
    world.settle().unwrap();
    moved(world, 1);
    world.start(0, Command::Trim, 512, 512);
    world.settle().unwrap();
    assert_eq!(world.store.index.place(ExtentIndex(1)), None);
}

#[test]
fn a_crash_after_each_single_store_of_a_short_life_loses_nothing() {
    for stores in 0.. {
        let mut world = World::new(3, 1);
        world.fuel.set(stores);
        let survived = until_crash(|| a_short_life(&mut world)).is_some();
        world.recover().unwrap();
        world.read_all().unwrap();
        if survived {
            assert!(stores > 20, "a life of {stores} stores is no test");
            return;
        }
    }
}
