// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter against a store that is played: tables for each rule, and random
//! histories for what must hold in all of them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::units::SLAB_BYTES;

mod rules_hold;

const GIB: u64 = 1 << 30;
pub(super) const FULL: ByteLen = ByteLen(8 * GIB);
pub(super) const DWELL: Duration = Duration::from_secs(5);
const AC: Power = Power { on_battery: false, level: Some(80) };
const BATTERY: Power = Power { on_battery: true, level: Some(80) };

pub(super) fn policy() -> Policy {
    Policy {
        on_battery: OnBattery::Stop,
        threshold: 100,
        resume_threshold: 0,
        idle_target: None,
        dwell: DWELL,
        full: FULL,
        has_spill: true,
    }
}

/// The arbiter, a store that does as it is told, and a clock.
#[derive(Clone)]
pub(super) struct World {
    pub(super) state: State,
    pub(super) now: Moment,
    /// The target, whether it is open, whether it failed; `None`: it does not run.
    pub(super) store: Option<(u64, bool, bool)>,
    /// Of a store that runs.
    pub(super) has_spill: bool,
    pub(super) running: Option<(u64, Command)>,
    /// All actions, with their time.
    pub(super) log: Vec<(Moment, Action)>,
}

impl World {
    pub(super) fn new(policy: Policy) -> Self {
        let has_spill = policy.has_spill;
        let state = State::new(policy, Wishes::default());
        let store = Some((FULL.0, true, false));
        let now = Duration::from_secs(100);
        Self { state, now, store, has_spill, running: None, log: Vec::new() }
    }

    pub(super) fn view(&self) -> Option<StoreView> {
        self.store.map(|(target, open, faulty)| StoreView {
            held: ByteLen(target),
            target: ByteLen(target),
            full: FULL,
            open,
            faulty,
            has_spill: self.has_spill,
        })
    }

    /// One step; gives the commands that it ordered.
    pub(super) fn tell(&mut self, event: &Event) -> Vec<Command> {
        let (next, actions) = step(&self.state, event, self.now);
        self.state = next;
        let mut commands = Vec::new();
        for action in actions {
            if let Action::Order { order, command } = action {
                self.running = Some((order, command));
                commands.push(command);
            }
            self.log.push((self.now, action));
        }
        commands
    }

    pub(super) fn look(&mut self) -> Vec<Command> {
        let view = self.view();
        self.tell(&Event::StoreSeen(view))
    }

    /// The order that runs is carried out, or is not.
    pub(super) fn end(&mut self, well: bool) -> Vec<Command> {
        let Some((order, command)) = self.running.take() else { return Vec::new() };
        if well {
            if self.store.is_none() {
                self.has_spill = self.state.policy().has_spill;
            }
            match (command, &mut self.store) {
                (Command::StartStore, store) => {
                    store.get_or_insert((FULL.0, true, false));
                }
                (Command::StopStore, store) => *store = None,
                (_, None) => return self.tell(&failed(order)),
                (Command::SetTarget(bytes), Some((target, open, _))) => {
                    *target = bytes.0 / SLAB_BYTES as u64 * SLAB_BYTES as u64;
                    *open = true;
                }
                (Command::CloseGpu, Some((target, open, _))) => (*target, *open) = (0, false),
                (Command::ResumeTarget, Some((target, open, _))) => {
                    (*target, *open) = (FULL.0, true);
                }
            }
            let target = ByteLen(self.store.map_or(0, |(target, ..)| target));
            self.tell(&Event::Finished { order, result: Ok(target) })
        } else {
            self.tell(&failed(order))
        }
    }

    fn pass(&mut self, time: Duration) -> Vec<Command> {
        self.now += time;
        self.tell(&Event::TimePassed)
    }

    fn has_said(&self, action: &Action) -> bool {
        self.log.iter().any(|(_, said)| said == action)
    }
}

fn failed(order: u64) -> Event {
    Event::Finished { order, result: Err("no room".to_owned()) }
}

fn settled(policy: Policy) -> World {
    let mut world = World::new(policy);
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.look(), []);
    assert!(world.state.is_settled());
    world
}

