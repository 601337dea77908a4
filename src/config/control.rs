// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[battery]` and `[control]`: what `sluiced` decides by. The store reads past them.

use serde::Serialize;
use toml::de::DeTable;

use super::problem::Problem;
use super::schema::{as_optional_text, spelled};
use super::table::Section;
use crate::engine::units::ByteLen;

/// `[battery]`: what holds on battery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Battery {
    /// What is done.
    pub on_battery: OnBattery,
    /// From this level (percent) down; 100: always.
    pub threshold: u8,
    /// Once done, it ends on AC at this level (percent) or above; 0: on AC at once.
    pub resume_threshold: u8,
    /// For `shrink`: the most fast memory.
    #[serde(serialize_with = "as_optional_text", skip_serializing_if = "Option::is_none")]
    pub shrink_to: Option<ByteLen>,
}

/// What is done on battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBattery {
    /// All VRAM is given back and the GPU closed.
    Stop,
    /// At most `shrink_to` is held.
    Shrink,
    /// Nothing.
    Keep,
}

impl OnBattery {
    /// All choices, the default first.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Shrink, Self::Keep];

    /// The choice's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Shrink => "shrink",
            Self::Keep => "keep",
        }
    }
}

/// `[control]`: how `sluiced` decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Control {
    /// The most fast memory while no program waits for memory; `None`: no such bound.
    #[serde(serialize_with = "as_optional_text", skip_serializing_if = "Option::is_none")]
    pub idle_target: Option<ByteLen>,
    /// Percent of ten seconds in which some program waited for memory, from
    /// which on the machine counts as short of it.
    pub memory_pressure: u8,
    /// Seconds that the reasons to hold less must be gone before more is held.
    pub dwell_s: u32,
}

pub(super) fn battery(
    root: &DeTable<'_>,
    text: &str,
    tier_size: Option<ByteLen>,
    problems: &mut Vec<Problem>,
) -> Battery {
    let section = Section::find(root, text, "battery", problems);
    section.refuse_others(&["on_battery", "threshold", "resume_threshold", "shrink_to"], problems);
    let before = problems.len();
    let choice = section.choice("on_battery", &OnBattery::ALL.map(OnBattery::name), problems);
    let misspelt = problems.len() > before;
    let on_battery = choice.as_ref().map_or(OnBattery::Stop, |choice| OnBattery::ALL[choice.value]);
    let threshold = section.integer("threshold", 0..=100_u8, problems).unwrap_or(100);
    let resume_threshold = section.integer("resume_threshold", 0..=100_u8, problems).unwrap_or(0);
    let before = problems.len();
    let shrink_to = section.size("shrink_to", problems);
    if !misspelt && problems.len() == before {
        match (on_battery, &shrink_to) {
            (OnBattery::Shrink, None) => problems.push(section.problem(
                "shrink_to",
                None,
                "missing; say how much may be held on battery, e.g. shrink_to = \"1G\"",
            )),
            (OnBattery::Shrink, Some(placed)) => {
                let why = bound(placed.value, tier_size, root);
                problems
                    .extend(why.map(|why| section.problem("shrink_to", placed.span.clone(), &why)));
            }
            (OnBattery::Stop | OnBattery::Keep, Some(placed)) => problems.push(section.problem(
                "shrink_to",
                placed.span.clone(),
                &format!(
                    "it is for on_battery = \"shrink\", which is \"{}\"; remove one of them",
                    on_battery.name()
                ),
            )),
            (OnBattery::Stop | OnBattery::Keep, None) => {}
        }
    }
    let shrink_to = shrink_to.map(|placed| placed.value);
    Battery { on_battery, threshold, resume_threshold, shrink_to }
}

pub(super) fn control(
    root: &DeTable<'_>,
    text: &str,
    tier_size: Option<ByteLen>,
    problems: &mut Vec<Problem>,
) -> Control {
    let section = Section::find(root, text, "control", problems);
    section.refuse_others(&["idle_target", "memory_pressure", "dwell_s"], problems);
    let idle_target = section.size("idle_target", problems);
    if let Some(placed) = &idle_target {
        let why = bound(placed.value, tier_size, root);
        problems.extend(why.map(|why| section.problem("idle_target", placed.span.clone(), &why)));
    }
    let memory_pressure = section.integer("memory_pressure", 1..=100_u8, problems).unwrap_or(10);
    let dwell_s = section.integer("dwell_s", 0..=3600_u32, problems).unwrap_or(5);
    Control { idle_target: idle_target.map(|placed| placed.value), memory_pressure, dwell_s }
}

/// Why a bound of what is held cannot be.
fn bound(bytes: ByteLen, tier_size: Option<ByteLen>, root: &DeTable<'_>) -> Option<String> {
    if !root.contains_key("spill") {
        let why =
            "there is no spill that could take the rest; add [spill] with a path, or leave it out";
        return Some(why.to_owned());
    }
    let size = tier_size.filter(|size| bytes > *size)?;
    Some(format!("more than tier.size; the most is \"{}\"", spelled(size)))
}
