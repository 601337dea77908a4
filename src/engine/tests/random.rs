// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random requests, moves, slab changes and crashes.

use proptest::prelude::*;

use super::super::crash::until_crash;
use super::super::io::Command;
use super::world::{EXTENTS, World};

#[derive(Clone, Debug)]
enum Act {
    Start(u8, Command, u64, u64),
    Drive(u8),
    Keep(u8),
}

/// Few pages, close together and across extent borders, so that requests meet.
fn act() -> impl Strategy<Value = Act> {
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
        match *act {
            Act::Start(desk, command, page, count) => {
                world.start(desk as usize % world.desks.len(), command, page, count);
            }
            Act::Drive(desk) => world.drive(desk as usize % world.desks.len())?,
            Act::Keep(what) => world.housekeeping(what),
        }
    }
    world.settle()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Reads, writes, trims, moves and slab changes in any order never show a
    /// lost, stale, torn or foreign page, and nothing waits for ever.
    #[test]
    fn any_history_is_linear(seed: u64, acts in proptest::collection::vec(act(), 1..120)) {
        let mut world = World::new(seed, 2);
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
        acts in proptest::collection::vec(act(), 1..80),
        stores in 0u64..400,
        more in proptest::collection::vec(act(), 0..30),
    ) {
        let mut world = World::new(seed, 2);
        world.fuel.set(stores);
        until_crash(|| play(&mut world, &acts)).unwrap_or(Ok(()))?;
        world.recover()?;
        world.read_all()?;
        // The kernel sends again what was not answered; the store lives on.
        for page in world.history.0.keys().copied().collect::<Vec<_>>() {
            if world.history.being_written(page) {
                world.start(0, Command::Write, page, 1);
                world.settle()?;
                let clock = world.tick();
                for write in world.history.of(page) {
                    write.acked.get_or_insert(clock.min(write.began));
                }
            }
        }
        play(&mut world, &more)?;
        world.read_all()?;
    }
}
