// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold whatever happens, in any order.

use super::*;

/// What can happen in a history.
#[derive(Clone, Debug)]
enum Happening {
    Told(Event),
    /// Milliseconds pass.
    Time(u64),
    /// The order that runs ends, well or not.
    Ended(bool),
    Looked,
    /// The store is not there any more.
    Died,
    /// systemd has started one.
    Started,
    /// Somebody told it to hold so many slabs.
    ByHand(u64),
    /// Its GPU fails, or is admitted again.
    Faulty(bool),
}

fn power() -> impl Strategy<Value = Power> {
    (any::<bool>(), proptest::option::of(0_u8..=100))
        .prop_map(|(on_battery, level)| Power { on_battery, level })
}

fn gib() -> impl Strategy<Value = ByteLen> {
    (0_u64..10).prop_map(|gib| ByteLen(gib << 30))
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::TurnedOn),
        1 => Just(Event::TurnedOff),
        1 => proptest::option::of(gib()).prop_map(Event::TargetSet),
        1 => Just(Event::Suspended),
        1 => Just(Event::Resumed),
        1 => (0_u64..4, gib()).prop_map(|(lease, bytes)| Event::LeaseTaken { lease, bytes }),
        1 => (0_u64..4).prop_map(|lease| Event::LeaseEnded { lease }),
        4 => power().prop_map(Event::PowerChanged),
        1 => Just(Event::SleepBegan),
        1 => Just(Event::SleepEnded),
        1 => Just(Event::ShutdownBegan),
        1 => Just(Event::ShutdownCancelled),
        1 => any::<bool>().prop_map(Event::MemoryPressed),
        1 => proptest::option::of(gib()).prop_map(Event::VramBounded),
        1 => any_policy().prop_map(Event::PolicyChanged),
    ]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let behaviour = prop_oneof![
        Just(OnBattery::Stop),
        Just(OnBattery::Keep),
        (0_u64..8).prop_map(|gib| OnBattery::Shrink(ByteLen(gib << 30))),
    ];
    (behaviour, 0_u8..=100, 0_u8..=100, proptest::option::of(gib()), any::<bool>()).prop_map(
        |(on_battery, threshold, resume_threshold, idle_target, has_spill)| Policy {
            on_battery,
            threshold,
            resume_threshold,
            idle_target,
            has_spill,
            ..policy()
        },
    )
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => event().prop_map(Happening::Told),
        3 => (0_u64..20_000).prop_map(Happening::Time),
        4 => prop::bool::weighted(0.8).prop_map(Happening::Ended),
        4 => Just(Happening::Looked),
        1 => Just(Happening::Died),
        1 => Just(Happening::Started),
        1 => (0_u64..128).prop_map(Happening::ByHand),
        1 => any::<bool>().prop_map(Happening::Faulty),
    ]
}

/// Lets one thing happen; the events that the arbiter was told.
fn happen(world: &mut World, happening: &Happening) -> Vec<Event> {
    match happening {
        Happening::Told(event) => {
            world.tell(event);
            return vec![event.clone()];
        }
        Happening::Time(ms) => {
            world.now += Duration::from_millis(*ms);
            world.tell(&Event::TimePassed);
        }
        Happening::Ended(well) => {
            world.end(*well);
        }
        Happening::Looked => {
            world.look();
        }
        Happening::Died => world.store = None,
        Happening::Started => {
            if world.store.is_none() {
                world.has_spill = world.state.policy().has_spill;
            }
            world.store.get_or_insert((FULL.0, true, false));
        }
        Happening::ByHand(slabs) => {
            if let Some((target, ..)) = &mut world.store {
                *target = slabs * SLAB_BYTES as u64;
            }
        }
        Happening::Faulty(is) => {
            if let Some((.., faulty)) = &mut world.store {
                *faulty = *is;
            }
        }
    }
    Vec::new()
}

/// What the store does, or was told to do.
fn in_force(state: &State) -> Option<Goal> {
    Some(state.phase.commanded().unwrap_or(last_seen(state)?))
}

fn last_seen(state: &State) -> Option<Goal> {
    state.store.map(|store| goal_of(store.target, store.open))
}

fn goal_of(target: ByteLen, open: bool) -> Goal {
    if target.0 == 0 && !open {
        Goal::Closed
    } else if target < FULL {
        Goal::Target(target)
    } else {
        Goal::Full
    }
}

/// The most that the store may do before it is told more. It may be another one
/// than was seen, or somebody else may have told it; one that is being started
/// does as its configuration says.
fn at_most(world: &World) -> Option<Goal> {
    let truth = world.store.map(|(target, open, _)| goal_of(ByteLen(target), open));
    let may_do = match world.state.phase {
        Phase::Moving { command: Command::StartStore, .. } => {
            truth.or(Some(Goal::Full)).max(last_seen(&world.state))
        }
        Phase::Moving { .. } => None,
        _ => truth,
    };
    may_do.max(in_force(&world.state))
}

fn commands(log: &[(Moment, Action)]) -> impl Iterator<Item = (Moment, Command)> + '_ {
    log.iter().filter_map(|(at, action)| match action {
        Action::Order { command, .. } => Some((*at, *command)),
        _ => None,
    })
}

