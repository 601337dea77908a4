// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells systemd that every I/O thread lives, and says so when one stands still
//! or a tier has failed. Nothing here ends anything.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use super::devices::Devices;
use crate::engine::store::Store;

/// How often the main loop looks around when nothing happens.
const ROUND: Duration = Duration::from_secs(5);
/// Longest stall of a busy I/O thread that still counts as alive.
const STALL: Duration = Duration::from_secs(10);

/// Feeds systemd's watchdog, if the unit has one, while every I/O thread lives.
pub struct Watchdog {
    interval: Option<Duration>,
    seen: Vec<(u64, Instant)>,
    warned: bool,
    /// Tiers whose failure was told.
    failed: Vec<bool>,
}

impl Watchdog {
    /// Asks the environment whether the unit has a watchdog.
    pub fn new() -> Self {
        Self {
            interval: sd_notify::watchdog_enabled(),
            seen: Vec::new(),
            warned: false,
            failed: Vec::new(),
        }
    }

    /// How long the main loop may sleep.
    pub fn round(&self) -> Duration {
        self.interval.map_or(ROUND, |interval| (interval / 2).min(ROUND))
    }

    /// A thread lives if it sleeps with nothing to do, or went round its loop
    /// since the last look, or that look was a moment ago.
    pub fn look(&mut self, devices: &Devices) {
        self.seen.resize(devices.iter().count(), (0, Instant::now()));
        let mut stalled = false;
        for ((device, thread), (passes, since)) in devices.iter().zip(&mut self.seen) {
            let Some(thread) = thread else { continue };
            let now = thread.heartbeat.passes();
            if now != *passes || !thread.heartbeat.is_busy() {
                (*passes, *since) = (now, Instant::now());
            } else if since.elapsed() > STALL {
                stalled = true;
                if !self.warned {
                    tracing::error!("the I/O thread of {} stands still", device.path.display());
                }
            }
        }
        self.warned = stalled;
        if self.interval.is_some() && !stalled {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    }

    /// Tiers that failed since the last look, in a sentence for a person. The
    /// store lives on; what its failures cost is counted in the status.
    pub fn failures(&mut self, store: &Store) -> Option<String> {
        self.failed.resize(store.tiers().len(), false);
        let mut message = None;
        for (slots, told) in store.tiers().iter().zip(&mut self.failed) {
            if slots.is_faulty() && !*told {
                let (name, errors) = (slots.tier().name(), store.totals().io_errors);
                let text = format!(
                    "tier {name} failed ({errors} operations so far); no new pages go there \
                     while another tier is well"
                );
                tracing::error!("{text}; see sluice status");
                message = Some(text);
            }
            *told = slots.is_faulty();
        }
        message
    }
}