#[test]
fn on_battery_it_drains_and_closes_and_on_ac_it_comes_back_after_the_dwell() {
    let mut world = settled(policy());
    assert_eq!(world.tell(&Event::PowerChanged(BATTERY)), [Command::CloseGpu]);
    world.end(true);
    assert!(world.has_said(&Action::CheckGpuSleeps));
    assert_eq!(world.state.decision().rule, Rule::Battery);
    assert_eq!(world.tell(&Event::PowerChanged(AC)), []);
    assert!(world.has_said(&Action::WakeAt(world.now + DWELL)));
    assert_eq!(world.pass(DWELL / 2), []);
    assert_eq!(world.pass(DWELL / 2), [Command::ResumeTarget]);
}

#[test]
fn ac_that_comes_back_before_the_drain_ended_calls_it_back() {
    let mut world = settled(policy());
    world.tell(&Event::PowerChanged(BATTERY));
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
    world.end(true);
    assert!(world.state.is_settled());
}

#[test]
fn a_process_that_died_before_its_order_ended_is_not_taken_for_somebody_else() {
    let mut world = settled(policy());
    world.tell(&Event::LeaseTaken { lease: 1, bytes: ByteLen(6 * GIB) });
    // The store did it; nobody heard of it. The lease went with the process.
    world.store = Some((2 * GIB, true, false));
    world.state = State::new(policy(), world.state.wishes().clone());
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.look(), []);
    assert_eq!(world.state.decision().rule, Rule::Configured);
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
    // Somebody else's is.
    world.end(true);
    world.store = Some((GIB, true, false));
    world.look();
    assert_eq!(world.state.decision().rule, Rule::ByHand);
}

#[test]
fn without_a_spill_the_swap_goes_off_and_comes_on_again() {
    let mut world = settled(Policy { has_spill: false, ..policy() });
    assert_eq!(world.tell(&Event::PowerChanged(BATTERY)), [Command::StopStore]);
    world.end(true);
    assert_eq!(world.look(), []);
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.pass(DWELL), [Command::StartStore]);
    world.end(true);
    assert_eq!(world.look(), []);
    assert!(world.state.is_settled());
}

#[test]
fn a_spill_that_only_the_next_store_has_is_not_counted_on() {
    let without = Policy { has_spill: false, ..policy() };
    let mut world = settled(without.clone());
    assert_eq!(world.tell(&Event::PolicyChanged(policy())), []);
    assert_eq!(world.tell(&Event::PowerChanged(BATTERY)), [Command::StopStore]);
    // The other way round: the store that runs still has the one that was configured.
    let mut world = settled(policy());
    assert_eq!(world.tell(&Event::PolicyChanged(without)), []);
    assert_eq!(world.tell(&Event::PowerChanged(BATTERY)), [Command::CloseGpu]);
}

#[test]
fn the_level_decides_between_its_thresholds() {
    let level = |on_battery, level| Event::PowerChanged(Power { on_battery, level: Some(level) });
    let shrink = OnBattery::Shrink(ByteLen(GIB));
    let mut world =
        settled(Policy { on_battery: shrink, threshold: 40, resume_threshold: 60, ..policy() });
    assert_eq!(world.tell(&level(true, 41)), []);
    assert_eq!(world.tell(&level(true, 40)), [Command::SetTarget(ByteLen(GIB))]);
    world.end(true);
    // A level that wavers, and AC with too little in the battery, change nothing.
    for (on_battery, percent) in [(true, 41), (true, 99), (false, 41), (false, 59)] {
        assert_eq!(world.tell(&level(on_battery, percent)), []);
        assert_eq!(world.pass(DWELL * 2), []);
    }
    world.tell(&level(false, 60));
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
}

#[test]
fn a_battery_without_a_level_counts_as_low() {
    let mut world = settled(Policy { threshold: 10, ..policy() });
    let unknown = Power { on_battery: true, level: None };
    assert_eq!(world.tell(&Event::PowerChanged(unknown)), [Command::CloseGpu]);
}

#[test]
fn a_manual_off_outlives_the_process_and_the_stores_start() {
    let mut world = settled(policy());
    assert_eq!(world.tell(&Event::TurnedOff), [Command::StopStore]);
    world.end(true);
    world.look();
    let kept = serde_json::to_string(world.state.wishes()).unwrap();
    let mut next = World::new(policy());
    next.state = State::new(policy(), serde_json::from_str(&kept).unwrap());
    assert_eq!(next.look(), [Command::StopStore]);
    next.end(true);
    next.look();
    assert_eq!(next.tell(&Event::TurnedOn), [Command::StartStore]);
}

