// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fast tier that failed, damaged pages and lost sessions: what leaves, what
//! answers, what comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::error::Kind;
use super::super::housekeeping::{Housekeeping, LOOK, Pace};
use super::super::io::{BlockIo, Command, Failure, Finished};
use super::super::orders::State;
use super::super::session::Session;
use super::super::units::{ByteLen, ExtentIndex};
use super::Result2;
use super::memory_tier::{PAGE, Silent, contents};
use super::world::{World, desk, mover};

const WELL: u64 = 0;
const FAILS: u64 = 1;
const HANGS: u64 = 2;
const LOST: u64 = 4;
const ALL_ONES: u64 = 5;

/// A world of full extents' first pages in its first fast tier, and its keeper.
fn kept(extents: u32, slabs: &[u32], mirror: bool) -> (World, Housekeeping) {
    let mut world = World::made(5, 2, extents, slabs, mirror);
    for slab in 0..slabs[0] {
        assert_eq!(world.store.take_slab(0).unwrap(), slab < slabs[0]);
    }
    world.now = LOOK;
    for extent in 0..extents {
        world.start(0, Command::Write, u64::from(extent) * 512, 4);
        world.settle().unwrap();
    }
    let mut keeping =
        Housekeeping::new(Arc::clone(&world.store), mover(&world.store, &world.tiers));
    let targets: Vec<u32> = slabs[..slabs.len() - 1].to_vec();
    keeping.order(1, &targets, ByteLen(0), false);
    rest(&mut world, &mut keeping);
    (world, keeping)
}

fn rest(world: &mut World, keeping: &mut Housekeeping) {
    for _ in 0..200_000 {
        if keeping.step(world.now).unwrap() == Pace::Rest {
            return;
        }
    }
    panic!("the keeper does not come to rest");
}

fn trouble(world: &World, tier: usize, what: u64) {
    world.tiers[tier].state.trouble.store(what, Ordering::Relaxed);
}

fn used(world: &World) -> Vec<u32> {
    world.store.tiers().iter().map(|slots| slots.count().used).collect()
}

fn begin(world: &mut World, command: Command, page: u64, count: u32, tag: u64) -> (u32, u32) {
    let desk = &mut world.desks[0];
    let ticket = desk.session.reserve(count * PAGE).unwrap();
    for n in 0..count {
        desk.memory.put(ticket.host + n * PAGE, &contents(page + u64::from(n), tag));
    }
    let bytes = u64::from(count * PAGE);
    desk.session.start(ticket.token, command, page * u64::from(PAGE), bytes);
    (ticket.token, ticket.host)
}

fn drive(world: &mut World, times: usize) -> Vec<Finished> {
    let mut finished = Vec::with_capacity(256);
    for _ in 0..times {
        world.desks[0].session.drive(world.now, &mut finished);
    }
    finished
}

fn ask(world: &mut World, command: Command, page: u64, count: u32, tag: u64) -> (Result2, u64) {
    let (token, host) = begin(world, command, page, count, tag);
    let finished = drive(world, 1000);
    world.desks[0].session.release(token);
    (finished[0].result, world.desks[0].memory.page(host)[0] >> 32)
}

#[test]
fn what_a_failed_tier_still_reads_leaves_it_and_comes_back_after_readmission() {
    let (mut world, mut keeping) = kept(40, &[2, 2], false);
    assert_eq!(used(&world), [40, 0]);
    world.store.fault(0);
    keeping.step(world.now).unwrap();
    assert_eq!(keeping.progress(world.now).state, State::Working);
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 40]);
    assert_eq!(keeping.progress(world.now).state, State::AtRest);
    // Its memory stays until somebody wants it: a broken driver is left alone.
    assert_eq!(world.store.tiers()[0].count().held, 2);
    world.read_all().unwrap();
    assert_eq!(world.store.readmit(0).unwrap(), 2);
    world.now += LOOK;
    rest(&mut world, &mut keeping);
    assert!(used(&world)[0] > 0, "what was read comes back: {:?}", used(&world));
    world.read_all().unwrap();
}

