// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter: decides what the store may hold, and asks for it.
//!
//! [`step`] is pure: a state, an event and the time give the next state and what
//! is to be done. The same events give the same actions. Contracts:
//!
//! - *Manual*: what was switched off by hand is started by nothing but
//!   [`Event::TurnedOn`].
//! - *Battery*: in the step in which the declared behaviour begins to hold, the
//!   store is told so.
//! - *Dwell*: less is held at once; more only after the reasons to hold less
//!   have been gone for [`Policy::dwell`], or when a person asks for it.
//! - *Undo*: an order that failed is taken back, except an off, which is tried
//!   again. An order that is not wanted any more is followed by its opposite.
//! - *Explain*: each state can say which rule decides, and on what inputs
//!   ([`State::explain`]).

use std::collections::BTreeMap;
use std::time::Duration;

mod action;
mod event;
mod explain;
mod reconcile;
mod rules;
mod vram;

pub use action::{Action, Command, Notice};
pub use event::{Event, Moment, OnBattery, Policy, Power, StoreView, Wishes};
pub use explain::{Explanation, Input};
pub use rules::{Decision, Goal, Rule};
pub use vram::{Lent, vram_bound};

use crate::engine::units::ByteLen;

/// Before a failed order is tried again; doubles with each failure in a row.
const RETRY: Duration = Duration::from_secs(30);
/// The longest that a retry waits.
const RETRY_MAX: Duration = Duration::from_secs(960);

/// How the store stands towards the last order.
///
/// ```text
///            order                     Finished(ok)
///  Unknown ─────────────► Moving ─────────────────────────► Settled
///     ▲ ▲                 │ ▲ ▲ │                              │
///     │ │  Finished(err): │ │ │ └── the goal fell: next order  │ the goal fell,
///     │ │  undo           ▼ │ │                              │ or rose and dwelt
///     │ │              Failed ┘ └──────────────────────────────┤
///     │ │         retry, or another goal                       │
///     │ └──────────────────────────────────────────────────────┘
///     │                      the store holds more than it was told
///     └─ from any: no store answers
/// ```
///
/// In `Unknown` and `Failed` the store does what it did before; in `Moving` the
/// executor owns the order; in `Settled` the store keeps it by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Unknown,
    Moving { order: u64, command: Command, goal: Goal, before: Goal },
    Settled { goal: Goal },
    Failed { goal: Goal, reason: String, retry_at: Moment },
}

impl Phase {
    /// What the store was told last, or does without having been told.
    fn commanded(&self) -> Option<Goal> {
        match self {
            Self::Moving { goal, .. } | Self::Settled { goal } => Some(*goal),
            Self::Unknown | Self::Failed { .. } => None,
        }
    }
}

/// Everything the arbiter knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "inputs that do not depend on each other")]
pub struct State {
    policy: Policy,
    wishes: Wishes,
    leases: BTreeMap<u64, ByteLen>,
    power: Power,
    /// The behaviour on battery holds: kept between the two thresholds.
    battery_holds: bool,
    sleeping: bool,
    /// The machine waits for us before it sleeps.
    sleep_held: bool,
    shutting_down: bool,
    memory_pressed: bool,
    vram_bound: Option<ByteLen>,
    by_hand: Option<ByteLen>,
    store: Option<StoreView>,
    phase: Phase,
    orders: u64,
    /// Orders that failed in a row.
    failures: u32,
    /// Since when the goal has been above what the store was told.
    rising_since: Option<Moment>,
    /// A person asked for more: it need not dwell.
    at_once: bool,
    last_event: &'static str,
}

impl State {
    /// The beginning: nothing is known but the configuration and what an earlier
    /// process left.
    #[must_use]
    pub fn new(policy: Policy, wishes: Wishes) -> Self {
        Self {
            policy,
            wishes,
            leases: BTreeMap::new(),
            power: Power::default(),
            battery_holds: false,
            sleeping: false,
            sleep_held: false,
            shutting_down: false,
            memory_pressed: false,
            vram_bound: None,
            by_hand: None,
            store: None,
            phase: Phase::Unknown,
            orders: 0,
            failures: 0,
            rising_since: None,
            at_once: false,
            last_event: "start",
        }
    }

