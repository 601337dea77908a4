// SPDX-License-Identifier: MIT OR Apache-2.0
//! A state that says why it is as it is.

use serde::{Deserialize, Serialize};

use super::event::{Event, OnBattery, StoreView};
use super::rules::{Goal, Rule};
use super::{Phase, State};
use crate::engine::units::ByteLen;
use crate::engine::view::ControlState;

/// Why the store holds what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// What the store should be at: `off`, `closed`, `target` or `full`.
    pub goal: String,
    /// Of a `target`, its bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub goal_bytes: Option<u64>,
    /// The rule that decides.
    pub rule: Rule,
    /// Goal and rule in a sentence.
    pub sentence: String,
    /// How far it is: `settled`, `moving`, `waiting`, `failed`, `down`.
    pub progress: String,
    /// Why it failed, or what it waits for; may be empty.
    pub detail: String,
    /// What happened last.
    pub last_event: String,
    /// What the rules look at.
    pub inputs: Vec<Input>,
}

/// One thing that the rules look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// What.
    pub name: String,
    /// What it is now.
    pub value: String,
}

/// An event's name, for a person.
pub(super) fn name(event: &Event) -> &'static str {
    match event {
        Event::TurnedOn => "switched on by hand",
        Event::TurnedOff => "switched off by hand",
        Event::TargetSet(_) => "target set by hand",
        Event::Suspended => "all GPU memory asked for by hand",
        Event::Resumed => "resumed by hand",
        Event::LeaseTaken { .. } => "a lease was taken",
        Event::LeaseEnded { .. } => "a lease ended",
        Event::PowerChanged(_) => "the power changed",
        Event::SleepBegan => "the machine is about to sleep",
        Event::SleepEnded => "the machine woke",
        Event::ShutdownBegan => "the machine is going down",
        Event::ShutdownCancelled => "the machine stays up",
        Event::MemoryPressed(_) => "memory pressure changed",
        Event::VramBounded(_) => "others' use of GPU memory changed",
        Event::StoreSeen(_) => "the store was looked at",
        Event::PolicyChanged(_) => "the configuration was read anew",
        Event::Finished { .. } => "an order came to its end",
        Event::TimePassed => "time passed",
    }
}

impl State {
    /// Why the store holds what it holds.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let decision = self.decision();
        let (goal, goal_bytes) = match decision.goal {
            Goal::Off => ("off", None),
            Goal::Closed => ("closed", None),
            Goal::Target(bytes) => ("target", Some(bytes.0)),
            Goal::Full => ("full", None),
        };
        let (progress, detail) = self.progress();
        Explanation {
            goal: goal.to_owned(),
            goal_bytes,
            rule: decision.rule,
            sentence: format!("{}: {}", decision.goal, decision.rule.sentence()),
            progress: progress.to_owned(),
            detail,
            last_event: self.last_event.to_owned(),
            inputs: self.inputs(),
        }
    }

    /// How far it is, and what is in the way.
    fn progress(&self) -> (&'static str, String) {
        let faulty = self.store.is_some_and(|store| store.faulty);
        match (&self.phase, self.store) {
            (Phase::Failed { reason, .. }, _) => ("failed", reason.clone()),
            (Phase::Moving { .. }, _) => ("moving", String::new()),
            _ if faulty && !self.is_settled() => {
                ("waiting", "a GPU failed; it gets no more to do by itself".to_owned())
            }
            _ if self.rising_since.is_some() => {
                let dwell = self.policy.dwell.as_secs();
                ("waiting", format!("until nothing has spoken against it for {dwell} s"))
            }
            (_, None) if self.decision().goal == Goal::Off => ("settled", String::new()),
            (_, None) => ("down", "no store answers, and it was not stopped from here".to_owned()),
            (_, Some(_)) => ("settled", String::new()),
        }
    }

    fn inputs(&self) -> Vec<Input> {
        let bound = |bytes: Option<ByteLen>| {
            bytes.map_or_else(|| "none".to_owned(), |bytes| format!("at most {bytes}"))
        };
        let policy = &self.policy;
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let power = match (self.power.on_battery, self.power.level) {
            (false, None) => "AC".to_owned(),
            (true, None) => "battery".to_owned(),
            (false, Some(level)) => format!("AC, battery at {level} %"),
            (true, Some(level)) => format!("battery at {level} %"),
        };
        let declared = match policy.on_battery {
            OnBattery::Stop => "stop".to_owned(),
            OnBattery::Shrink(bytes) => format!("shrink to {bytes}"),
            OnBattery::Keep => "keep".to_owned(),
        };
        let store = self.store.map_or_else(
            || "does not answer".to_owned(),
            |store| format!("{} held, target {} of {}", store.held, store.target, store.full),
        );
        [
            ("switched off by hand", yes(self.wishes.off)),
            ("suspended by hand", yes(self.wishes.suspended)),
            ("sluice target", bound(self.wishes.target_bytes.map(ByteLen))),
            ("told to the store itself", bound(self.by_hand)),
            ("power", power),
            ("on battery", format!("{declared}, from {} % down", policy.threshold)),
            ("battery behaviour holds", yes(self.battery_holds)),
            ("leases", format!("{}, {} together", self.leases.len(), self.leased())),
            ("machine about to sleep", yes(self.sleeping)),
            ("machine going down", yes(self.shutting_down)),
            ("memory pressure", yes(self.memory_pressed)),
            ("left by others", bound(self.vram_bound)),
            ("GPU failed", yes(self.store.is_some_and(|store| store.faulty))),
            ("store", store),
            ("spill", yes(self.has_spill())),
        ]
        .map(|(name, value)| Input { name: name.to_owned(), value })
        .into()
    }
}

impl State {
    /// A snapshot for clients, by a control plane of this `version`.
    #[must_use]
    pub fn view(&self, version: &str) -> ControlState {
        let said = self.explain();
        let store = self.store;
        let bytes = |of: fn(&StoreView) -> ByteLen| store.as_ref().map_or(0, |store| of(store).0);
        ControlState {
            goal: said.goal,
            rule: said.rule.name().to_owned(),
            sentence: said.sentence,
            progress: said.progress,
            detail: said.detail,
            enabled: !self.wishes.off,
            suspended: self.wishes.suspended,
            running: store.is_some(),
            target_bytes: bytes(|store| store.target),
            held_bytes: bytes(|store| store.held),
            full_bytes: bytes(|store| store.full),
            leased_bytes: self.leased().0,
            on_battery: self.power.on_battery,
            battery_level: self.power.level,
            faulty: store.is_some_and(|store| store.faulty),
            version: version.to_owned(),
            // How the policy was spelt, it does not know.
            settings: std::collections::BTreeMap::new(),
        }
    }
}
