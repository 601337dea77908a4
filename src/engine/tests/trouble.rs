// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiers that fail, hang or answer late, and what must not come of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::io::{BlockIo, Command, Failure, Finished};
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
    world.tiers[0].state.trouble.store(what, Ordering::Relaxed);
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
    assert!(world.mover.start(0, place.slot, 1));
    begin(&mut world, Command::Read, 0, 1, 0);
    assert_eq!(drive(&mut world, 1), []);
    world.now += LATE;
    while world.mover.advance() == super::super::mover::Progress::Busy {}
    // Back to the fast tier, whose deadline counts.
    let place = world.store.index.place(ExtentIndex(0)).unwrap();
    assert!(world.mover.start(1, place.slot, 0));
    while world.mover.advance() == super::super::mover::Progress::Busy {}
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
