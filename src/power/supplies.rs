// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's power supplies, and the vote on what the machine runs from.
//! Protocol: `Documentation/ABI/testing/sysfs-class-power` of Linux.
//!
//! The vote: without a battery of the machine's own it runs on AC. Where every
//! such battery discharges it runs on battery, whatever adapters say: there are
//! adapters that are always online. Where one charges, or any adapter is online,
//! it runs on AC. Else no adapter feeds it, and it runs on battery, unless no
//! adapter is known and no battery discharges.

use std::path::Path;

use super::{attribute, entries};
use crate::engine::arbiter::Power;

/// Below the root.
const CLASS: &str = "sys/class/power_supply";

/// A battery of the machine's own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Battery {
    charges: bool,
    discharges: bool,
    /// The status is one of the known ones.
    is_known: bool,
    level: Option<u8>,
    /// What it holds when it is full, in whatever unit the driver uses.
    full: Option<u64>,
}

/// Reads the supplies below `root` and votes.
#[must_use]
pub fn read(root: &Path) -> Power {
    let mut batteries = Vec::new();
    let mut adapters = Vec::new();
    for supply in entries(&root.join(CLASS)) {
        // A mouse's or a pen's battery says nothing about the machine.
        if attribute(&supply, "scope").as_deref() == Some("Device") {
            continue;
        }
        match attribute(&supply, "type").as_deref() {
            Some("Battery" | "UPS") => batteries.extend(battery(&supply)),
            Some(_) => {
                // 2: online at a voltage that was agreed on.
                adapters.extend(attribute(&supply, "online").map(|online| online != "0"));
            }
            None => {}
        }
    }
    Power { on_battery: on_battery(&batteries, &adapters), level: level(&batteries) }
}

/// `None`: its place is empty.
fn battery(supply: &Path) -> Option<Battery> {
    if attribute(supply, "present").as_deref() == Some("0") {
        return None;
    }
    let status = attribute(supply, "status");
    let number = |name: &str| attribute(supply, name)?.parse::<u64>().ok();
    Some(Battery {
        charges: status.as_deref() == Some("Charging"),
        discharges: status.as_deref() == Some("Discharging"),
        is_known: !matches!(status.as_deref(), None | Some("Unknown")),
        level: number("capacity").and_then(|percent| u8::try_from(percent.min(100)).ok()),
        full: number("energy_full").or_else(|| number("charge_full")),
    })
}

fn on_battery(batteries: &[Battery], adapters: &[bool]) -> bool {
    let mut known = batteries.iter().filter(|battery| battery.is_known).peekable();
    let any_known = known.peek().is_some();
    if batteries.is_empty() {
        false
    } else if any_known && known.all(|battery| battery.discharges) {
        true
    } else if adapters.iter().any(|online| *online) || batteries.iter().any(|one| one.charges) {
        false
    } else {
        !adapters.is_empty() || batteries.iter().any(|battery| battery.discharges)
    }
}

/// The level of all batteries together, weighed by what they can hold where
/// each says so.
fn level(batteries: &[Battery]) -> Option<u8> {
    let with_level: Vec<_> =
        batteries.iter().filter_map(|battery| Some((battery.level?, battery.full))).collect();
    let weigh = with_level.iter().all(|(_, full)| full.is_some_and(|full| full > 0));
    let (sum, weights) =
        with_level.iter().fold((0_u128, 0_u128), |(sum, weights), (level, full)| {
            let weight = u128::from(full.filter(|_| weigh).unwrap_or(1));
            (sum + u128::from(*level) * weight, weights + weight)
        });
    sum.checked_div(weights).and_then(|level| u8::try_from(level).ok())
}