#[test]
fn a_write_takes_its_extent_out_of_a_failed_tier_or_waits_for_it_to_be_moved() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    world.store.fault(0);
    // All four pages of extent 0: nothing else is kept there.
    assert_eq!(ask(&mut world, Command::Write, 0, 5, 7).0, Ok(()));
    assert_eq!(world.store.place(ExtentIndex(0)).unwrap().tier, 1);
    assert_eq!(used(&world), [2, 1]);
    // One page of extent 1: the others have to come along first.
    let (token, _) = begin(&mut world, Command::Write, 513, 1, 8);
    assert_eq!(drive(&mut world, 100), []);
    for _ in 0..100 {
        keeping.step(world.now).unwrap();
    }
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    assert_eq!(world.store.place(ExtentIndex(1)).unwrap().tier, 1);
    assert_eq!(ask(&mut world, Command::Read, 3, 1, 0), (Ok(()), 7));
    assert_eq!(ask(&mut world, Command::Read, 513, 1, 0), (Ok(()), 8));
}

fn bad_pages(world: &World) -> u32 {
    (0..world.store.extents()).map(|n| world.store.index.bad_pages(ExtentIndex(n))).sum()
}

/// Where the bus to a card is down, stores into its memory go nowhere and loads give
/// ones, and neither is an error.
#[test]
fn a_device_that_answers_all_ones_gets_no_more_pages_and_loses_none_for_good() {
    let (mut world, mut keeping) = kept(40, &[2, 2], false);
    let before = ask(&mut world, Command::Read, 512, 4, 0);
    trouble(&world, 0, ALL_ONES);
    assert_eq!(ask(&mut world, Command::Read, 512, 4, 0).0, Err(Failure::Io));
    assert!(world.store.tiers()[0].is_faulty());
    // A write goes elsewhere, and can be read.
    assert_eq!(ask(&mut world, Command::Write, 0, 5, 7).0, Ok(()));
    assert_eq!(ask(&mut world, Command::Read, 0, 1, 0), (Ok(()), 7));
    for _ in 0..3 {
        rest(&mut world, &mut keeping);
        world.now += Duration::from_secs(30);
    }
    assert_eq!(bad_pages(&world), 0, "given up for good");
    assert_eq!(world.store.totals().checksum_errors, 0);
    trouble(&world, 0, WELL);
    world.store.readmit(0).unwrap();
    assert_eq!(ask(&mut world, Command::Read, 512, 4, 0), before);
}

#[test]
fn what_a_device_that_answers_all_ones_holds_is_read_from_its_copy() {
    let (mut world, mut keeping) = kept(3, &[1, 1], true);
    let before = ask(&mut world, Command::Read, 512, 4, 0);
    trouble(&world, 0, ALL_ONES);
    assert_eq!(ask(&mut world, Command::Read, 512, 4, 0), before);
    assert!(world.store.tiers()[0].is_faulty());
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world)[0], 0, "all of it left for the copies");
    assert_eq!(bad_pages(&world), 0);
    world.read_all().unwrap();
}

fn given(world: &World, tier: usize) -> u64 {
    world.tiers[tier].state.given.load(Ordering::Relaxed)
}

#[test]
fn a_write_that_waits_for_a_move_that_cannot_be_made_fails_once_that_was_tried() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    trouble(&world, 0, FAILS);
    world.store.fault(0);
    let (token, _) = begin(&mut world, Command::Write, 513, 1, 8);
    assert_eq!(drive(&mut world, 10), []);
    rest(&mut world, &mut keeping);
    let State::Stuck(why) = keeping.progress(world.now).state else { panic!("not stuck") };
    assert!(why.contains("cannot be read"), "{why}");
    // No time has passed.
    let failed = Finished { token, result: Err(Failure::Io) };
    assert_eq!(drive(&mut world, 10), [failed]);
    world.desks[0].session.release(token);
    // Those that come later neither wait nor have the keeper try for each of them.
    let tried = given(&world, 0);
    for _ in 0..10 {
        assert_eq!(ask(&mut world, Command::Write, 513, 1, 8).0, Err(Failure::Io));
        assert_eq!(keeping.step(world.now).unwrap(), Pace::Rest);
    }
    assert_eq!(given(&world, 0), tried);
    // Nothing was given up: well again, all of it can be read.
    trouble(&world, 0, WELL);
    world.now += Duration::from_secs(10);
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 3]);
    assert_eq!(world.store.totals().lost_pages, 0);
    world.read_all().unwrap();
    assert_eq!(ask(&mut world, Command::Write, 513, 1, 9).0, Ok(()));
}

