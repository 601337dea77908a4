// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter asks for, as data. One executor, in `runtime`, carries it out.

use super::event::Moment;
use super::rules::Goal;
use crate::engine::units::ByteLen;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An order to the store or its unit. A later one takes the place of an
    /// earlier one, which need not be reported any more.
    Order {
        /// Its number, for [`super::Event::Finished`].
        order: u64,
        /// What.
        command: Command,
    },
    /// See whether the GPU falls asleep now that nobody uses it, and say if not.
    CheckGpuSleeps,
    /// Let the machine sleep or go down.
    AllowSleep,
    /// Have the machine wait for [`Action::AllowSleep`] before it sleeps.
    HoldSleep,
    /// Tell people.
    Notify(Notice),
    /// Say [`super::Event::TimePassed`] at this time, or before.
    WakeAt(Moment),
}

/// What the store or its unit is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start the store's unit.
    StartStore,
    /// Stop the store's unit: the swap goes off.
    StopStore,
    /// Hold at most so much fast memory.
    SetTarget(ByteLen),
    /// Hold no fast memory and close each GPU.
    CloseGpu,
    /// Hold what is configured.
    ResumeTarget,
}

impl Command {
    /// What brings a running store to `goal`.
    #[must_use]
    pub fn towards(goal: Goal) -> Self {
        match goal {
            Goal::Off => Self::StopStore,
            Goal::Closed => Self::CloseGpu,
            Goal::Target(bytes) => Self::SetTarget(bytes),
            Goal::Full => Self::ResumeTarget,
        }
    }

    /// What takes this command back when it could not be carried out to its
    /// end, for a store that was at `before`.
    #[must_use]
    pub fn undo(self, before: Goal) -> Self {
        match self {
            Self::StartStore => Self::StopStore,
            Self::StopStore => Self::StartStore,
            Self::SetTarget(_) | Self::CloseGpu | Self::ResumeTarget => Self::towards(before),
        }
    }

    /// Whether more is held after it than may have been before.
    #[must_use]
    pub fn raises(self) -> bool {
        matches!(self, Self::StartStore | Self::ResumeTarget | Self::SetTarget(ByteLen(1..)))
    }
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A fast tier failed.
    Fault,
    /// No tier is marked as failed any more.
    FaultCleared,
    /// What was asked for could not be done.
    Failed {
        /// What the store was to come to.
        goal: Goal,
        /// Why not.
        reason: String,
    },
    /// The behaviour on battery holds from now on.
    BatteryHolds,
    /// It ended.
    BatteryEnded,
    /// The machine sleeps although the store could not give its VRAM back.
    SleepUnready {
        /// Why not.
        reason: String,
    },
    /// A configuration that was to be read anew is wrong.
    ConfigRefused {
        /// Which, and what is in force.
        reason: String,
    },
}

impl Notice {
    /// Whether it is about something wrong.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        !matches!(self, Self::FaultCleared | Self::BatteryHolds | Self::BatteryEnded)
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault => f.write_str(
                "GPU memory failed: no new pages go there; sluice status says which tier",
            ),
            Self::FaultCleared => f.write_str("the failed GPU memory is used again"),
            Self::Failed { goal, reason } => write!(f, "could not come to {goal}: {reason}"),
            Self::BatteryHolds => f.write_str("on battery: GPU memory is given back as declared"),
            Self::BatteryEnded => f.write_str("on AC: GPU memory may be lent again"),
            Self::ConfigRefused { reason } => f.write_str(reason),
            Self::SleepUnready { reason } => {
                write!(f, "the machine sleeps with pages in GPU memory: {reason}")
            }
        }
    }
}
