// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter is told: by clients, by the machine, by the store, and by
//! the executor about what it was asked to do.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::engine::units::ByteLen;

/// A point in time, counted from an origin that the caller chooses.
pub type Moment = Duration;

/// What the configuration declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What holds on battery.
    pub on_battery: OnBattery,
    /// On battery it holds from this level (percent) down.
    pub threshold: u8,
    /// Once it holds, it ends on AC at this level (percent) or above; 0: on AC at once.
    pub resume_threshold: u8,
    /// The most fast memory while the machine has enough of its own; `None`: no such bound.
    pub idle_target: Option<ByteLen>,
    /// How long the reasons to hold less must be gone before more is held.
    pub dwell: Duration,
    /// The most fast memory the store may hold.
    pub full: ByteLen,
    /// Whether pages have another place than fast memory.
    pub has_spill: bool,
}

/// What the store does on battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBattery {
    /// Gives all VRAM back and closes the GPU; without a spill the swap goes off.
    Stop,
    /// Holds at most so much.
    Shrink(ByteLen),
    /// Goes on.
    Keep,
}

/// Where the machine's power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Power {
    /// Whether it runs on a battery.
    pub on_battery: bool,
    /// The battery's level in percent; `None`: there is no battery, or it does not say.
    pub level: Option<u8>,
}

/// What the store says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreView {
    /// Fast memory held.
    pub held: ByteLen,
    /// Fast memory that may be held.
    pub target: ByteLen,
    /// Fast memory that it could hold.
    pub full: ByteLen,
    /// Whether any of its fast tiers is open.
    pub open: bool,
    /// Whether any of its fast tiers failed.
    pub faulty: bool,
    /// Whether it has a spill, whatever is configured by now.
    pub has_spill: bool,
}

/// What must outlive the process that runs the arbiter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wishes {
    /// Switched off by hand; ended by hand only.
    pub off: bool,
    /// All VRAM given back by hand until it is resumed by hand.
    pub suspended: bool,
    /// The most that may be held, set by hand.
    pub target_bytes: Option<u64>,
    /// The store is off because the arbiter switched it off.
    pub start_due: bool,
    /// The target that the store had when the last order to it was done, or the least
    /// that it has been told since.
    pub settled_bytes: Option<u64>,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody switched it on.
    TurnedOn,
    /// Somebody switched it off.
    TurnedOff,
    /// Somebody set the most that may be held; `None`: as configured.
    TargetSet(Option<ByteLen>),
    /// Somebody asked for all VRAM, until `Resumed`.
    Suspended,
    /// Somebody said that the VRAM may be lent again.
    Resumed,
    /// A client was lent memory.
    LeaseTaken {
        /// The lease, unique for the life of the state.
        lease: u64,
        /// How much less the store may hold.
        bytes: ByteLen,
    },
    /// A client gave its lease back, or is gone.
    LeaseEnded {
        /// The lease.
        lease: u64,
    },
    /// The source of power or the battery's level changed.
    PowerChanged(Power),
    /// The machine is about to sleep and waits.
    SleepBegan,
    /// The machine woke, or did not sleep after all.
    SleepEnded,
    /// The machine is about to go down.
    ShutdownBegan,
    /// It stays up after all.
    ShutdownCancelled,
    /// Programs wait for memory (true), or no longer do.
    MemoryPressed(bool),
    /// Others need VRAM: the most that leaves the reserve free; `None`: no bound.
    VramBounded(Option<ByteLen>),
    /// The store was looked at; `None`: none answers.
    StoreSeen(Option<StoreView>),
    /// The configuration was read anew.
    PolicyChanged(Policy),
    /// An order came to its end.
    Finished {
        /// Which.
        order: u64,
        /// How.
        result: Result<ByteLen, String>,
    },
    /// Nothing but time passed.
    TimePassed,
}

impl Event {
    /// Whether a person asks for it: then more is held at once.
    pub(super) fn is_manual(&self) -> bool {
        matches!(self, Self::TurnedOn | Self::Resumed | Self::TargetSet(_))
    }
}
