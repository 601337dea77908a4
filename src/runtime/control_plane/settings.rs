// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the configuration to the arbiter's policy.

use std::time::Duration;

use crate::config::{Config, control};
use crate::engine::arbiter::{OnBattery, Policy};

/// The policy that a checked configuration declares.
pub(super) fn policy(config: &Config) -> Policy {
    let battery = &config.battery;
    let on_battery = match (battery.on_battery, battery.shrink_to) {
        (control::OnBattery::Keep, _) => OnBattery::Keep,
        (control::OnBattery::Shrink, Some(bytes)) => OnBattery::Shrink(bytes),
        (control::OnBattery::Stop, _) => OnBattery::Stop,
        (control::OnBattery::Shrink, None) => unreachable!("the checker asks for shrink_to"),
    };
    Policy {
        on_battery,
        threshold: battery.threshold,
        resume_threshold: battery.resume_threshold,
        idle_target: config.control.idle_target,
        dwell: Duration::from_secs(config.control.dwell_s.into()),
        full: config.tier.size,
        has_spill: config.spill.is_some(),
    }
}
