// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what should be to what is to be done: less at once, more when it has
//! dwelt.

use super::action::{Action, Command, Notice};
use super::event::{Moment, StoreView};
use super::rules::{Goal, decide};
use super::{Phase, State};
use crate::engine::units::{ByteLen, SLAB_BYTES};

/// What a store does of itself, as far as one can see.
fn seen_goal(store: StoreView) -> Goal {
    if store.target.0 == 0 && !store.open {
        Goal::Closed
    } else if store.target < store.full {
        Goal::Target(store.target)
    } else {
        Goal::Full
    }
}

/// What a store makes of a target.
fn whole_slabs(bytes: ByteLen) -> ByteLen {
    let slab = SLAB_BYTES as u64;
    ByteLen(bytes.0 / slab * slab)
}

/// Whether a store is at `goal` already.
fn is_at(goal: Goal, store: StoreView) -> bool {
    match goal {
        Goal::Target(bytes) => store.target == whole_slabs(bytes),
        goal => seen_goal(store) == goal,
    }
}

impl State {
    /// Orders what brings the store to its goal, unless that is under way.
    pub(super) fn reconcile(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let goal = decide(self).goal;
        match self.store {
            Some(store) => self.reconcile_store(goal, store, now, actions),
            None => self.reconcile_unit(goal, now, actions),
        }
    }

    /// No store answers: it is started again only if it was stopped from here,
    /// or a person asked for it.
    fn reconcile_unit(&mut self, goal: Goal, now: Moment, actions: &mut Vec<Action>) {
        let command = match self.phase {
            Phase::Moving { command, .. } => Some(command),
            _ => None,
        };
        if goal == Goal::Off {
            if command == Some(Command::StartStore) {
                self.order(Command::StopStore, goal, Goal::Off, actions);
            }
            self.stay();
        } else if command == Some(Command::StartStore) || !self.wishes.start_due {
            self.stay();
        } else if !self.waits_for_retry(goal, now, actions) && self.may_rise(now, actions) {
            self.order(Command::StartStore, goal, Goal::Off, actions);
        }
    }

    fn reconcile_store(
        &mut self,
        goal: Goal,
        store: StoreView,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        if self.phase.commanded() == Some(goal) {
            return self.stay();
        }
        if self.waits_for_retry(goal, now, actions) {
            return;
        }
        if self.phase == Phase::Unknown && is_at(goal, store) {
            self.phase = Phase::Settled { goal };
            self.wishes.settled_bytes = Some(store.target.0);
            return self.stay();
        }
        let before = self.phase.commanded().unwrap_or_else(|| seen_goal(store));
        if goal > before {
            // A failed GPU gets no more to do unless a person says so.
            let holds_back = store.faulty && !self.at_once;
            if holds_back || !self.may_rise(now, actions) {
                return;
            }
        }
        let stopping = matches!(self.phase, Phase::Moving { command: Command::StopStore, .. });
        let command = if stopping { Command::StartStore } else { Command::towards(goal) };
        self.order(command, goal, before, actions);
    }

    /// Nothing is to change: who asked for more has it, or cannot have it.
    fn stay(&mut self) {
        (self.rising_since, self.at_once) = (None, false);
    }

    fn order(&mut self, command: Command, goal: Goal, before: Goal, actions: &mut Vec<Action>) {
        self.orders += 1;
        actions.push(Action::Order { order: self.orders, command });
        self.phase = Phase::Moving { order: self.orders, command, goal, before };
        self.wishes.start_due |= command == Command::StopStore;
        // Kept before it is carried out: for a process that starts after this one died
        // meanwhile, it was not somebody else who told the store.
        let least = match goal {
            Goal::Closed => Some(0),
            Goal::Target(bytes) => Some(whole_slabs(bytes).0),
            Goal::Off | Goal::Full => None,
        };
        if let Some(least) = least {
            let settled = self.wishes.settled_bytes;
            self.wishes.settled_bytes = Some(settled.map_or(least, |bytes| bytes.min(least)));
        }
        self.stay();
    }

    /// More may be held when the reasons for less have been gone for long enough.
    fn may_rise(&mut self, now: Moment, actions: &mut Vec<Action>) -> bool {
        let since = *self.rising_since.get_or_insert(now);
        let due = since + self.policy.dwell;
        if self.at_once || now >= due {
            return true;
        }
        actions.push(Action::WakeAt(due));
        false
    }

    fn waits_for_retry(&self, goal: Goal, now: Moment, actions: &mut Vec<Action>) -> bool {
        match &self.phase {
            Phase::Failed { goal: failed, retry_at, .. }
                if *failed == goal && now < *retry_at && !self.at_once =>
            {
                actions.push(Action::WakeAt(*retry_at));
                true
            }
            _ => false,
        }
    }

    /// Lets the machine sleep when the store is ready for it, or cannot be.
    pub(super) fn weigh_sleep(&mut self, actions: &mut Vec<Action>) {
        if !self.sleeping {
            if !self.sleep_held {
                self.sleep_held = true;
                actions.push(Action::HoldSleep);
            }
            return;
        }
        let goal = decide(self).goal;
        match &self.phase {
            Phase::Moving { .. } => {}
            Phase::Failed { reason, .. } if self.sleep_held && self.store.is_some() => {
                actions.push(Action::Notify(Notice::SleepUnready { reason: reason.clone() }));
                self.let_sleep(actions);
            }
            phase if self.store.is_none() || phase.commanded() == Some(goal) => {
                self.let_sleep(actions);
            }
            _ => {}
        }
    }

    pub(super) fn let_sleep(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.sleep_held) {
            actions.push(Action::AllowSleep);
        }
    }
}
