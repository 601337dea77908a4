// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `sluice top` shows, as lines of text: the most important first, since a
//! low terminal has room for few, and no line is needed to understand another.

use std::fmt::Write as _;

use super::Seen;
use crate::engine::error::Error;
use crate::engine::units::{ByteLen, PAGE_BYTES};
use crate::engine::view::rates::{Rates, TierRates};
use crate::engine::view::{ControlState, Latency, Status, Tier};

/// A line and how it stands out where there are colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How it stands out.
    pub style: Style,
    /// Its text.
    pub text: String,
}

/// How a line stands out. Never by that alone: the text says it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not.
    Plain,
    /// The head of what is below.
    Head,
    /// Somebody should look at it.
    Alarm,
}

/// The width for which a block of text is laid out.
const BLOCK_WIDTH: usize = 80;
const HINT: &str = "q quits";
const NAME_WIDTH: usize = 8;

/// A column of the table of tiers, as far as the width allows.
struct Column {
    head: &'static str,
    width: usize,
    value: fn(&Tier, Option<&TierRates>) -> String,
}

const COLUMNS: [Column; 7] = [
    Column { head: "held", width: 11, value: |tier, _| ByteLen(tier.held_bytes).to_string() },
    Column {
        head: "target",
        width: 11,
        value: |tier, _| {
            if tier.open { ByteLen(tier.target_bytes).to_string() } else { "closed".to_owned() }
        },
    },
    Column { head: "reads/s", width: 8, value: |_, rates| number(rates.map(|rates| rates.reads)) },
    Column {
        head: "p50/p99 us",
        width: 11,
        value: |_, rates| latency(rates.map(|rates| rates.read_latency)),
    },
    Column {
        head: "writes/s",
        width: 9,
        value: |_, rates| number(rates.map(|rates| rates.writes)),
    },
    Column {
        head: "p50/p99 us",
        width: 11,
        value: |_, rates| latency(rates.map(|rates| rates.write_latency)),
    },
    Column { head: "used", width: 11, value: |tier, _| ByteLen(tier.used_bytes).to_string() },
];

/// The screen: as many lines as it is high, none wider than it.
#[must_use]
pub fn screen(seen: &Seen, width: usize, height: usize) -> Vec<Line> {
    let mut lines = lines(seen, width);
    let head = &mut lines[0].text;
    if let Some(gap) = width.checked_sub(head.chars().count() + HINT.len()).filter(|gap| *gap > 1) {
        let _ = write!(head, "{:gap$}{HINT}", "");
    }
    lines.resize(height, Line { style: Style::Plain, text: String::new() });
    for line in &mut lines {
        line.text = line.text.chars().take(width).collect();
    }
    lines
}

/// The screen as a terminal takes it, over what was there.
#[must_use]
pub fn paint(lines: &[Line], with_colours: bool) -> String {
    let mut out = String::from("\x1b[H");
    for (n, line) in lines.iter().enumerate() {
        let (on, off) = match line.style {
            _ if !with_colours => ("", ""),
            Style::Plain => ("", ""),
            Style::Head => ("\x1b[1m", "\x1b[0m"),
            Style::Alarm => ("\x1b[1;31m", "\x1b[0m"),
        };
        let end = if n > 0 { "\r\n" } else { "" };
        // Erased first: at the right edge, after it, the last letter would go as well.
        let _ = write!(out, "{end}\x1b[2K{on}{}{off}", line.text);
    }
    out
}

/// All lines, for where there is no screen.
#[must_use]
pub fn block(seen: &Seen) -> String {
    let mut out = String::new();
    for line in lines(seen, BLOCK_WIDTH) {
        out.push_str(line.text.trim_end());
        out.push('\n');
    }
    out
}

