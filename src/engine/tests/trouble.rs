// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiers that fail, hang or answer late, and what must not come of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::error::Kind;
use super::super::index::PageRun;
use super::super::io::{BlockIo, Command, Failure, Finished, Idle};
use super::super::mover::{Progress, Reason, Refused};
use super::super::session::MAX_REQUESTS;
use super::super::units::ExtentIndex;
use super::memory_tier::{PAGE, contents};
use super::world::World;
use super::{Result2, finish_one};

/// Fast tier trouble: nothing is answered.
const HANGS: u64 = 2;
const WELL: u64 = 0;

/// Well above the fast tier's deadline.
const LATE: Duration = Duration::from_secs(10);

/// Above the interval at which deadlines are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// One session, extent 0 in the fast tier and extent 1 in the spill.
fn world() -> World {
    let mut world = World::new(1, 1);
    finish_one(&mut world, Command::Write, 600, Duration::ZERO).unwrap();
    world.store.take_slab(0).unwrap();
    finish_one(&mut world, Command::Write, 0, Duration::ZERO).unwrap();
    let tier = |extent| world.store.index.place(ExtentIndex(extent)).unwrap().tier;
    assert_eq!((tier(0), tier(1)), (0, 1));
    world
}

/// Starts a request without driving; its token and its memory.
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

fn trouble(world: &World, what: u64) {
    trouble_of(world, 0, what);
}

fn trouble_of(world: &World, tier: usize, what: u64) {
    world.tiers[tier].state.trouble.store(what, Ordering::Relaxed);
}

fn read(world: &mut World, page: u64) -> (Result2, u64) {
    let (token, host) = begin(world, Command::Read, page, 1, 0);
    let finished = drive(world, 1000);
    world.desks[0].session.release(token);
    (finished[0].result, world.desks[0].memory.page(host)[0] >> 32)
}

#[test]
fn a_request_after_a_long_sleep_has_its_whole_deadline() {
    let mut world = world();
    drive(&mut world, 1);
    // The thread slept on its socket; the tier needs two looks to answer.
    world.now += LATE;
    trouble(&world, HANGS);
    begin(&mut world, Command::Read, 0, 1, 0);
    assert_eq!(drive(&mut world, 1), []);
    assert!(!world.store.tiers()[0].is_faulty());
    trouble(&world, WELL);
    assert_eq!(drive(&mut world, 100)[0].result, Ok(()));
}

#[test]
fn a_request_that_was_parked_long_has_its_whole_deadline_afterwards() {
    let mut world = world();
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    begin(&mut world, Command::Read, 0, 1, 0);
    assert_eq!(drive(&mut world, 1), []);
    world.now += LATE;
    while world.mover.advance(world.now) == Progress::Busy {}
    // Back to the fast tier, whose deadline counts.
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(1, place.slot, 0), Ok(()));
    while world.mover.advance(world.now) == Progress::Busy {}
    trouble(&world, HANGS);
    assert_eq!(drive(&mut world, 2), []);
    assert!(!world.store.tiers()[0].is_faulty());
    trouble(&world, WELL);
    assert_eq!(drive(&mut world, 100)[0].result, Ok(()));
}

#[test]
fn the_rest_of_a_request_that_timed_out_is_never_begun() {
    let mut world = world();
    // Of a write to two extents, one hangs in its tier and one is parked.
    trouble(&world, HANGS);
    assert!(world.store.pins[1].want());
    let (lost, _) = begin(&mut world, Command::Write, 511, 2, 8);
    world.now += LOOK;
    assert_eq!(drive(&mut world, 1), []);
    world.now += LATE;
    let answer = Finished { token: lost, result: Err(Failure::TimedOut) };
    assert_eq!(drive(&mut world, 1), [answer]);
    world.desks[0].session.release(lost);
    // The kernel writes the page anew and is told that it is safe.
    trouble(&world, WELL);
    world.store.pins[1].withdraw();
    let (token, _) = begin(&mut world, Command::Write, 512, 1, 9);
    assert_eq!(drive(&mut world, 1000), [Finished { token, result: Ok(()) }]);
    assert_eq!(read(&mut world, 512), (Ok(()), 9));
    assert!(world.desks[0].session.is_quiet());
    assert!(world.desks[0].session.reserve(640 * PAGE).is_none(), "page 512 is not released");
    world.desks[0].session.release(token);
    assert!(world.desks[0].session.reserve(640 * PAGE).is_some());
}