#[test]
fn a_stop_by_somebody_else_is_left_alone() {
    let mut world = settled(policy());
    world.store = None;
    assert_eq!(world.look(), []);
    assert_eq!(world.pass(DWELL * 9), []);
    assert_eq!(world.state.explain().progress, "down");
    assert_eq!(world.tell(&Event::TurnedOn), [Command::StartStore]);
}

#[test]
fn a_store_that_starts_on_battery_is_told_at_once() {
    let mut world = World::new(policy());
    world.tell(&Event::PowerChanged(BATTERY));
    assert_eq!(world.look(), [Command::CloseGpu]);
    world.end(true);
    // Another store, with the configuration's target.
    world.store = Some((FULL.0, true, false));
    assert_eq!(world.look(), [Command::CloseGpu]);
}

#[test]
fn a_store_that_was_restarted_by_its_holder_is_as_it_was() {
    let mut world = World::new(policy());
    world.tell(&Event::PowerChanged(BATTERY));
    world.look();
    world.end(true);
    let before = world.store.take();
    assert_eq!(world.look(), []);
    world.store = before;
    assert_eq!(world.look(), []);
    assert!(world.state.is_settled());
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
}

#[test]
fn what_the_store_itself_was_told_is_kept_until_somebody_asks_for_more() {
    let mut world = settled(policy());
    world.store = Some((GIB, true, false));
    assert_eq!(world.look(), []);
    assert_eq!(world.state.decision().rule, Rule::ByHand);
    assert_eq!(world.pass(DWELL * 9), []);
    world.tell(&Event::PowerChanged(BATTERY));
    world.end(true);
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.pass(DWELL), [Command::SetTarget(ByteLen(GIB))]);
    world.end(true);
    assert_eq!(world.tell(&Event::Resumed), [Command::ResumeTarget]);
}

#[test]
fn leases_add_up_and_end() {
    let mut world = settled(policy());
    let lease = |lease, gib| Event::LeaseTaken { lease, bytes: ByteLen(gib * GIB) };
    assert_eq!(world.tell(&lease(1, 2)), [Command::SetTarget(ByteLen(6 * GIB))]);
    assert_eq!(world.tell(&lease(2, 7)), [Command::SetTarget(ByteLen(0))]);
    world.end(true);
    world.tell(&Event::LeaseEnded { lease: 2 });
    assert_eq!(world.pass(DWELL), [Command::SetTarget(ByteLen(6 * GIB))]);
    world.end(true);
    world.tell(&Event::LeaseEnded { lease: 1 });
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
}

#[test]
fn a_person_need_not_wait_for_the_dwell() {
    let mut world = settled(policy());
    let target = |gib: u64| Event::TargetSet(Some(ByteLen(gib * GIB)));
    assert_eq!(world.tell(&target(1)), [Command::SetTarget(ByteLen(GIB))]);
    world.end(true);
    assert_eq!(world.tell(&target(2)), [Command::SetTarget(ByteLen(2 * GIB))]);
    assert_eq!(world.tell(&Event::Suspended), [Command::CloseGpu]);
    assert_eq!(world.tell(&Event::Resumed), [Command::SetTarget(ByteLen(2 * GIB))]);
    assert_eq!(world.tell(&Event::TargetSet(None)), [Command::ResumeTarget]);
}

#[test]
fn sleep_waits_for_the_drain_and_is_held_again_after_it() {
    let mut world = settled(policy());
    assert!(world.has_said(&Action::HoldSleep));
    assert_eq!(world.tell(&Event::SleepBegan), [Command::CloseGpu]);
    assert!(!world.has_said(&Action::AllowSleep));
    world.end(true);
    assert!(world.has_said(&Action::AllowSleep));
    world.log.clear();
    world.tell(&Event::SleepEnded);
    assert!(world.has_said(&Action::HoldSleep));
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
}

#[test]
fn a_drain_that_fails_lets_the_machine_sleep_and_says_so() {
    let mut world = settled(policy());
    world.tell(&Event::SleepBegan);
    world.end(false);
    assert!(world.has_said(&Action::AllowSleep));
    let reason = "no room".to_owned();
    assert!(world.has_said(&Action::Notify(Notice::SleepUnready { reason })));
}