fn lines(seen: &Seen, width: usize) -> Vec<Line> {
    let mut out = Vec::new();
    let mut say = |style, text| out.push(Line { style, text });
    let status = match &seen.store {
        Ok(status) => status,
        Err(error) => {
            say(Style::Alarm, format!("no store: {error}"));
            say(Style::Plain, rule(seen.control.as_ref()));
            return out;
        }
    };
    say(
        Style::Head,
        format!(
            "sluice-store {} is {} (process {}, {} connected)",
            status.version,
            status.state.name(),
            status.pid,
            status.connections
        ),
    );
    let alarms = alarms(status);
    let is_well = alarms.is_empty();
    for alarm in alarms {
        say(Style::Alarm, alarm);
    }
    if !status.message.is_empty() {
        say(Style::Plain, format!("         {}", status.message));
    }
    say(Style::Plain, rule(seen.control.as_ref()));
    let rates = seen.rates.as_ref();
    let flow = |pages: fn(&Rates) -> f64, bytes: fn(&Rates) -> f64| {
        format!("{:>9} pages/s  {:>8} MB/s", number(rates.map(pages)), megabytes(rates.map(bytes)))
    };
    say(Style::Plain, format!("in  {}", flow(|rates| rates.pages_in, |rates| rates.bytes_in)));
    say(Style::Plain, format!("out {}", flow(|rates| rates.pages_out, |rates| rates.bytes_out)));
    say(Style::Head, row(width, "tier", |column| column.head.to_owned()));
    for tier in &status.tiers {
        let of_tier = |rates: &&TierRates| rates.name == tier.name;
        let rates = rates.and_then(|rates| rates.tiers.iter().find(of_tier));
        say(Style::Plain, row(width, &tier.name, |column| (column.value)(tier, rates)));
    }
    say(Style::Plain, spill(status));
    say(Style::Plain, swap(status));
    let waits = number(rates.map(|rates| rates.waits));
    say(
        Style::Plain,
        format!("waits    {waits}/s; the longest so far {} us", status.moves.longest_wait_us),
    );
    say(
        Style::Plain,
        format!(
            "moved    {} MB/s: {}/s given back, {}/s promoted",
            megabytes(rates.map(|rates| rates.moved_bytes)),
            number(rates.map(|rates| rates.evacuated)),
            number(rates.map(|rates| rates.promoted))
        ),
    );
    let economy = &status.economy;
    say(
        Style::Plain,
        format!(
            "gain     {} of GPU memory lent - {} of RAM spent",
            ByteLen(economy.lent_bytes),
            ByteLen(economy.spent_bytes)
        ),
    );
    if is_well {
        say(Style::Plain, "errors   none".to_owned());
    }
    out
}

/// Everything that went wrong since the start.
fn alarms(status: &Status) -> Vec<String> {
    let mut out = Vec::new();
    for tier in &status.tiers {
        if tier.faulty {
            out.push(format!("{:NAME_WIDTH$} FAILED: takes no new pages", tier.name));
        }
        if tier.quarantined_bytes > 0 {
            let bytes = ByteLen(tier.quarantined_bytes);
            out.push(format!("{:NAME_WIDTH$} {bytes} IN QUARANTINE", tier.name));
        }
    }
    let errors: Vec<String> = [
        (status.errors.io, "failed"),
        (status.errors.checksum, "WRONG CHECKSUMS"),
        (status.errors.timed_out, "timed out"),
        (status.moves.lost_pages, "PAGES LOST"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !errors.is_empty() {
        out.push(format!("errors   {}", errors.join(", ")));
    }
    out
}

fn rule(control: Result<&ControlState, &Error>) -> String {
    match control {
        Ok(state) => {
            let detail = if state.detail.is_empty() { "" } else { ", " };
            let (rule, progress) = (&state.rule, &state.progress);
            format!("rule     {rule} ({progress}{detail}{}): {}", state.detail, state.sentence)
        }
        Err(error) => format!("rule     none: {error}"),
    }
}

fn row(width: usize, name: &str, value: impl Fn(&Column) -> String) -> String {
    let mut out = format!("{name:NAME_WIDTH$}");
    for column in &COLUMNS {
        if out.chars().count() + column.width > width {
            break;
        }
        let _ = write!(out, "{:>1$}", value(column), column.width);
    }
    out
}

fn spill(status: &Status) -> String {
    let used = status.tiers.iter().filter(|tier| tier.kind == "spill").map(|tier| tier.used_bytes);
    match status.economy.spill_bytes {
        Some(bytes) => format!("spill    {} used of {}", ByteLen(used.sum()), ByteLen(bytes)),
        None => "spill    none".to_owned(),
    }
}

fn swap(status: &Status) -> String {
    let written = ByteLen(status.written_pages * PAGE_BYTES as u64);
    let size = ByteLen(status.size_bytes);
    if status.devices.is_empty() {
        return format!("served   {written} written of {size}");
    }
    let used = status.devices.iter().map(|device| device.swap_used_bytes).sum();
    format!("swap     {} in use of {size}; {written} written", ByteLen(used))
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
}

fn megabytes(bytes: Option<f64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", bytes / 1e6))
}

fn latency(latency: Option<Latency>) -> String {
    match latency {
        Some(latency) if latency != Latency::default() => {
            format!("{}/{}", latency.p50_us, latency.p99_us)
        }
        _ => "-".to_owned(),
    }
}