#[test]
fn who_is_trusted_again_is_asked_again() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    trouble(&world, 0, FAILS);
    world.store.fault(0);
    let (token, _) = begin(&mut world, Command::Write, 513, 1, 8);
    rest(&mut world, &mut keeping);
    assert_eq!(drive(&mut world, 10).len(), 1);
    world.desks[0].session.release(token);
    trouble(&world, 0, WELL);
    world.store.readmit(0).unwrap();
    world.store.fault(0);
    // No retry is due yet; the write asks for its extent, and gets it.
    let (token, _) = begin(&mut world, Command::Write, 513, 1, 9);
    for _ in 0..100 {
        keeping.step(world.now).unwrap();
    }
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    assert_eq!(world.store.place(ExtentIndex(1)).unwrap().tier, 1);
}

#[test]
fn a_write_does_not_wait_for_a_keeper_whose_buffers_are_all_lost() {
    let (mut world, mut keeping) = kept(8, &[1, 1], false);
    trouble(&world, 1, HANGS);
    world.store.fault(0);
    for _ in 0..1000 {
        keeping.step(world.now).unwrap();
    }
    world.now += Duration::from_secs(11);
    rest(&mut world, &mut keeping);
    // Nobody tried to move this one.
    let (token, _) = begin(&mut world, Command::Write, 7 * 512, 1, 8);
    assert_eq!(drive(&mut world, 10), []);
    rest(&mut world, &mut keeping);
    assert_eq!(drive(&mut world, 10), [Finished { token, result: Err(Failure::Io) }]);
    world.desks[0].session.release(token);
    trouble(&world, 1, WELL);
    world.now += Duration::from_secs(10);
    rest(&mut world, &mut keeping);
    world.now += Duration::from_secs(10);
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 8]);
    world.read_all().unwrap();
}

#[test]
fn a_write_leaves_a_lost_tier_at_once_and_gives_up_what_nobody_can_read() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    trouble(&world, 0, LOST);
    assert_eq!(ask(&mut world, Command::Read, 512, 1, 0).0, Err(Failure::Io));
    // Neither time nor the keeper has a part in it.
    assert_eq!(ask(&mut world, Command::Write, 513, 1, 8).0, Ok(()));
    assert_eq!(world.store.place(ExtentIndex(1)).unwrap().tier, 1);
    assert_eq!((used(&world), world.store.totals().lost_pages), (vec![2, 1], 3));
    assert_eq!(ask(&mut world, Command::Read, 513, 1, 0), (Ok(()), 8));
    for page in [512, 514, 515] {
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0).0, Err(Failure::Io), "{page}");
    }
    assert_eq!(ask(&mut world, Command::Read, 516, 1, 0), (Ok(()), 0));
    // What is not written stays where it is, and nothing is asked of the tier for it.
    let asked = given(&world, 0);
    rest(&mut world, &mut keeping);
    assert_eq!(given(&world, 0), asked);
    let State::Stuck(why) = keeping.progress(world.now).state else { panic!("not stuck") };
    assert!(why.contains("its device is lost"), "{why}");
    assert_eq!(world.store.readmit(0).unwrap_err().kind(), Kind::Io);
    // A device that is back has what was not given up.
    trouble(&world, 0, WELL);
    world.now += Duration::from_secs(10);
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 3]);
    for page in [512, 514, 515] {
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0).0, Err(Failure::Io), "{page}");
        assert_eq!(ask(&mut world, Command::Write, page, 1, 9).0, Ok(()));
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0), (Ok(()), 9));
    }
    for page in [0, 3, 1024, 1027] {
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0).0, Ok(()), "{page}");
    }
}

#[test]
fn a_write_that_left_a_lost_tier_and_failed_leaves_errors_behind_and_no_old_page() {
    let (mut world, _) = kept(3, &[1, 1], false);
    trouble(&world, 0, LOST);
    world.store.fault(0);
    trouble(&world, 1, FAILS);
    assert_eq!(ask(&mut world, Command::Write, 513, 1, 8).0, Err(Failure::Io));
    trouble(&world, 0, WELL);
    trouble(&world, 1, WELL);
    for page in 512..516 {
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0).0, Err(Failure::Io), "{page}");
    }
}

