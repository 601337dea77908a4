// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random requests, moves, slab changes and crashes.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::super::crash::until_crash;
use super::super::io::Command;
use super::super::units::ExtentIndex;
use super::world::{EXTENTS, World};

#[derive(Clone, Debug)]
pub(super) enum Act {
    Start(u8, Command, u64, u64),
    Drive(u8),
    Keep(u8),
    /// What is wrong with the fast tier from here on.
    Trouble(u64),
}

/// Few pages, close together and across extent borders, so that requests meet.
pub(super) fn act() -> impl Strategy<Value = Act> {
    let page = prop_oneof![0u64..6, 508u64..516, 1020u64..1030, 1530u64..1536];
    let command = prop_oneof![
        3 => Just(Command::Write),
        2 => Just(Command::Read),
        1 => Just(Command::Trim),
        1 => Just(Command::WriteZeroes),
    ];
    prop_oneof![
        4 => (0u8..2, command, page, 1u64..8).prop_map(|(desk, command, page, count)| {
            Act::Start(desk, command, page, count.min(u64::from(EXTENTS) * 512 - page))
        }),
        1 => (0u64..512).prop_map(|page| Act::Start(0, Command::Trim, page, 1536 - page)),
        5 => (0u8..2).prop_map(Act::Drive),
        3 => (0u8..8).prop_map(Act::Keep),
    ]
}

fn play(world: &mut World, acts: &[Act]) -> std::result::Result<(), TestCaseError> {
    for act in acts {
        play_one(world, act)?;
    }
    world.settle()
}

pub(super) fn play_one(world: &mut World, act: &Act) -> std::result::Result<(), TestCaseError> {
    match *act {
        Act::Start(desk, command, page, count) => {
            world.start(desk as usize % world.desks.len(), command, page, count);
        }
        Act::Drive(desk) => world.drive(desk as usize % world.desks.len())?,
        Act::Keep(what) => world.housekeeping(what),
        Act::Trouble(what) => trouble(world, what),
    }
    Ok(())
}

/// A tier that fails, or is well again and trusted again.
fn trouble(world: &World, what: u64) {
    world.tiers[0].state.trouble.store(what, Ordering::Relaxed);
    if what == 0 {
        let _ = world.store.readmit(0);
    }
}

pub(super) fn act_or_trouble() -> impl Strategy<Value = Act> {
    let what = prop_oneof![Just(0), Just(1), Just(3), Just(4)];
    prop_oneof![8 => act(), 1 => what.prop_map(Act::Trouble)]
}

fn world(seed: u64, mirror: bool) -> World {
    if mirror { World::mirrored(seed, 2) } else { World::new(seed, 2) }
}

