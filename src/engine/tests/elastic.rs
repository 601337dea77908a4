// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper at work on a store: targets, reserve, promotion, several tiers,
//! while requests go on and every page is checked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::super::crash::until_crash;
use super::super::housekeeping::{Housekeeping, LOOK, Pace, REFUSED};
use super::super::io::Command;
use super::super::mover::PATIENCE;
use super::super::orders::{Progress, State};
use super::super::units::{ByteLen, ExtentIndex, SLAB_BYTES};
use super::finish_one;
use super::random::{Act, act, act_or_trouble, play_one, send_again};
use super::world::{EXTENTS, World, mover};

const SLAB: u64 = SLAB_BYTES as u64;
const HANGS: u64 = 2;
const WELL: u64 = 0;

/// A world whose extents' first pages are all written, and its keeper.
struct House {
    world: World,
    keeping: Housekeeping,
    order: u64,
}

impl House {
    /// Extents that fill `slabs[0]` and so on up to the spill, as the keeper
    /// takes slabs.
    fn new(extents: u32, slabs: &[u32], targets: &[u32]) -> Self {
        let mut house = Self::of(World::with(3, 1, extents, slabs));
        house.order(targets);
        for extent in 0..extents {
            house.settle();
            house.world.start(0, Command::Write, u64::from(extent) * 512 + 7, 2);
            house.world.settle().unwrap();
        }
        house.settle();
        house
    }

    /// A keeper for a world as it is, which holds what is held.
    fn of(mut world: World) -> Self {
        let keeping =
            Housekeeping::new(Arc::clone(&world.store), mover(&world.store, &world.tiers));
        world.now += LOOK;
        Self { world, keeping, order: 0 }
    }

    fn order(&mut self, targets: &[u32]) {
        self.give(targets, ByteLen(0), false);
    }

    fn give(&mut self, targets: &[u32], reserve: ByteLen, close: bool) {
        self.order += 1;
        self.keeping.order(self.order, targets, reserve, close);
    }

    fn step(&mut self) -> Pace {
        self.keeping.step(self.world.now).unwrap()
    }

    /// Until it rests, without time passing.
    fn settle(&mut self) -> u32 {
        (0..200_000).find(|_| self.step() == Pace::Rest).expect("the keeper comes to rest")
    }

    fn later(&mut self, by: Duration) {
        self.world.now += by;
    }

    fn progress(&self) -> Progress {
        self.keeping.progress(self.world.now)
    }

    fn held(&self) -> Vec<u32> {
        self.world.store.tiers().iter().map(|slots| slots.count().held).collect()
    }

    fn used(&self) -> Vec<u32> {
        self.world.store.tiers().iter().map(|slots| slots.count().used).collect()
    }

    fn tier_of(&self, extent: u32) -> u8 {
        self.world.store.place(ExtentIndex(extent)).unwrap().tier
    }

    fn trouble(&self, tier: usize, what: u64) {
        self.world.tiers[tier].state.trouble.store(what, Ordering::Relaxed);
    }
}

#[test]
fn a_target_of_nothing_moves_every_page_to_the_spill_and_back_up_only_what_is_read() {
    let mut house = House::new(100, &[6, 4], &[6]);
    assert_eq!(house.used(), [100, 0]);
    house.order(&[0]);
    house.step();
    assert_eq!(house.progress().state, State::Working);
    assert_eq!(house.progress().tiers[0].pages_over_target, 200);
    house.settle();
    let progress = house.progress();
    assert_eq!((progress.order, progress.state), (2, State::AtRest));
    assert_eq!((house.held()[0], house.used()), (0, vec![0, 100]));
    let tier = &progress.tiers[0];
    assert_eq!((tier.moved_extents, tier.moved_bytes), (100, 100 * 2 * 4096));
    assert_eq!((tier.held_slabs, tier.target_slabs, tier.pages_over_target), (0, 0, 0));
    house.world.read_all().unwrap();
    // Those were reads in the spill: with room again, all of it is promoted.
    house.order(&[6]);
    house.later(LOOK);
    house.settle();
    assert_eq!(house.used(), [100, 0]);
    // And once more, but nobody reads: what is cold stays where it is.
    house.order(&[0]);
    house.settle();
    house.order(&[6]);
    house.later(LOOK);
    house.settle();
    assert_eq!((house.held()[0], house.used()), (1, vec![0, 100]));
    house.world.read_all().unwrap();
}