#[test]
fn a_write_that_left_its_tier_and_failed_leaves_an_error_behind_and_blames_no_other_slab() {
    let (mut world, _) = kept(3, &[1, 1], false);
    world.store.fault(0);
    trouble(&world, 1, FAILS);
    assert_eq!(ask(&mut world, Command::Write, 0, 4, 7).0, Err(Failure::Io));
    trouble(&world, 1, WELL);
    assert_eq!(ask(&mut world, Command::Read, 0, 1, 0).0, Err(Failure::Io));
    assert_eq!(world.store.tiers()[1].count().quarantined, 0);
    assert_eq!(ask(&mut world, Command::Write, 0, 4, 8).0, Ok(()));
    assert_eq!(ask(&mut world, Command::Read, 0, 1, 0), (Ok(()), 8));
}

fn damage(world: &World, page: u64) {
    let place = world.store.place(ExtentIndex((page / 512) as u32)).unwrap();
    let key = (place.slab().0, place.slot.byte_in_slab() / PAGE + (page % 512) as u32);
    world.tiers[place.tier as usize].state.pages().get_mut(&key).unwrap()[3] ^= 1;
}

#[test]
fn readable_extents_leave_a_damaged_slab_and_its_memory_is_kept_from_use() {
    let (mut world, mut keeping) = kept(40, &[2, 2], false);
    damage(&world, 2);
    assert_eq!(ask(&mut world, Command::Read, 2, 1, 0).0, Err(Failure::Checksum));
    rest(&mut world, &mut keeping);
    let count = world.store.tiers()[0].count();
    assert_eq!((count.quarantined, count.spent, count.used), (1, 1, 8));
    assert!(!world.store.tiers()[0].is_faulty());
    assert_eq!(ask(&mut world, Command::Read, 2, 1, 0).0, Err(Failure::Io));
    assert_eq!(world.store.totals().lost_pages, 1);
    for page in [0, 1, 3, 512, 1024] {
        assert_eq!(ask(&mut world, Command::Read, page, 1, 0).0, Ok(()));
    }
    // The memory goes when it is to be given back, or is used again by hand.
    assert_eq!(world.store.readmit(0).unwrap(), 2);
    assert_eq!(world.store.tiers()[0].count().quarantined, 0);
    assert_eq!(ask(&mut world, Command::Write, 2, 1, 9).0, Ok(()));
    assert_eq!(ask(&mut world, Command::Read, 2, 1, 0), (Ok(()), 9));
}

#[test]
fn a_full_device_with_a_damaged_slab_still_takes_every_write() {
    // No spill: every slot of the fast tier is needed.
    let (mut world, mut keeping) = kept(33, &[2, 2], false);
    let _ = &mut keeping;
    for slab in 0..2 {
        world.store.tiers()[1].pool().quarantine(slab);
    }
    world.store.fault(0);
    for extent in 0..33 {
        assert_eq!(ask(&mut world, Command::Write, extent * 512, 4, 3).0, Ok(()), "{extent}");
    }
    assert_eq!(used(&world), [0, 33]);
}

#[test]
fn a_tier_with_unanswered_operations_is_not_readmitted() {
    let (mut world, _) = kept(3, &[1, 1], false);
    trouble(&world, 0, HANGS);
    let (token, _) = begin(&mut world, Command::Read, 0, 1, 0);
    world.now += Duration::from_millis(200);
    drive(&mut world, 1);
    world.now += Duration::from_secs(10);
    let timed_out = Finished { token, result: Err(Failure::TimedOut) };
    assert_eq!(drive(&mut world, 1), [timed_out]);
    let error = world.store.readmit(0).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("1 operations"), "{error}");
    trouble(&world, 0, WELL);
    drive(&mut world, 100);
    assert_eq!(world.store.readmit(0).unwrap(), 1);
    assert!(!world.store.tiers()[0].is_faulty());
}

#[test]
fn pages_of_a_session_that_is_lost_are_free_again_once_their_tier_has_answered() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    trouble(&world, 0, HANGS);
    begin(&mut world, Command::Write, 0, 1, 8);
    assert_eq!(drive(&mut world, 1), []);
    let lost = std::mem::replace(&mut world.desks[0], desk(&world.store, &world.tiers));
    lost.session.lose();
    // The kernel asks again on another connection.
    let (token, _) = begin(&mut world, Command::Write, 0, 1, 9);
    keeping.step(world.now).unwrap();
    assert_eq!(drive(&mut world, 10), []);
    trouble(&world, 0, WELL);
    for _ in 0..100 {
        keeping.step(world.now).unwrap();
    }
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    world.desks[0].session.release(token);
    assert_eq!(ask(&mut world, Command::Read, 0, 1, 0), (Ok(()), 9));
    // No pin is left: the extent can be moved.
    keeping.order(2, &[0], ByteLen(0), false);
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 3]);
}