    /// What must be kept for the next process.
    #[must_use]
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    /// What should be, and which rule says so.
    #[must_use]
    pub fn decision(&self) -> Decision {
        if self.shutting_down {
            let goal = self.phase.commanded().unwrap_or(Goal::Full);
            return Decision { goal, rule: Rule::Shutdown };
        }
        rules::decide(self)
    }

    /// What the store said last.
    #[must_use]
    pub fn store(&self) -> Option<StoreView> {
        self.store
    }

    /// Where the power comes from.
    #[must_use]
    pub fn power(&self) -> Power {
        self.power
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether pages have another place: of the store that runs, else of the next one.
    #[must_use]
    pub fn has_spill(&self) -> bool {
        self.store.map_or(self.policy.has_spill, |store| store.has_spill)
    }

    /// Bytes of all leases together.
    #[must_use]
    pub fn leased(&self) -> ByteLen {
        ByteLen(self.leases.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    /// Whether the last order is carried out, and no other is due.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let goal = self.decision().goal;
        match self.store {
            None => goal == Goal::Off || !self.wishes.start_due,
            Some(_) => self.phase == Phase::Settled { goal },
        }
    }

    /// Why the last order failed, while it is not tried again.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.phase {
            Phase::Failed { reason, .. } => Some(reason),
            _ => None,
        }
    }

    fn take(&mut self, event: &Event, actions: &mut Vec<Action>) {
        self.last_event = explain::name(event);
        self.at_once |= event.is_manual();
        match event {
            Event::TurnedOn => {
                self.wishes.start_due |= self.store.is_none();
                (self.wishes.off, self.wishes.suspended, self.by_hand) = (false, false, None);
            }
            Event::TurnedOff => (self.wishes.off, self.at_once) = (true, false),
            Event::TargetSet(bytes) => {
                self.wishes.target_bytes = bytes.map(|bytes| bytes.0);
                self.by_hand = None;
            }
            Event::Suspended => (self.wishes.suspended, self.at_once) = (true, false),
            Event::Resumed => (self.wishes.suspended, self.by_hand) = (false, None),
            Event::LeaseTaken { lease, bytes } => {
                self.leases.insert(*lease, *bytes);
            }
            Event::LeaseEnded { lease } => {
                self.leases.remove(lease);
            }
            Event::PowerChanged(power) => {
                self.power = *power;
                self.weigh_battery(actions);
            }
            Event::SleepBegan => self.sleeping = true,
            Event::SleepEnded => self.sleeping = false,
            Event::ShutdownBegan => self.shutting_down = true,
            Event::ShutdownCancelled => self.shutting_down = false,
            Event::MemoryPressed(pressed) => self.memory_pressed = *pressed,
            Event::VramBounded(bound) => self.vram_bound = *bound,
            Event::StoreSeen(seen) => self.look_at_store(*seen, actions),
            Event::PolicyChanged(policy) => {
                self.policy = policy.clone();
                self.weigh_battery(actions);
            }
            Event::Finished { .. } | Event::TimePassed => {}
        }
    }

    /// Between the thresholds what holds goes on.
    fn weigh_battery(&mut self, actions: &mut Vec<Action>) {
        let Power { on_battery, level } = self.power;
        let held = self.battery_holds;
        if on_battery {
            self.battery_holds |= level.is_none_or(|level| level <= self.policy.threshold);
        } else if level.is_none_or(|level| level >= self.policy.resume_threshold) {
            self.battery_holds = false;
        }
        if self.policy.on_battery != OnBattery::Keep && held != self.battery_holds {
            actions.push(Action::Notify(if self.battery_holds {
                Notice::BatteryHolds
            } else {
                Notice::BatteryEnded
            }));
        }
    }