#[test]
fn during_a_shutdown_nothing_is_ordered() {
    let mut world = settled(policy());
    assert_eq!(world.tell(&Event::ShutdownBegan), []);
    assert!(world.has_said(&Action::AllowSleep));
    for event in [Event::PowerChanged(BATTERY), Event::TurnedOff, Event::SleepBegan] {
        assert_eq!(world.tell(&event), []);
    }
    assert_eq!(world.tell(&Event::ShutdownCancelled), [Command::StopStore]);
}

#[test]
fn an_order_that_fails_is_taken_back_and_tried_again_later_and_later() {
    let mut world = settled(policy());
    world.tell(&Event::PowerChanged(BATTERY));
    assert_eq!(world.end(false), [Command::ResumeTarget]);
    assert_eq!(world.state.failure(), Some("no room"));
    world.end(true);
    for wait in [RETRY, RETRY * 2, RETRY * 4] {
        assert_eq!(world.pass(wait.checked_sub(Duration::from_secs(1)).unwrap()), []);
        assert_eq!(world.pass(Duration::from_secs(1)), [Command::CloseGpu]);
        assert_eq!(world.end(false).len(), 1);
        world.end(true);
    }
}

#[test]
fn a_manual_off_that_fails_is_not_taken_back() {
    let mut world = settled(policy());
    world.tell(&Event::TurnedOff);
    assert_eq!(world.end(false), []);
    assert_eq!(world.pass(RETRY), [Command::StopStore]);
}

#[test]
fn a_gpu_that_failed_gets_no_more_to_do_by_itself() {
    let mut world = settled(policy());
    world.tell(&Event::PowerChanged(BATTERY));
    world.end(true);
    world.store = Some((0, false, true));
    world.look();
    assert!(world.has_said(&Action::Notify(Notice::Fault)));
    world.tell(&Event::PowerChanged(AC));
    assert_eq!(world.pass(DWELL * 9), []);
    assert_eq!(world.state.explain().progress, "waiting");
    assert_eq!(world.tell(&Event::Resumed), [Command::ResumeTarget]);
}

#[test]
fn memory_pressure_lifts_the_idle_target() {
    let mut world = World::new(Policy { idle_target: Some(ByteLen(GIB)), ..policy() });
    assert_eq!(world.look(), [Command::SetTarget(ByteLen(GIB))]);
    world.end(true);
    world.tell(&Event::MemoryPressed(true));
    assert_eq!(world.pass(DWELL), [Command::ResumeTarget]);
    world.end(true);
    assert_eq!(world.tell(&Event::MemoryPressed(false)), [Command::SetTarget(ByteLen(GIB))]);
}

#[test]
fn every_command_has_an_undo_that_leads_back() {
    for before in [Goal::Off, Goal::Closed, Goal::Target(ByteLen(GIB)), Goal::Full] {
        assert_eq!(Command::CloseGpu.undo(before), Command::towards(before));
        assert_eq!(Command::SetTarget(FULL).undo(before), Command::towards(before));
    }
    assert_eq!(Command::StopStore.undo(Goal::Full), Command::StartStore);
    assert_eq!(Command::StartStore.undo(Goal::Off), Command::StopStore);
}

#[test]
fn each_rule_names_itself() {
    let mut world = settled(policy());
    for (event, rule) in [
        (Event::MemoryPressed(true), Rule::Configured),
        (Event::VramBounded(Some(ByteLen(5 * GIB))), Rule::VramPressure),
        (Event::TargetSet(Some(ByteLen(4 * GIB))), Rule::UserTarget),
        (Event::LeaseTaken { lease: 1, bytes: ByteLen(5 * GIB) }, Rule::Leases),
        (Event::PowerChanged(BATTERY), Rule::Battery),
        (Event::Suspended, Rule::Suspended),
        (Event::SleepBegan, Rule::Sleep),
        (Event::TurnedOff, Rule::ManualOff),
        (Event::ShutdownBegan, Rule::Shutdown),
    ] {
        world.tell(&event);
        let said = world.state.explain();
        assert_eq!(said.rule, rule, "{said:?}");
        assert!(said.sentence.ends_with(rule.sentence()), "{said:?}");
        let back = serde_json::from_str(&serde_json::to_string(&said).unwrap());
        assert_eq!(said, back.unwrap());
    }
}