#[test]
fn the_slabs_with_the_fewest_written_pages_leave_first() {
    let mut house = House::new(64, &[2, 2], &[2]);
    let slab = |house: &House, extent| house.world.store.place(ExtentIndex(extent)).unwrap().slab();
    let light = slab(&house, 0);
    for extent in 0..64 {
        if slab(&house, extent) != light {
            house.world.start(0, Command::Write, u64::from(extent) * 512 + 100, 3);
            house.world.settle().unwrap();
        }
    }
    house.order(&[1]);
    house.settle();
    assert_eq!(house.used(), [32, 32]);
    for extent in 0..64 {
        let is_light = house.world.store.index.written_pages(ExtentIndex(extent)) == 2;
        assert_eq!(house.tier_of(extent), u8::from(is_light), "extent {extent}");
    }
    house.world.read_all().unwrap();
}

#[test]
fn among_equally_light_slabs_the_coldest_leaves_first() {
    let mut house = House::new(64, &[2, 2], &[2]);
    // The lowest slab is the hot one.
    for _ in 0..5 {
        for extent in 0..64 {
            if house.world.store.place(ExtentIndex(extent)).unwrap().slab().0 == 0 {
                finish_one(&mut house.world, Command::Read, extent.into(), Duration::ZERO).unwrap();
                house.world.store.heat.read(ExtentIndex(extent));
            }
        }
    }
    house.order(&[1]);
    house.settle();
    for extent in 0..64 {
        let place = house.world.store.place(ExtentIndex(extent)).unwrap();
        assert!(place.tier == 1 || place.slab().0 == 0, "extent {extent} is in {place:?}");
    }
}

#[test]
fn extents_are_packed_together_before_any_goes_to_the_spill() {
    let mut house = House::new(96, &[3, 3], &[3]);
    for extent in (0..96).filter(|extent| extent % 3 != 0) {
        house.world.start(0, Command::Trim, extent * 512, 512);
        house.world.settle().unwrap();
    }
    assert_eq!(house.used(), [32, 0]);
    house.order(&[1]);
    house.settle();
    assert_eq!((house.held()[0], house.used()), (1, vec![32, 0]));
    house.world.read_all().unwrap();
}

#[test]
fn the_first_device_is_filled_first_and_what_leaves_one_finds_room_in_another() {
    let mut house = House::new(128, &[2, 4, 4], &[2, 4]);
    assert_eq!(house.used(), [64, 64, 0]);
    // The second has room for a slab more than it needs.
    house.order(&[1, 4]);
    house.settle();
    assert_eq!(house.held()[0], 1);
    assert_eq!(house.used(), [32, 96, 0]);
    house.order(&[1, 1]);
    house.settle();
    assert_eq!((house.used()[0], house.used()[1]), (32, 32));
    house.world.read_all().unwrap();
}

#[test]
fn memory_that_others_need_is_given_back_and_taken_again_only_with_room_to_spare() {
    let mut house = House::new(64, &[4, 4], &[4]);
    assert_eq!(house.held()[0], 3);
    let free = |house: &House, bytes| {
        house.world.tiers[0].state.free_bytes.store(bytes, Ordering::Relaxed);
    };
    let held_after = |house: &mut House, bytes| {
        free(house, bytes);
        house.later(LOOK);
        house.settle();
        house.held()[0]
    };
    house.give(&[4], ByteLen(10 * SLAB), false);
    assert_eq!(held_after(&mut house, 10 * SLAB), 3);
    // One slab and a byte short: two slabs go.
    assert_eq!(held_after(&mut house, 9 * SLAB - 1), 1);
    assert_eq!(held_after(&mut house, 12 * SLAB - 1), 1);
    assert_eq!(held_after(&mut house, 12 * SLAB), 2);
    house.world.read_all().unwrap();
}

#[test]
fn drivers_are_asked_for_free_memory_once_per_look_however_often_the_keeper_is_woken() {
    let mut house = House::new(8, &[4, 1], &[4]);
    let asked = |house: &House| house.world.tiers[0].state.asked.load(Ordering::Relaxed);
    house.later(LOOK);
    house.step();
    let before = asked(&house);
    for _ in 0..100 {
        house.step();
    }
    assert_eq!(asked(&house), before);
    house.later(LOOK);
    house.step();
    assert_eq!(asked(&house), before + 1);
}