    fn look_at_store(&mut self, seen: Option<StoreView>, actions: &mut Vec<Action>) {
        let before = std::mem::replace(&mut self.store, seen);
        let Some(seen) = seen else {
            // A start or stop that is under way ends by its own report.
            let about_unit = matches!(
                self.phase,
                Phase::Moving { command: Command::StartStore | Command::StopStore, .. }
            );
            if !about_unit {
                (self.phase, self.by_hand) = (Phase::Unknown, None);
            }
            return;
        };
        let was_faulty = before.is_some_and(|store| store.faulty);
        if seen.faulty != was_faulty {
            let notice = if seen.faulty { Notice::Fault } else { Notice::FaultCleared };
            actions.push(Action::Notify(notice));
        }
        let about_unit = matches!(self.phase, Phase::Moving { command: Command::StopStore, .. });
        if !about_unit {
            self.wishes.start_due = false;
        }
        match (&self.phase, self.wishes.settled_bytes) {
            (Phase::Moving { .. } | Phase::Failed { .. }, _) => {}
            // Somebody started one.
            (Phase::Settled { goal: Goal::Off }, _) => self.phase = Phase::Unknown,
            // It was told to hold less by somebody else.
            (_, Some(settled)) if seen.target.0 < settled => {
                self.by_hand = Some(seen.target);
                self.wishes.settled_bytes = Some(seen.target.0);
                if let Phase::Settled { goal } = &mut self.phase {
                    *goal = Goal::Target(seen.target);
                }
            }
            // Another store, with the configuration's target, or told by somebody else.
            (Phase::Settled { .. }, Some(settled)) if seen.target.0 > settled => {
                (self.phase, self.by_hand) = (Phase::Unknown, None);
            }
            (Phase::Unknown, None) if seen.target < seen.full => {
                self.by_hand = Some(seen.target);
            }
            _ => {}
        }
    }

    fn finish(
        &mut self,
        order: u64,
        result: &Result<ByteLen, String>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Phase::Moving { order: current, command, goal, before } = self.phase else { return };
        if current != order {
            return;
        }
        match result {
            Ok(_) if command == Command::StartStore => {
                // What it has is seen when it answers.
                (self.phase, self.wishes.start_due, self.failures) = (Phase::Unknown, false, 0);
            }
            Ok(target) => {
                (self.phase, self.failures) = (Phase::Settled { goal }, 0);
                self.wishes.settled_bytes = (goal != Goal::Off).then_some(target.0);
                // So it is until somebody looks again.
                if let Some(store) = self.store.as_mut().filter(|_| goal != Goal::Off) {
                    (store.target, store.open) = (*target, goal != Goal::Closed);
                }
                if goal == Goal::Closed && self.battery_holds {
                    actions.push(Action::CheckGpuSleeps);
                }
            }
            Err(reason) => {
                // An off is not taken back: it is tried again. Nor is what a person
                // or systemd does not want back by now.
                if goal != Goal::Off && !self.wishes.off && !self.shutting_down {
                    let command = command.undo(before);
                    self.orders += 1;
                    actions.push(Action::Order { order: self.orders, command });
                }
                let wait = RETRY.saturating_mul(1 << self.failures.min(5)).min(RETRY_MAX);
                self.failures = self.failures.saturating_add(1);
                let retry_at = now + wait;
                let reason = reason.clone();
                actions.push(Action::Notify(Notice::Failed { goal, reason: reason.clone() }));
                self.phase = Phase::Failed { goal, reason, retry_at };
            }
        }
    }
}

/// What happens next.
#[must_use]
pub fn step(state: &State, event: &Event, now: Moment) -> (State, Vec<Action>) {
    let mut next = state.clone();
    let mut actions = Vec::new();
    next.take(event, &mut actions);
    if let Event::Finished { order, result } = event {
        next.finish(*order, result, now, &mut actions);
    }
    if next.shutting_down {
        next.let_sleep(&mut actions);
        return (next, actions);
    }
    next.reconcile(now, &mut actions);
    next.weigh_sleep(&mut actions);
    (next, actions)
}

#[cfg(test)]
mod tests;