#[test]
fn who_meets_a_page_of_a_lost_session_that_is_never_answered_gets_an_error() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    trouble(&world, 0, HANGS);
    begin(&mut world, Command::Write, 0, 1, 8);
    assert_eq!(drive(&mut world, 1), []);
    let lost = std::mem::replace(&mut world.desks[0], desk(&world.store, &world.tiers));
    lost.session.lose();
    keeping.step(world.now).unwrap();
    trouble(&world, 1, WELL);
    let (token, _) = begin(&mut world, Command::Write, 0, 1, 9);
    drive(&mut world, 10);
    world.now += Duration::from_secs(11);
    keeping.step(world.now).unwrap();
    let timed_out = Finished { token, result: Err(Failure::TimedOut) };
    assert_eq!(drive(&mut world, 10), [timed_out]);
    // The others of its extent are not concerned.
    trouble(&world, 0, HANGS);
    world.desks[0].session.release(token);
    assert_eq!(world.store.index.open_pages(ExtentIndex(0)).collect::<Vec<_>>(), [0]);
}

/// A session in place of the first desk's; `None`: it is refused.
fn connect(world: &mut World) -> Option<()> {
    let memory = Arc::clone(&world.desks[0].memory);
    for tier in &world.tiers {
        *tier.memory.lock().unwrap() = Arc::clone(&memory);
    }
    let session =
        Session::new(Arc::clone(&world.store), memory, 512 * PAGE, Arc::new(Silent)).ok()?;
    world.desks[0].session = session;
    Some(())
}

#[test]
fn who_connects_to_a_tier_without_memory_is_refused_twice_and_then_served_by_the_others() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    let refuse = |world: &World, refuses| {
        world.tiers[0].state.refuse_lanes.store(refuses, Ordering::Relaxed);
    };
    // A lack that passes is no failure.
    for _ in 0..5 {
        refuse(&world, true);
        assert!(connect(&mut world).is_none() && connect(&mut world).is_none());
        refuse(&world, false);
        assert!(connect(&mut world).is_some() && !world.store.tiers()[0].is_faulty());
    }
    refuse(&world, true);
    assert!(connect(&mut world).is_none() && connect(&mut world).is_none());
    assert!(connect(&mut world).is_some() && world.store.tiers()[0].is_faulty());
    // What was never written is zeros; what the tier has comes as soon as it left it.
    assert_eq!(ask(&mut world, Command::Read, 100, 1, 0), (Ok(()), 0));
    let (token, _) = begin(&mut world, Command::Read, 513, 1, 0);
    assert_eq!(drive(&mut world, 10), []);
    rest(&mut world, &mut keeping);
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    world.desks[0].session.release(token);
    assert_eq!(used(&world), [0, 3]);
    assert_eq!(ask(&mut world, Command::Write, 513, 1, 7).0, Ok(()));
    // From now on at once.
    assert!(connect(&mut world).is_some());
    assert_eq!(ask(&mut world, Command::Read, 513, 1, 0), (Ok(()), 7));
}

#[test]
fn a_tier_is_readmitted_once_nobody_is_left_who_has_no_lane_to_it() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    let refuse = |world: &World, refuses| {
        world.tiers[0].state.refuse_lanes.store(refuses, Ordering::Relaxed);
    };
    refuse(&world, true);
    world.store.fault(0);
    assert!(connect(&mut world).is_some());
    rest(&mut world, &mut keeping);
    assert_eq!(used(&world), [0, 3]);
    // The device is well again; who connected meanwhile does not know.
    refuse(&world, false);
    let error = world.store.readmit(0).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("1 connections have no lane"), "{error}");
    assert!(world.store.tiers()[0].is_faulty());
    assert!(connect(&mut world).is_some());
    assert_eq!(world.store.readmit(0).unwrap(), 1);
    // What comes back to it can be read.
    let place = world.store.place(ExtentIndex(1)).unwrap();
    assert_eq!(world.mover.start(1, place.slot, 0), Ok(()));
    world.settle().unwrap();
    assert_eq!(world.store.place(ExtentIndex(1)).unwrap().tier, 0);
    world.read_all().unwrap();
    assert!(!world.store.tiers()[0].is_faulty());
}

