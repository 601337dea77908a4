// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiers that fail, hang or answer late, and what must not come of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::io::{BlockIo, Command, Finished};
use super::super::units::ExtentIndex;
use super::memory_tier::{PAGE, contents};
use super::world::World;
use super::{Result2, finish_one};

/// Fast tier trouble: nothing is answered.
const HANGS: u64 = 2;
const WELL: u64 = 0;

/// Well above the fast tier's deadline.
const LATE: Duration = Duration::from_secs(10);

/// One session, and a page in each of the first two extents in the fast tier.
fn world() -> World {
    let mut world = World::new(1, 1);
    world.store.take_slab(0).unwrap();
    for page in [0, 600] {
        finish_one(&mut world, Command::Write, page, Duration::ZERO).unwrap();
    }
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