#[test]
fn a_device_is_closed_once_nothing_is_held_and_opened_by_a_higher_target() {
    let mut house = House::new(40, &[2, 2], &[2]);
    house.give(&[0], ByteLen(0), true);
    house.settle();
    let progress = house.progress();
    assert_eq!((progress.state, progress.tiers[0].is_open), (State::AtRest, false));
    // Writes go on meanwhile and open nothing.
    for extent in 0..40 {
        house.world.start(0, Command::Write, extent * 512, 1);
    }
    house.world.settle().unwrap();
    house.settle();
    assert!(!house.progress().tiers[0].is_open);
    house.give(&[2], ByteLen(0), true);
    house.settle();
    assert!(house.progress().tiers[0].is_open);
    house.world.read_all().unwrap();
}

#[test]
fn a_device_that_does_not_open_is_reported_tried_less_and_less_and_missed_by_no_write() {
    let mut house = House::new(40, &[2, 2], &[2]);
    house.give(&[0], ByteLen(0), true);
    house.settle();
    let state = Arc::clone(&house.world.tiers[0].state);
    state.refuse_open.store(true, Ordering::Relaxed);
    house.give(&[2], ByteLen(0), false);
    let faults = |house: &House| house.world.store.totals().tiers[0].faults;
    for (failure, pause) in [(1, REFUSED), (2, REFUSED * 2), (3, REFUSED * 4)] {
        assert!(house.keeping.step(house.world.now).is_err(), "try {failure}");
        assert_eq!(faults(&house), failure);
        let State::Stuck(why) = house.progress().state else { panic!("{:?}", house.progress()) };
        assert!(why.contains("test is not opened"), "{why}");
        house.later(pause.checked_sub(Duration::from_millis(1)).unwrap());
        house.settle();
        assert_eq!(faults(&house), failure, "not before {pause:?} are over");
        house.later(Duration::from_millis(1));
    }
    for extent in 0..40 {
        house.world.start(0, Command::Write, extent * 512, 1);
    }
    house.world.settle().unwrap();
    assert_eq!(house.used(), [0, 40]);
    state.refuse_open.store(false, Ordering::Relaxed);
    house.settle();
    assert_eq!((house.progress().state, house.held()[0] > 0), (State::AtRest, true));
    house.world.read_all().unwrap();
}

#[test]
fn an_opened_device_gives_no_slab_before_all_are_prepared_for_it() {
    let mut house = House::new(40, &[2, 2], &[2]);
    house.give(&[0], ByteLen(0), true);
    house.settle();
    let state = Arc::clone(&house.world.tiers[0].state);
    state.unprepared.store(true, Ordering::Relaxed);
    house.give(&[2], ByteLen(0), false);
    house.settle();
    assert_eq!((house.progress().tiers[0].is_open, house.held()[0]), (true, 0));
    state.unprepared.store(false, Ordering::Relaxed);
    house.settle();
    assert!(house.held()[0] > 0);
    house.world.read_all().unwrap();
}

#[test]
fn a_move_into_a_spill_that_answers_nothing_lets_its_requests_go_on_after_the_patience() {
    let mut house = House::new(4, &[1, 1], &[1]);
    house.trouble(1, HANGS);
    house.order(&[0]);
    (0..1000).for_each(|_| _ = house.step());
    house.world.start(0, Command::Read, 7, 1);
    for _ in 0..100 {
        house.world.drive(0).unwrap();
        house.step();
    }
    assert_eq!(house.world.desks[0].open.len(), 1, "the extent is on its way");
    house.later(PATIENCE);
    (0..100).for_each(|_| _ = house.step());
    house.world.settle().unwrap();
    let State::Stuck(why) = house.progress().state else { panic!("{:?}", house.progress()) };
    assert!(why.contains("does not answer"), "{why}");
    // A slow disk is no faulty one.
    assert!(!house.world.store.tiers()[1].is_faulty());
    house.trouble(1, WELL);
    // Late answers set the buffers free.
    (0..100).for_each(|_| _ = house.step());
    house.later(Duration::from_secs(20));
    house.settle();
    assert_eq!((house.progress().state, house.used()), (State::AtRest, vec![0, 4]));
    house.world.read_all().unwrap();
}