#[test]
fn who_has_no_lane_gets_an_error_for_what_the_mover_cannot_read_either() {
    let (mut world, mut keeping) = kept(3, &[1, 1], false);
    world.tiers[0].state.refuse_lanes.store(true, Ordering::Relaxed);
    trouble(&world, 0, FAILS);
    world.store.fault(0);
    assert!(connect(&mut world).is_some());
    let (token, _) = begin(&mut world, Command::Read, 513, 1, 0);
    assert_eq!(drive(&mut world, 10), []);
    rest(&mut world, &mut keeping);
    assert_eq!(drive(&mut world, 10), [Finished { token, result: Err(Failure::Io) }]);
    world.desks[0].session.release(token);
    assert_eq!(ask(&mut world, Command::Read, 514, 1, 0).0, Err(Failure::Io));
}

#[test]
fn the_loss_of_one_of_two_fast_tiers_touches_its_own_slabs_only() {
    let (mut world, mut keeping) = kept(96, &[2, 2, 3], false);
    let before: Vec<_> = (0..96).map(|n| world.store.place(ExtentIndex(n)).unwrap()).collect();
    let on_second = before.iter().filter(|place| place.tier == 1).count();
    assert_eq!((used(&world)[0], on_second), (64, 0));
    // The rest went to the spill while the keeper slept; let it come up.
    for extent in 64..96 {
        assert_eq!(ask(&mut world, Command::Read, extent * 512, 1, 0).0, Ok(()));
    }
    world.now += LOOK;
    rest(&mut world, &mut keeping);
    let second = used(&world)[1];
    assert!(second > 0, "{:?}", used(&world));
    trouble(&world, 0, FAILS);
    assert_eq!(ask(&mut world, Command::Read, 0, 1, 0).0, Err(Failure::Io));
    world.now += LOOK;
    rest(&mut world, &mut keeping);
    assert!(!world.store.tiers()[1].is_faulty());
    assert_eq!((used(&world)[0], used(&world)[1]), (64, second));
    for extent in 0..96_u64 {
        let on_first = world.store.place(ExtentIndex(extent as u32)).unwrap().tier == 0;
        let result = ask(&mut world, Command::Read, extent * 512, 1, 0).0;
        assert_eq!(result.is_err(), on_first, "extent {extent}");
    }
}

#[test]
fn a_mirror_yields_without_copying_and_loses_nothing_with_its_fast_tier() {
    let (mut world, mut keeping) = kept(40, &[2, 2], true);
    assert_eq!(used(&world), [40, 40]);
    keeping.order(2, &[1], ByteLen(0), false);
    rest(&mut world, &mut keeping);
    let tier = &keeping.progress(world.now).tiers[0];
    assert_eq!((tier.held_slabs, tier.moved_bytes), (1, 0));
    assert_eq!(used(&world), [32, 40]);
    trouble(&world, 0, FAILS);
    for extent in 0..40 {
        world.start(0, Command::Read, extent * 512, 4);
        world.start(1, Command::Write, extent * 512 + 1, 1);
        world.settle().unwrap();
    }
    assert!(world.store.totals().rescued > 0);
    rest(&mut world, &mut keeping);
    assert_eq!((used(&world), world.store.totals().lost_pages), (vec![0, 40], 0));
    world.read_all().unwrap();
}

#[test]
fn a_damaged_page_is_read_from_the_mirror() {
    let (mut world, mut keeping) = kept(3, &[2, 1], true);
    damage(&world, 2);
    assert_eq!(ask(&mut world, Command::Read, 2, 1, 0).0, Ok(()));
    let totals = world.store.totals();
    assert_eq!((totals.checksum_errors, totals.rescued), (1, 1));
    rest(&mut world, &mut keeping);
    assert_eq!((used(&world), world.store.totals().lost_pages), (vec![0, 3], 0));
    world.read_all().unwrap();
}

#[test]
fn a_mirror_needs_a_spill() {
    use super::super::index::Index;
    use super::super::store::Store;
    use super::world::setups;
    let world = World::new(1, 1);
    let mut tiers = setups(&world.tiers);
    tiers.pop();
    let error = Store::new(Index::new(3), tiers, true).unwrap().with_mirror().unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.hint().unwrap().contains("[spill]"));
}
