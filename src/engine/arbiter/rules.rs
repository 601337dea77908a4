// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: what the store should be at, and which rule says so. Each rule
//! bounds what may be held; the lowest bound decides, the first rule of the
//! list where two are equal.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::State;
use super::event::OnBattery;
use crate::engine::units::ByteLen;

/// What the store should be at, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Goal {
    /// Not running: no swap.
    Off,
    /// Swap on, no fast memory, each GPU closed.
    Closed,
    /// At most so much fast memory.
    Target(ByteLen),
    /// What is configured.
    Full,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Closed => f.write_str("no GPU memory, GPU closed"),
            Self::Target(bytes) => write!(f, "at most {bytes} of GPU memory"),
            Self::Full => f.write_str("as configured"),
        }
    }
}

/// Which rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The machine goes down: `sluice-shutdown.service` sees to the pages, nobody else.
    Shutdown,
    /// Switched off by hand.
    ManualOff,
    /// The machine goes to sleep.
    Sleep,
    /// All VRAM was asked for by hand.
    Suspended,
    /// On battery.
    Battery,
    /// Clients hold leases.
    Leases,
    /// The most that may be held was set by hand.
    UserTarget,
    /// Somebody told the store itself to hold less.
    ByHand,
    /// Others need VRAM.
    VramPressure,
    /// The machine has enough memory of its own.
    Calm,
    /// Nothing bounds it but the configuration.
    Configured,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 11] = [
        Self::Shutdown,
        Self::ManualOff,
        Self::Sleep,
        Self::Suspended,
        Self::Battery,
        Self::Leases,
        Self::UserTarget,
        Self::ByHand,
        Self::VramPressure,
        Self::Calm,
        Self::Configured,
    ];

    /// The rule's name, as on the bus.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::ManualOff => "manual-off",
            Self::Sleep => "sleep",
            Self::Suspended => "suspended",
            Self::Battery => "battery",
            Self::Leases => "leases",
            Self::UserTarget => "user-target",
            Self::ByHand => "by-hand",
            Self::VramPressure => "vram-pressure",
            Self::Calm => "calm",
            Self::Configured => "configured",
        }
    }

    /// The rule in a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Shutdown => {
                "the machine is going down; sluice-shutdown.service sees to the pages"
            }
            Self::ManualOff => "it was switched off by hand, and only sluice on ends that",
            Self::Sleep => "the machine is about to sleep",
            Self::Suspended => "all GPU memory was asked for by hand; sluice resume ends that",
            Self::Battery => "the machine runs on battery",
            Self::Leases => "programs hold reservations",
            Self::UserTarget => "sluice target set a bound",
            Self::ByHand => "the store itself was told to hold less (sluice vram, sluice gpu)",
            Self::VramPressure => "other programs need GPU memory",
            Self::Calm => "the machine has enough memory of its own (control.idle_target)",
            Self::Configured => "nothing but the configuration bounds it",
        }
    }
}

/// What should be, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the store should be at.
    pub goal: Goal,
    /// The rule that bounds it.
    pub rule: Rule,
}

/// What the behaviour on battery allows; `None`: anything.
pub(super) fn battery_bound(state: &State) -> Option<Goal> {
    match state.policy.on_battery {
        _ if !state.battery_holds => None,
        OnBattery::Stop => Some(given_up(state)),
        OnBattery::Shrink(bytes) => Some(Goal::Target(bytes)),
        OnBattery::Keep => None,
    }
}

/// No VRAM at all: pages go to the spill, or back to memory where there is none.
fn given_up(state: &State) -> Goal {
    if state.has_spill() { Goal::Closed } else { Goal::Off }
}

/// Applies the rules. During a shutdown nothing is to change: [`super::step`] asks
/// for that before.
pub(super) fn decide(state: &State) -> Decision {
    let full = state.store.map_or(state.policy.full, |store| store.full);
    let leased = state.leases.values().map(|bytes| bytes.0).fold(0_u64, u64::saturating_add);
    let target = |bytes: u64| (bytes < full.0).then_some(Goal::Target(ByteLen(bytes)));
    let bounds = [
        (Rule::ManualOff, state.wishes.off.then_some(Goal::Off)),
        (Rule::Sleep, state.sleeping.then(|| given_up(state))),
        (Rule::Suspended, state.wishes.suspended.then(|| given_up(state))),
        (Rule::Battery, battery_bound(state)),
        (Rule::Leases, target(full.0.saturating_sub(leased))),
        (Rule::UserTarget, state.wishes.target_bytes.and_then(target)),
        (Rule::ByHand, state.by_hand.and_then(|bytes| target(bytes.0))),
        (
            Rule::VramPressure,
            state.vram_bound.filter(|_| state.has_spill()).and_then(|bytes| target(bytes.0)),
        ),
        (
            Rule::Calm,
            state
                .policy
                .idle_target
                .filter(|_| !state.memory_pressed)
                .and_then(|bytes| target(bytes.0)),
        ),
        (Rule::Configured, Some(Goal::Full)),
    ];
    bounds
        .into_iter()
        .filter_map(|(rule, goal)| Some(Decision { goal: goal?, rule }))
        .reduce(|least, next| if next.goal < least.goal { next } else { least })
        .expect("the last rule always bounds")
}
