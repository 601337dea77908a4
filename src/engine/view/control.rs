// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client may ask of the control plane, and what it is answered. Pure
//! data; how it travels is the bus's business.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::arbiter::Explanation;

/// A request to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Switch on, and end all that was asked for by hand before but the target.
    Enable,
    /// Switch off until it is enabled.
    Disable,
    /// Hold at most so many bytes; `None`: as configured.
    SetTarget(Option<u64>),
    /// Give all GPU memory back until it is resumed.
    Suspend,
    /// Lend GPU memory again.
    Resume,
    /// Why is it as it is?
    Explain,
    /// How is it?
    State,
}

/// The answer to a [`ControlRequest`]; which one follows from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    /// To what changes something: it is decided, and may not be carried out yet.
    Accepted,
    /// To `Explain`.
    Explanation(Box<Explanation>),
    /// To `State`.
    State(Box<ControlState>),
}

/// A snapshot of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "properties that do not depend on each other")]
pub struct ControlState {
    /// What the store should be at: `off`, `closed`, `target` or `full`.
    pub goal: String,
    /// The rule that decides.
    pub rule: String,
    /// Goal and rule in a sentence.
    pub sentence: String,
    /// How far it is: `settled`, `moving`, `waiting`, `failed` or `down`.
    pub progress: String,
    /// Why it failed or what it waits for; may be empty.
    pub detail: String,
    /// False after a manual off.
    pub enabled: bool,
    /// Whether all GPU memory was asked for by hand.
    pub suspended: bool,
    /// Whether a store answers.
    pub running: bool,
    /// GPU memory that may be held now.
    pub target_bytes: u64,
    /// GPU memory held now.
    pub held_bytes: u64,
    /// GPU memory that could be held.
    pub full_bytes: u64,
    /// Of all leases together.
    pub leased_bytes: u64,
    /// Whether the machine runs on battery.
    pub on_battery: bool,
    /// The battery's level in percent; null without one.
    pub battery_level: Option<u8>,
    /// Whether GPU memory failed.
    pub faulty: bool,
    /// The version of the control plane.
    pub version: String,
    /// The keys of the configuration that it goes by, `battery.threshold`, with their
    /// values as the file spells them. For who compares them with the file.
    #[serde(skip)]
    pub settings: BTreeMap<String, String>,
}

impl ControlState {
    /// Whether what was asked for is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.progress == "settled"
    }
}
