// SPDX-License-Identifier: MIT OR Apache-2.0
//! Store and control plane as Prometheus reads them: its text exposition format,
//! version 0.0.4. Names follow Prometheus' conventions: base units, `_total` for
//! what only rises. docs/how-to/metrics.md says what each means.

use std::fmt::Write as _;

use super::{ControlState, Device, State, Status, Tier, Times};
use crate::engine::arbiter::Rule;
use crate::engine::units::{PAGE_BYTES, SLAB_BYTES};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The longest time with a bucket of its own: 2^24 µs, 17 s. Fixed, so that the
/// buckets of two stores, or of one at two times, can be added.
const LAST_BUCKET: usize = 24;
/// How far the control plane can be; see `ControlState::progress`.
const PROGRESS: [&str; 5] = ["settled", "moving", "waiting", "failed", "down"];

/// A family of metrics with one value for each `T`.
struct Family<T> {
    kind: &'static str,
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> f64,
}

impl<T> Family<T> {
    const fn gauge(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Self {
        Self { kind: "gauge", name, help, value }
    }

    const fn counter(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Self {
        Self { kind: "counter", name, help, value }
    }
}

const STORE: &[Family<Status>] = &[
    Family::gauge("sluice_connections", "Clients, the kernel included.", |status| {
        status.connections.into()
    }),
    Family::gauge("sluice_swap_size_bytes", "Swap offered, over all devices.", |status| {
        status.size_bytes as f64
    }),
    Family::gauge(
        "sluice_swap_written_bytes",
        "Pages written and not trimmed since; more than are live.",
        |status| status.written_pages as f64 * PAGE_BYTES as f64,
    ),
    Family::counter(
        "sluice_request_waits_total",
        "Times that a request was set aside: a moving extent, a page being written, no slot.",
        |status| status.requests.parked as f64,
    ),
    Family::gauge(
        "sluice_request_longest_wait_seconds",
        "The longest that a request was set aside at one go since the start.",
        |status| seconds(status.moves.longest_wait_us),
    ),
    Family::counter("sluice_moved_bytes_total", "Bytes copied because extents moved.", |status| {
        status.moves.bytes as f64
    }),
    Family::counter(
        "sluice_rescued_reads_total",
        "Reads answered from the spill's copy because a fast tier failed.",
        |status| status.moves.rescued_reads as f64,
    ),
    Family::counter("sluice_lost_pages_total", "Pages that no tier could read.", |status| {
        status.moves.lost_pages as f64
    }),
    Family::gauge("sluice_memory_locked_bytes", "Memory locked, libraries included.", |status| {
        status.memory.locked_bytes as f64
    }),
    Family::gauge("sluice_memory_own_bytes", "Of it, what the store asked for.", |status| {
        status.memory.ours_bytes as f64
    }),
    Family::gauge("sluice_memory_pinned_bytes", "Memory pinned by drivers.", |status| {
        status.memory.pinned_bytes as f64
    }),
    Family::gauge("sluice_vram_held_bytes", "GPU memory lent to the machine.", |status| {
        status.economy.lent_bytes as f64
    }),
    Family::gauge("sluice_ram_spent_bytes", "RAM that the store takes.", |status| {
        status.economy.spent_bytes as f64
    }),
    Family::gauge(
        "sluice_net_gain_bytes",
        "GPU memory lent less RAM spent: what the machine gains.",
        |status| status.economy.net_bytes as f64,
    ),
];

const DEVICE: &[Family<Device>] = &[
    Family::gauge("sluice_device_size_bytes", "The device's size.", |device| {
        device.size_bytes as f64
    }),
    Family::gauge(
        "sluice_device_used_bytes",
        "What the kernel counts as in use: what is live.",
        |device| device.swap_used_bytes as f64,
    ),
    Family::gauge("sluice_device_swapped_on", "1 while it is switched on as swap.", |device| {
        f64::from(device.swap_priority.is_some())
    }),
];

const TIER: &[Family<Tier>] = &[
    Family::gauge("sluice_tier_held_bytes", "Memory held.", |tier| tier.held_bytes as f64),
    Family::gauge("sluice_tier_target_bytes", "Memory that may be held.", |tier| {
        tier.target_bytes as f64
    }),
    Family::gauge("sluice_tier_max_bytes", "Memory that could ever be held.", |tier| {
        f64::from(tier.slabs_max) * SLAB_BYTES as f64
    }),
    Family::gauge("sluice_tier_used_bytes", "Extents that have a place in it.", |tier| {
        tier.used_bytes as f64
    }),
    Family::gauge("sluice_tier_free_bytes", "Memory held and not used.", |tier| {
        tier.free_bytes as f64
    }),
    Family::gauge("sluice_tier_quarantined_bytes", "Memory that failed.", |tier| {
        tier.quarantined_bytes as f64
    }),
    Family::gauge("sluice_tier_open", "1, or 0 while its device is closed.", |tier| {
        f64::from(tier.open)
    }),
    Family::gauge("sluice_tier_faulty", "1 after a failure: no new pages go there.", |tier| {
        f64::from(tier.faulty)
    }),
    Family::counter("sluice_tier_reads_total", "Operations that read.", |tier| {
        tier.activity.reads as f64
    }),
    Family::counter("sluice_tier_writes_total", "Operations that wrote.", |tier| {
        tier.activity.writes as f64
    }),
    Family::counter("sluice_tier_read_bytes_total", "Bytes read, moves included.", |tier| {
        tier.activity.read_bytes as f64
    }),
    Family::counter("sluice_tier_written_bytes_total", "Bytes written, moves included.", |tier| {
        tier.activity.written_bytes as f64
    }),
    Family::counter("sluice_tier_errors_total", "Operations that failed.", |tier| {
        tier.activity.errors as f64
    }),
    Family::counter(
        "sluice_tier_checksum_errors_total",
        "Pages that did not match their checksum.",
        |tier| tier.activity.checksum_errors as f64,
    ),
    Family::counter("sluice_tier_timeouts_total", "Operations not answered in time.", |tier| {
        tier.activity.timed_out as f64
    }),
];

const CONTROL: &[Family<ControlState>] = &[
    Family::gauge("sluice_control_enabled", "0 after a manual off.", |state| {
        f64::from(state.enabled)
    }),
    Family::gauge("sluice_control_suspended", "1 while suspended by hand.", |state| {
        f64::from(state.suspended)
    }),
    Family::gauge("sluice_control_leased_bytes", "GPU memory reserved by leases.", |state| {
        state.leased_bytes as f64
    }),
    Family::gauge("sluice_control_on_battery", "1 while the machine runs on battery.", |state| {
        f64::from(state.on_battery)
    }),
];

/// What is known, as text. `None`: no store, or no control plane, answers; then
/// there is nothing of it but that it is not up.
#[must_use]
pub fn text(store: Option<&Status>, control: Option<&ControlState>) -> String {
    let mut page = Page::default();
    page.one("gauge", "sluice_store_up", "Whether a store answers.", store.is_some().into());
    if let Some(status) = store {
        page.store(status);
    }
    let is_up = control.is_some().into();
    page.one("gauge", "sluice_control_up", "Whether sluiced answers.", is_up);
    if let Some(state) = control {
        page.control(state, store.is_some());
    }
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn store(&mut self, status: &Status) {
        let about = labels(&[("version", &status.version), ("durability", &status.durability)]);
        self.head("gauge", "sluice_store_info", "1, with what the store is.");
        self.sample("sluice_store_info", &about, 1.0);
        let all = State::ALL.map(|state| (state.name(), state == status.state));
        self.one_of("sluice_store_state", "state", "1 for the state it is in.", &all);
        for family in STORE {
            self.one(family.kind, family.name, family.help, (family.value)(status));
        }
        if let Some(bytes) = status.economy.spill_bytes {
            let help = "What the spill can hold.";
            self.one("gauge", "sluice_spill_size_bytes", help, bytes as f64);
        }
        let (requests, moves, errors) = (&status.requests, &status.moves, &status.errors);
        self.split(
            "sluice_requests_total",
            "command",
            "Requests answered.",
            &[
                ("read", requests.read),
                ("write", requests.write),
                ("trim", requests.trim),
                ("write_zeroes", requests.write_zeroes),
                ("flush", requests.flush),
            ],
        );
        self.split(
            "sluice_request_bytes_total",
            "command",
            "Bytes read and written: swapped in and out.",
            &[("read", requests.read_bytes), ("write", requests.written_bytes)],
        );
        self.split(
            "sluice_errors_total",
            "reason",
            "Requests and moves that failed.",
            &[("io", errors.io), ("checksum", errors.checksum), ("timeout", errors.timed_out)],
        );
        self.split(
            "sluice_moved_extents_total",
            "why",
            "Extents moved: out of a fast tier, within a tier, back from the spill.",
            &[
                ("evacuated", moves.evacuated),
                ("compacted", moves.compacted),
                ("promoted", moves.promoted),
            ],
        );
        self.each(DEVICE, &status.devices, |device| labels(&[("device", &device.path)]));
        self.each(TIER, &status.tiers, of_tier);
        self.times(status, "sluice_tier_read_duration_seconds", "How long reads took.", |tier| {
            &tier.activity.read_times
        });
        self.times(status, "sluice_tier_write_duration_seconds", "How long writes took.", |tier| {
            &tier.activity.write_times
        });
    }

    fn each<T>(&mut self, families: &[Family<T>], all: &[T], name: fn(&T) -> String) {
        for family in families {
            self.head(family.kind, family.name, family.help);
            for this in all {
                self.sample(family.name, &name(this), (family.value)(this));
            }
        }
    }

    fn times(&mut self, status: &Status, name: &str, help: &str, of: fn(&Tier) -> &Times) {
        self.head("histogram", name, help);
        for tier in &status.tiers {
            let (times, tier) = (of(tier), of_tier(tier));
            let bucket = format!("{name}_bucket");
            let mut sum = 0;
            for n in 0..=LAST_BUCKET {
                sum += times.buckets.get(n).copied().unwrap_or_default();
                let upto = seconds(1 << n);
                self.sample(&bucket, &format!("{tier},le=\"{upto}\""), sum as f64);
            }
            let all = times.buckets.iter().sum::<u64>() as f64;
            self.sample(&bucket, &format!("{tier},le=\"+Inf\""), all);
            self.sample(&format!("{name}_sum"), &tier, times.sum_ns as f64 / 1e9);
            self.sample(&format!("{name}_count"), &tier, all);
        }
    }

    fn control(&mut self, state: &ControlState, has_store: bool) {
        let rules = Rule::ALL.map(|rule| (rule.name(), rule.name() == state.rule));
        self.one_of("sluice_control_rule", "rule", "1 for the rule that decides.", &rules);
        let progress = PROGRESS.map(|name| (name, name == state.progress));
        let help = "1 for how far it is with what it decided.";
        self.one_of("sluice_control_progress", "progress", help, &progress);
        for family in CONTROL {
            self.one(family.kind, family.name, family.help, (family.value)(state));
        }
        if let Some(level) = state.battery_level {
            let help = "The battery's level, 0 to 1.";
            self.one("gauge", "sluice_control_battery_ratio", help, f64::from(level) / 100.0);
        }
        // What the store said last, which may not be there any more.
        if has_store && state.running {
            let help = "GPU memory that may be held.";
            let bytes = state.target_bytes as f64;
            self.one("gauge", "sluice_control_target_bytes", help, bytes);
        }
    }

    fn head(&mut self, kind: &str, name: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, kind: &str, name: &str, help: &str, value: f64) {
        self.head(kind, name, help);
        self.sample(name, "", value);
    }

    /// A counter in parts.
    fn split(&mut self, name: &str, label: &str, help: &str, parts: &[(&str, u64)]) {
        self.head("counter", name, help);
        for (part, count) in parts {
            self.sample(name, &labels(&[(label, part)]), *count as f64);
        }
    }

    /// A gauge for each thing that could be, all but one of them 0.
    fn one_of(&mut self, name: &str, label: &str, help: &str, all: &[(&str, bool)]) {
        self.head("gauge", name, help);
        for (this, is) in all {
            self.sample(name, &labels(&[(label, this)]), f64::from(*is));
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn of_tier(tier: &Tier) -> String {
    labels(&[("tier", &tier.name), ("kind", &tier.kind)])
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    pairs.iter().map(pair).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_as_the_format_asks() {
        assert_eq!(labels(&[("a", "b"), ("c", "\"\\\n")]), r#"a="b",c="\"\\\n""#);
    }

    #[test]
    fn without_store_and_control_plane_there_is_nothing_but_that() {
        let page = text(None, None);
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["sluice_store_up 0", "sluice_control_up 0"]);
    }
}