proptest! {
    #[test]
    fn a_manual_off_is_undone_by_nothing_but_a_manual_on(
        first in any_policy(), history in prop::collection::vec(happening(), 1..80)
    ) {
        let mut world = World::new(first);
        let mut off = false;
        for happening in &history {
            world.log.clear();
            for told in happen(&mut world, happening) {
                match told {
                    Event::TurnedOff => off = true,
                    Event::TurnedOn => off = false,
                    _ => {}
                }
            }
            if off {
                for (_, command) in commands(&world.log) {
                    prop_assert!(!command.raises(), "{command:?} after {happening:?}");
                }
            }
        }
    }

    #[test]
    fn on_battery_the_declared_behaviour_holds_within_one_step(
        first in any_policy(), history in prop::collection::vec(happening(), 1..80)
    ) {
        let mut world = World::new(first);
        for happening in &history {
            happen(&mut world, happening);
            let state = &world.state;
            let (Some(bound), Some(in_force)) = (rules::battery_bound(state), in_force(state))
            else { continue };
            if state.shutting_down {
                continue;
            }
            let tried = matches!(&state.phase, Phase::Failed { goal, .. } if *goal <= bound);
            prop_assert!(in_force <= bound || tried, "{in_force:?} above {bound:?}: {state:?}");
        }
    }

    #[test]
    fn nothing_rises_before_it_has_dwelt_unless_a_person_asks(
        first in any_policy(), history in prop::collection::vec(happening(), 1..80)
    ) {
        let mut world = World::new(first);
        let mut fell = world.now;
        for happening in &history {
            world.log.clear();
            let (before, at_most) = (world.state.clone(), at_most(&world));
            let told = happen(&mut world, happening);
            let manual = told.iter().any(Event::is_manual) || before.at_once;
            // What follows a failure is the way back, not a rise.
            let failed = |(_, action): &_| matches!(action, Action::Notify(Notice::Failed { .. }));
            let way_back = world.log.iter().any(failed);
            for (at, command) in commands(&world.log) {
                let rises = match (&before.store, command) {
                    (_, Command::StartStore) => true,
                    (Some(_), command) => {
                        command.raises() && world.state.phase.commanded() > at_most
                    }
                    (None, _) => false,
                };
                if rises && !manual && !way_back {
                    prop_assert!(at >= fell + DWELL, "{command:?} at {at:?}, fell {fell:?}");
                }
                if !rises && !matches!(world.state.phase, Phase::Failed { .. }) {
                    fell = at;
                }
            }
        }
    }

    #[test]
    fn the_same_events_give_the_same_actions(
        first in any_policy(), history in prop::collection::vec(happening(), 1..60)
    ) {
        let (mut one, mut other) = (World::new(first.clone()), World::new(first));
        for happening in &history {
            happen(&mut one, happening);
            happen(&mut other, happening);
        }
        prop_assert_eq!(&one.state, &other.state);
        prop_assert_eq!(&one.log, &other.log);
    }

    #[test]
    fn left_alone_it_comes_to_what_the_rules_say(
        first in any_policy(), history in prop::collection::vec(happening(), 0..60)
    ) {
        let mut world = World::new(first);
        for happening in &history {
            happen(&mut world, happening);
        }
        world.tell(&Event::ShutdownCancelled);
        if let Some((.., faulty)) = &mut world.store {
            *faulty = false;
        }
        for _ in 0..12 {
            world.look();
            world.now += RETRY_MAX;
            world.tell(&Event::TimePassed);
            world.end(true);
        }
        world.look();
        let goal = world.state.decision().goal;
        prop_assert!(world.state.is_settled(), "{:?}", world.state);
        match (goal, world.store) {
            (Goal::Off, store) => prop_assert_eq!(store, None),
            (Goal::Closed, Some((target, open, _))) => prop_assert_eq!((target, open), (0, false)),
            (Goal::Target(bytes), Some((target, ..))) => prop_assert!(target <= bytes.0),
            (Goal::Full, Some((target, ..))) => prop_assert_eq!(target, FULL.0),
            // Down, and not by us.
            (_, None) => prop_assert!(!world.state.wishes().start_due),
        }
        if world.state.sleeping {
            prop_assert!(!world.state.sleep_held, "the machine waits for ever: {:?}", world.state);
        }
    }

    #[test]
    fn every_order_that_fails_is_taken_back_unless_all_is_to_go_off(
        first in any_policy(), history in prop::collection::vec(happening(), 1..60)
    ) {
        let mut world = World::new(first);
        for happening in &history {
            let under_way = world.state.phase.clone();
            let running = world.running;
            world.log.clear();
            happen(&mut world, happening);
            let Phase::Moving { order, command, goal, before } = under_way else { continue };
            if !matches!(happening, Happening::Ended(false)) || running != Some((order, command)) {
                continue;
            }
            let undone = commands(&world.log).any(|(_, taken)| taken == command.undo(before));
            let unwanted = world.state.wishes.off || world.state.shutting_down;
            prop_assert!(undone || unwanted || goal == Goal::Off, "{command:?} of {goal:?} stays half done");
        }
    }
}