#[test]
fn nothing_is_moved_to_a_faulty_tier() {
    let mut world = world();
    world.store.fault(0);
    let place = world.store.index.place(ExtentIndex(1)).unwrap();
    assert_eq!(world.mover.start(1, place.slot, 0), Err(Refused::Faulty));
    // Away from it is what must still be possible.
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
}

#[test]
fn a_torn_page_is_not_judged_by_the_mover() {
    let mut world = world();
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    // As a crash in the middle of a write leaves it, before it is adopted.
    let run = PageRun { extent: ExtentIndex(0), first: 0, count: 1 };
    let torn = world.store.index.open(run).unwrap();
    let key = (place.slab().0, place.slot.byte_in_slab() / PAGE);
    world.tiers[0].state.pages().get_mut(&key).unwrap()[3] ^= 1;
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    assert_eq!(
        world.mover.advance(world.now),
        Progress::Abandoned(ExtentIndex(0), place, Reason::Torn)
    );
    assert_eq!(world.store.tiers()[0].count().quarantined, 0);
    world.store.index.abandon(torn);
}

#[test]
fn a_write_is_answered_even_when_the_only_spill_failed_once() {
    let mut world = world();
    world.store.fault(0);
    world.store.fault(1);
    finish_one(&mut world, Command::Write, 1024, Duration::ZERO).unwrap();
    assert_eq!(world.store.index.place(ExtentIndex(2)).unwrap().tier, 1);
}

#[test]
fn a_fast_tier_that_failed_gets_nothing_while_the_spill_is_well() {
    let world = world();
    world.store.fault(0);
    let alloc = || world.store.alloc(ExtentIndex(2));
    while alloc().is_some_and(|(place, _)| place.tier == 1) {}
    assert_eq!(alloc(), None);
}

#[test]
fn a_slab_that_cannot_be_released_is_neither_used_nor_taken_again() {
    let world = world();
    world.store.take_slab(0).unwrap();
    world.tiers[0].state.refuse_release.store(true, Ordering::Relaxed);
    assert_eq!(world.store.release_empty_slab(0).unwrap_err().kind(), Kind::Io);
    world.tiers[0].state.refuse_release.store(false, Ordering::Relaxed);
    let count = world.store.tiers()[0].count();
    assert_eq!((count.held, count.quarantined, count.empty), (2, 1, 0));
    // The third slab is still there to take, and no more.
    assert!(world.store.take_slab(0).unwrap());
    assert!(!world.store.take_slab(0).unwrap());
}

#[test]
fn a_thread_that_waits_for_a_tier_with_a_deadline_keeps_looking() {
    let mut world = world();
    world.tiers[0].state.rings.store(true, Ordering::Relaxed);
    begin(&mut world, Command::Read, 600, 1, 0);
    trouble_of(&world, 1, HANGS);
    world.tiers[1].state.rings.store(true, Ordering::Relaxed);
    drive(&mut world, 1);
    assert_eq!(world.desks[0].session.idle(), Idle::Woken);
    trouble(&world, HANGS);
    begin(&mut world, Command::Read, 0, 1, 0);
    drive(&mut world, 1);
    assert_eq!(world.desks[0].session.idle(), Idle::Poll);
}

/// Drives until the only request that is open is answered: at once, or with time.
fn answer(world: &mut World) -> Finished {
    let mut finished = drive(world, 1);
    for later in [LOOK, LATE] {
        if finished.is_empty() {
            world.now += later;
            finished = drive(world, 1);
        }
    }
    assert_eq!(finished.len(), 1);
    finished[0]
}