/// The kernel sends again what was not answered. What is refused then may be
/// anything still.
pub(super) fn send_again(world: &mut World) -> std::result::Result<(), TestCaseError> {
    for page in world.history.0.keys().copied().collect::<Vec<_>>() {
        if world.history.being_written(page) {
            world.start(0, Command::Write, page, 1);
            world.settle()?;
            let clock = world.tick();
            let writes = world.history.of(page);
            if writes.last().is_some_and(|write| write.acked.is_none()) {
                continue;
            }
            for write in writes {
                write.acked.get_or_insert(clock.min(write.began));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Reads, writes, trims, moves and slab changes in any order never show a
    /// lost, stale, torn or foreign page, and nothing waits for ever.
    #[test]
    fn any_history_is_linear(
        seed: u64,
        mirror: bool,
        acts in proptest::collection::vec(act(), 1..120),
    ) {
        let mut world = world(seed, mirror);
        play(&mut world, &acts)?;
        world.read_all()?;
        // All trimmed: nothing is written, and every fast slab can go back.
        world.start(0, Command::Trim, 0, u64::from(EXTENTS) * 512);
        world.settle()?;
        prop_assert_eq!(world.store.written_pages(), 0);
        while world.store.release_empty_slab(0).unwrap() {}
        prop_assert_eq!(world.store.tiers()[0].count().held, 0);
        prop_assert_eq!(world.store.tiers()[1].count().used, 0);
    }

    /// The process dies after any single store of index or data; a new one
    /// finds every acknowledged page, and no page raises a false alarm.
    #[test]
    fn a_crash_after_any_store_loses_nothing(
        seed: u64,
        mirror: bool,
        acts in proptest::collection::vec(act(), 1..80),
        stores in 0u64..400,
        more in proptest::collection::vec(act(), 0..30),
    ) {
        let mut world = world(seed, mirror);
        world.fuel.set(stores);
        until_crash(|| play(&mut world, &acts)).unwrap_or(Ok(()))?;
        world.recover()?;
        world.read_all()?;
        // Wherever an extent goes now, its torn pages hold what was adopted.
        for extent in (0..EXTENTS).map(ExtentIndex) {
            if let Some(place) = world.store.place(extent) {
                let _ = world.mover.start(place.tier as usize, place.slot, 1);
                world.settle()?;
            }
        }
        world.read_all()?;
        send_again(&mut world)?;
        play(&mut world, &more)?;
        world.read_all()?;
    }

    /// The fast tier fails at any moment, torn pages included: in a mirrored
    /// store every request succeeds and every page is as it was written last,
    /// even if the process dies as well.
    #[test]
    fn the_loss_of_the_fast_tier_costs_a_mirror_nothing(
        seed: u64,
        acts in proptest::collection::vec(act(), 1..60),
        what in prop_oneof![Just(1u64), Just(3), Just(4)],
        more in proptest::collection::vec(act(), 1..60),
        stores in prop_oneof![Just(u64::MAX), 0u64..300],
    ) {
        let mut world = World::mirrored(seed, 2);
        // Requests and moves are under way when it fails.
        for act in &acts {
            play_one(&mut world, act)?;
        }
        trouble(&world, what);
        world.fuel.set(stores);
        until_crash(|| play(&mut world, &more)).unwrap_or(Ok(()))?;
        if stores < u64::MAX {
            world.recover()?;
            world.read_all()?;
            send_again(&mut world)?;
        }
        world.read_all()?;
    }

    /// A fast tier that fails and works in turns, without a mirror: a request
    /// is answered, if by an error; what is read is never wrong.
    #[test]
    fn a_failing_tier_answers_errors_and_never_wrong_data(
        seed: u64,
        mirror: bool,
        acts in proptest::collection::vec(act_or_trouble(), 1..120),
    ) {
        let mut world = world(seed, mirror);
        world.may_fail = true;
        play(&mut world, &acts)?;
        world.read_all()?;
        // Well again: what is written now stays.
        trouble(&world, 0);
        for page in [3, 511, 512, 1535] {
            world.start(0, Command::Write, page, 1);
        }
        world.settle()?;
        world.read_all()?;
    }

    /// The fast tier is lost at any moment, and the process dies as well: what is
    /// read then, from a device that is back or not, is never wrong, and what was
    /// given up stays so.
    #[test]
    fn a_lost_tier_and_a_crash_make_no_page_wrong(
        seed: u64,
        acts in proptest::collection::vec(act(), 1..60),
        more in proptest::collection::vec(act(), 1..60),
        stores in prop_oneof![Just(u64::MAX), 0u64..300],
        is_back: bool,
    ) {
        let mut world = World::new(seed, 2);
        world.may_fail = true;
        for act in &acts {
            play_one(&mut world, act)?;
        }
        trouble(&world, 4);
        world.fuel.set(stores);
        until_crash(|| play(&mut world, &more)).unwrap_or(Ok(()))?;
        if is_back {
            world.tiers[0].state.trouble.store(0, Ordering::Relaxed);
        }
        if stores < u64::MAX {
            world.recover()?;
            world.read_all()?;
            send_again(&mut world)?;
        }
        play(&mut world, &more)?;
        world.read_all()?;
    }
}