#[test]
fn a_slab_that_the_device_does_not_take_back_is_said_so() {
    let mut house = House::new(4, &[1, 1], &[1]);
    house.world.tiers[0].state.refuse_release.store(true, Ordering::Relaxed);
    house.order(&[0]);
    let error = (0..100_000).find_map(|_| house.keeping.step(house.world.now).err());
    assert!(error.unwrap().to_string().contains("stays mapped"));
    house.later(LOOK);
    house.settle();
    let State::Stuck(why) = house.progress().state else { panic!("{:?}", house.progress()) };
    assert!(why.contains("stays mapped"), "{why}");
    assert_eq!(house.used(), [0, 4]);
}

#[derive(Clone, Debug)]
enum Deed {
    Act(Act),
    Order(u32),
    Steps(u8),
    Later,
}

fn deed() -> impl Strategy<Value = Deed> {
    deed_of(act())
}

fn deed_of(act: impl Strategy<Value = Act>) -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => act.prop_map(Deed::Act),
        1 => (0u32..3).prop_map(Deed::Order),
        4 => (1u8..40).prop_map(Deed::Steps),
        1 => Just(Deed::Later),
    ]
}

/// The world's own mover stays idle: a store has one.
fn play_kept(house: &mut House, deeds: &[Deed]) -> std::result::Result<(), TestCaseError> {
    for deed in deeds {
        match deed {
            Deed::Act(Act::Keep(_)) => {}
            Deed::Act(act) => play_one(&mut house.world, act)?,
            Deed::Order(target) => house.order(&[*target]),
            Deed::Steps(steps) => (0..*steps).for_each(|_| _ = house.step()),
            Deed::Later => {
                // Tiers have long answered by then; no deadline decides here.
                for _ in 0..40 {
                    for desk in 0..house.world.desks.len() {
                        house.world.drive(desk)?;
                    }
                }
                house.later(LOOK);
            }
        }
    }
    for _ in 0..100_000 {
        let at_rest = house.step() == Pace::Rest;
        for desk in 0..house.world.desks.len() {
            house.world.drive(desk)?;
        }
        if at_rest && house.world.desks.iter().all(|desk| desk.open.is_empty()) {
            return Ok(());
        }
    }
    Err(TestCaseError::fail("requests or the keeper never finish"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Requests, orders that change in the middle of others, and a process that
    /// dies after any store: every page is as it was written last, the keeper
    /// comes to rest at its target, and no slot or page stays locked.
    #[test]
    fn orders_beside_requests_lose_nothing_and_are_carried_out(
        seed: u64,
        mirror: bool,
        deeds in proptest::collection::vec(deed(), 1..80),
        stores in prop_oneof![2 => Just(u64::MAX), 1 => 0u64..400],
        more in proptest::collection::vec(deed(), 1..40),
    ) {
        let world = World::made(seed, 2, EXTENTS, &[3, 1], mirror);
        let mut house = House::of(world);
        house.order(&[2]);
        house.world.fuel.set(stores);
        until_crash(|| play_kept(&mut house, &deeds)).unwrap_or(Ok(()))?;
        if stores < u64::MAX {
            house.world.recover()?;
            house.world.read_all()?;
            send_again(&mut house.world)?;
            house = House::of(house.world);
        }
        play_kept(&mut house, &more)?;
        house.world.read_all()?;
        house.order(&[0]);
        play_kept(&mut house, &[])?;
        let progress = house.progress();
        prop_assert_eq!(progress.state, State::AtRest);
        prop_assert_eq!((house.held()[0], house.used()[0]), (0, 0));
        house.world.read_all()?;
    }

    /// A fast tier that fails, is lost and is back in turns, beside the keeper:
    /// every request is answered, if by an error, no page is wrong, the keeper
    /// comes to rest, and well again the tier can be emptied.
    #[test]
    fn a_failing_tier_beside_the_keeper_makes_no_page_wrong_and_keeps_nobody_busy(
        seed: u64,
        mirror: bool,
        deeds in proptest::collection::vec(deed_of(act_or_trouble()), 1..80),
    ) {
        let mut house = House::of(World::made(seed, 2, EXTENTS, &[3, 1], mirror));
        house.world.may_fail = true;
        house.order(&[2]);
        play_kept(&mut house, &deeds)?;
        house.world.read_all()?;
        play_one(&mut house.world, &Act::Trouble(0))?;
        house.order(&[0]);
        house.later(LOOK * 10);
        play_kept(&mut house, &[])?;
        prop_assert_eq!(house.progress().state, State::AtRest);
        prop_assert_eq!((house.held()[0], house.used()[0]), (0, 0));
        house.world.read_all()?;
    }
}