#[test]
fn reads_of_a_tier_that_hangs_leave_the_other_tiers_their_requests() {
    let mut world = world();
    let (token, _) = begin(&mut world, Command::Write, 600, 1, 5);
    assert_eq!(drive(&mut world, 100).len(), 1);
    world.desks[0].session.release(token);
    trouble(&world, HANGS);
    for _ in 0..MAX_REQUESTS {
        let (token, _) = begin(&mut world, Command::Read, 0, 1, 0);
        assert_eq!(answer(&mut world), Finished { token, result: Err(Failure::TimedOut) });
        world.desks[0].session.release(token);
    }
    assert_eq!(read(&mut world, 600), (Ok(()), 5));
    assert_eq!(read(&mut world, 100), (Ok(()), 0), "zeros are asked of nobody");
    // It is asked again once it has answered what it was asked before.
    trouble(&world, WELL);
    drive(&mut world, 1000);
    assert_eq!(world.store.tiers()[0].lost_operations(), 0);
    assert_eq!(read(&mut world, 0).0, Ok(()));
}

#[test]
fn writes_that_have_no_other_place_leave_the_other_tiers_their_requests() {
    let mut world = World::with(1, 1, 300, &[10, 10]);
    finish_one(&mut world, Command::Write, 299 * 512, Duration::ZERO).unwrap();
    world.store.hold_slabs(0, 10).unwrap();
    for extent in 0..299 {
        finish_one(&mut world, Command::Write, extent * 512, Duration::ZERO).unwrap();
    }
    trouble(&world, HANGS);
    world.store.fault(0);
    while world.store.alloc(ExtentIndex(0)).is_some() {}
    for extent in 0..MAX_REQUESTS as u64 {
        let (token, _) = begin(&mut world, Command::Write, extent * 512, 1, 7);
        assert_eq!(answer(&mut world), Finished { token, result: Err(Failure::TimedOut) });
        world.desks[0].session.release(token);
    }
    assert_eq!(read(&mut world, 299 * 512).0, Ok(()));
}

/// The mover advances; nothing changes any more.
fn advance(world: &mut World) -> Progress {
    (0..1000).map(|_| world.mover.advance(world.now)).last().unwrap()
}

#[test]
fn a_move_that_a_tier_never_lets_read_is_given_up_and_requests_go_on() {
    let mut world = world();
    begin(&mut world, Command::Write, 0, 1, 3);
    assert_eq!(drive(&mut world, 100).len(), 1);
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    trouble(&world, HANGS);
    assert_eq!(advance(&mut world), Progress::Busy);
    let (token, host) = begin(&mut world, Command::Read, 0, 1, 0);
    assert_eq!(drive(&mut world, 10), []);
    let spilled = world.store.tiers()[1].count().used;
    assert_eq!(world.mover.give_up(), Progress::Abandoned(ExtentIndex(0), place, Reason::TimedOut));
    assert!(world.store.tiers()[0].is_faulty());
    assert_eq!(world.store.tiers()[1].count().used, spilled - 1);
    // The tier may still read there: neither trim nor mover takes the place away.
    let other = world.store.index.place(ExtentIndex(1)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    assert_eq!(world.mover.advance(world.now), Progress::Busy);
    assert!(matches!(world.mover.give_up(), Progress::Abandoned(..)));
    assert_eq!(world.mover.start(1, other.slot, 1), Err(Refused::NoRoom));
    trouble(&world, WELL);
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    assert_eq!(world.desks[0].memory.page(host), contents(0, 3));
    let (_, _) = begin(&mut world, Command::Trim, 0, 1, 0);
    assert_eq!(drive(&mut world, 10).len(), 1);
    assert_eq!(world.store.index.place(ExtentIndex(0)), Some(place));
    // Once it has answered, all is given back.
    assert_eq!(advance(&mut world), Progress::Idle);
    assert_eq!(world.store.index.place(ExtentIndex(0)), None);
    assert!(world.mover.is_quiet());
}

#[test]
fn a_move_that_a_tier_never_lets_write_is_given_up_and_its_slot_is_kept() {
    let mut world = world();
    let place = world.store.index.place(ExtentIndex(1)).unwrap();
    let used = world.store.tiers()[0].count().used;
    assert_eq!(world.mover.start(1, place.slot, 0), Ok(()));
    trouble(&world, HANGS);
    assert_eq!(advance(&mut world), Progress::Busy);
    assert_eq!(world.mover.give_up(), Progress::Abandoned(ExtentIndex(1), place, Reason::TimedOut));
    assert_eq!(world.store.index.place(ExtentIndex(1)), Some(place));
    assert!(world.store.tiers()[0].is_faulty());
    assert!(!world.store.tiers()[1].is_faulty());
    let (token, _) = begin(&mut world, Command::Write, 600, 1, 5);
    assert_eq!(drive(&mut world, 100), [Finished { token, result: Ok(()) }]);
    // A late write into a slot that somebody else has would be the end of a page.
    assert_eq!(advance(&mut world), Progress::Idle);
    assert_eq!(world.store.tiers()[0].count().used, used + 1);
    trouble(&world, WELL);
    assert_eq!(advance(&mut world), Progress::Idle);
    assert_eq!(world.store.tiers()[0].count().used, used);
    assert_eq!(read(&mut world, 600), (Ok(()), 5));
}

#[test]
fn a_move_that_waits_for_a_lost_request_is_given_up() {
    let mut world = world();
    trouble(&world, HANGS);
    begin(&mut world, Command::Write, 0, 1, 5);
    drive(&mut world, 1);
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    assert_eq!(advance(&mut world), Progress::Busy);
    assert!(!world.store.pins[0].pin());
    assert_eq!(world.mover.give_up(), Progress::Abandoned(ExtentIndex(0), place, Reason::TimedOut));
    assert!(world.store.pins[0].pin());
    world.store.unpin(ExtentIndex(0));
    // Other extents can be moved at once.
    let place = world.store.index.place(ExtentIndex(1)).unwrap();
    trouble(&world, WELL);
    assert_eq!(world.mover.start(1, place.slot, 0), Ok(()));
}

#[test]
fn a_cancelled_write_never_overwrites_what_was_written_elsewhere() {
    let mut world = World::new(1, 2);
    world.store.take_slab(0).unwrap();
    // The connection is lost with a write parked behind a move.
    assert!(world.store.pins[1].want());
    let (token, _) = begin(&mut world, Command::Write, 512, 1, 8);
    assert_eq!(drive(&mut world, 1), []);
    world.desks[0].session.cancel();
    world.store.pins[1].withdraw();
    // The kernel sends it again on another one, and later a newer one.
    world.desks.swap(0, 1);
    for tag in [8, 9] {
        let (token, _) = begin(&mut world, Command::Write, 512, 1, tag);
        assert_eq!(drive(&mut world, 100).len(), 1);
        world.desks[0].session.release(token);
    }
    world.desks.swap(0, 1);
    let ended = Finished { token, result: Err(Failure::Io) };
    assert_eq!(drive(&mut world, 100), [ended]);
    world.desks[0].session.release(token);
    assert_eq!(read(&mut world, 512), (Ok(()), 9));
}

/// Fails the mover's operations.
const FAILS: u64 = 1;

#[test]
fn an_abandoned_move_leaves_the_extent_its_lock_and_all_slots_as_they_were() {
    let used = |world: &World| [0, 1].map(|tier: usize| world.store.tiers()[tier].count().used);
    let mut world = world();
    begin(&mut world, Command::Write, 0, 1, 1);
    assert_eq!(drive(&mut world, 100)[0].result, Ok(()));
    let (before, place) = (used(&world), world.store.index.place(ExtentIndex(0)).unwrap());
    trouble(&world, FAILS);
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    let abandoned = Progress::Abandoned(ExtentIndex(0), place, Reason::Fault);
    assert_eq!(end_of_move(&mut world), abandoned);
    assert_eq!(used(&world), before);
    assert_eq!(world.store.index.place(ExtentIndex(0)), Some(place));
    assert!(world.store.tiers()[0].is_faulty());
    assert_eq!(world.store.tiers()[0].count().quarantined, 0);
    // Nothing was given up: what could not be read then can be read now.
    trouble(&world, WELL);
    assert_eq!(world.store.index.bad_pages(ExtentIndex(0)), 0);
    assert_eq!(read(&mut world, 0), (Ok(()), 1));
}

fn end_of_move(world: &mut World) -> Progress {
    let mut ends = (0..1000).map(|_| world.mover.advance(world.now));
    ends.find(|end| *end != Progress::Busy).unwrap()
}

#[test]
fn a_damaged_page_does_not_keep_its_extent_and_reads_as_an_error_until_it_is_written() {
    let mut world = world();
    begin(&mut world, Command::Write, 0, 3, 5);
    assert_eq!(drive(&mut world, 100)[0].result, Ok(()));
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    let key = (place.slab().0, place.slot.byte_in_slab() / PAGE + 1);
    world.tiers[0].state.pages().get_mut(&key).unwrap()[3] ^= 1;
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    let Progress::Moved(moved) = end_of_move(&mut world) else { panic!("not moved") };
    assert_eq!((moved.lost_pages, moved.bytes), (1, 2 * u64::from(PAGE)));
    assert_eq!(world.store.tiers()[0].count().quarantined, 1);
    assert_eq!(world.store.index.place(ExtentIndex(0)).unwrap().tier, 1);
    assert_eq!(read(&mut world, 1).0, Err(Failure::Io));
    assert_eq!((read(&mut world, 0), read(&mut world, 2)), ((Ok(()), 5), (Ok(()), 5)));
    // The spill is not blamed, and a rewrite heals.
    assert_eq!(world.store.tiers()[1].count().quarantined, 0);
    begin(&mut world, Command::Write, 1, 1, 6);
    assert_eq!(drive(&mut world, 100)[0].result, Ok(()));
    assert_eq!(read(&mut world, 1), (Ok(()), 6));
}

#[test]
fn a_move_of_an_extent_that_was_emptied_meanwhile_is_abandoned_and_keeps_no_slot() {
    let mut world = world();
    // A read holds the extent, a trim asks for its sweep, then the mover comes.
    trouble(&world, HANGS);
    begin(&mut world, Command::Read, 0, 1, 0);
    assert_eq!(drive(&mut world, 1), []);
    begin(&mut world, Command::Trim, 0, 1, 0);
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert_eq!(world.mover.start(0, place.slot, 1), Ok(()));
    assert_eq!(world.mover.advance(world.now), Progress::Busy);
    trouble(&world, WELL);
    assert_eq!(drive(&mut world, 100).len(), 2);
    assert_eq!(
        world.mover.advance(world.now),
        Progress::Abandoned(ExtentIndex(0), place, Reason::Gone)
    );
    assert_eq!(world.store.index.place(ExtentIndex(0)), None);
    assert_eq!([0, 1].map(|tier: usize| world.store.tiers()[tier].count().used), [0, 1]);
    // A slot that nobody uses has nobody to be moved.
    assert_eq!(world.mover.start(0, place.slot, 1), Err(Refused::Vacant));
}

#[test]
fn a_write_that_failed_leaves_the_page_as_it_was() {
    let mut world = world();
    for (what, tag, result) in [(WELL, 3, Ok(())), (FAILS, 4, Err(Failure::Io))] {
        trouble(&world, what);
        begin(&mut world, Command::Write, 0, 1, tag);
        assert_eq!(drive(&mut world, 100)[0].result, result);
    }
    trouble(&world, WELL);
    assert_eq!(read(&mut world, 0), (Ok(()), 3));
    assert_eq!(world.store.totals().checksum_errors, 0);
}
