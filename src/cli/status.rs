// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice status`: ask a store over its control socket and show the answer.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::args::StatusArgs;
use super::pending::Pending;
use super::{Ask, Ways, control};
use crate::engine::error::{Error, Kind};
use crate::engine::units::{ByteLen, PAGE_BYTES};
use crate::engine::view::{Latency, Reply, Request, Status, Tier, metrics};

/// Between two reports of `--watch`.
const WATCH: Duration = Duration::from_secs(1);

/// The store's reply, and what is configured and not in force.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Pending>,
}

pub(super) fn run(args: &StatusArgs, ways: &Ways) -> Result<ExitCode> {
    if args.metrics {
        return metrics(args, ways);
    }
    // Home and all below erased, where a person looks on.
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    loop {
        let status = look(&args.socket, ways.ask)?;
        let shown = Shown { pending: Pending::find(&status, ways), status: &status };
        let text = match (args.json, args.watch) {
            (true, true) => serde_json::to_string(&shown)? + "\n",
            (true, false) => serde_json::to_string_pretty(&shown)? + "\n",
            (false, true) => format!("{clear}{}", render(&shown)),
            (false, false) => render(&shown),
        };
        super::print(&text)?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(WATCH);
    }
}

pub(super) fn look(socket: &Path, ask: Ask) -> Result<Box<Status>, Error> {
    match ask(socket, &Request::Status {})? {
        Reply::Status(status) => Ok(status),
        _ => Err(Error::new(Kind::Protocol, "the store answered something else")),
    }
}

/// What `sluiced` would serve. That nobody answers is what is to be told; that
/// this caller may not ask is not.
fn metrics(args: &StatusArgs, ways: &Ways) -> Result<ExitCode> {
    let store = match look(&args.socket, ways.ask) {
        Err(error) if error.kind() == Kind::Denied => return Err(error.into()),
        looked => looked.map_err(|error| eprintln!("sluice: {error}")).ok(),
    };
    let control = control::state(ways).ok();
    super::print(&metrics::text(store.as_deref(), control.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}

/// The report for a person.
fn render(shown: &Shown<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, shown.status);
    if let Some(pending) = &shown.pending {
        let _ = pending.write(&mut out);
    }
    out
}

fn write_report(out: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        out,
        "sluice-store {} is {} (process {}, {} connected)",
        status.version,
        status.state.name(),
        status.pid,
        status.connections
    )?;
    if !status.message.is_empty() {
        writeln!(out, "  {}", status.message)?;
    }
    for device in &status.devices {
        write!(out, "\ndevice   {}  {}", device.path, ByteLen(device.size_bytes))?;
        match device.swap_priority {
            Some(priority) => writeln!(
                out,
                "  swap, priority {priority}, {} in use",
                ByteLen(device.swap_used_bytes)
            )?,
            None => writeln!(out, "  not swapped on")?,
        }
    }
    let written = ByteLen(status.written_pages * PAGE_BYTES as u64);
    writeln!(
        out,
        "\nwritten  {written} of {} ({} pages)",
        ByteLen(status.size_bytes),
        status.written_pages
    )?;
    write!(out, "         written is more than live")?;
    let live: u64 = status.devices.iter().map(|device| device.swap_used_bytes).sum();
    if status.devices.iter().any(|device| device.swap_priority.is_some()) {
        write!(out, ": the kernel counts {} in use", ByteLen(live))?;
    }
    writeln!(out, "; it gives back whole 2 MiB clusters only")?;
    write_capacity(out, status)?;
    for tier in &status.tiers {
        write_tier(out, tier)?;
    }
    let requests = &status.requests;
    writeln!(
        out,
        "\nrequests read {}, write {}, trim {}, write-zeroes {}, flush {}; {} had to wait",
        requests.read,
        requests.write,
        requests.trim,
        requests.write_zeroes,
        requests.flush,
        requests.parked
    )?;
    let moves = &status.moves;
    writeln!(
        out,
        "moved    {} in {} extents: {} given back, {} tidied, {} promoted; longest wait {} us",
        ByteLen(moves.bytes),
        moves.extents,
        moves.evacuated,
        moves.compacted,
        moves.promoted,
        moves.longest_wait_us
    )?;
    if moves.rescued_reads + moves.lost_pages > 0 {
        writeln!(
            out,
            "         {} reads saved by the mirror, {} PAGES LOST",
            moves.rescued_reads, moves.lost_pages
        )?;
    }
    let errors = &status.errors;
    if errors.io + errors.checksum + errors.timed_out == 0 {
        writeln!(out, "errors   none")?;
    } else {
        writeln!(
            out,
            "errors   {} failed, {} WRONG CHECKSUMS, {} timed out",
            errors.io, errors.checksum, errors.timed_out
        )?;
    }
    writeln!(
        out,
        "memory   {} locked, {} of it the store's own; {} pinned by drivers",
        ByteLen(status.memory.locked_bytes),
        ByteLen(status.memory.ours_bytes),
        ByteLen(status.memory.pinned_bytes)
    )?;
    let economy = &status.economy;
    let net = ByteLen(economy.net_bytes.unsigned_abs());
    let sign = if economy.net_bytes < 0 { "-" } else { "" };
    writeln!(
        out,
        "gain     {} of GPU memory lent - {} of RAM spent = {sign}{net}",
        ByteLen(economy.lent_bytes),
        ByteLen(economy.spent_bytes)
    )
}

/// Why no write can fail for lack of room.
fn write_capacity(out: &mut String, status: &Status) -> std::fmt::Result {
    let offered = ByteLen(status.size_bytes);
    let Some(spill) = status.economy.spill_bytes else {
        let held = status.tiers.iter().map(|tier| tier.held_bytes).sum();
        return writeln!(out, "capacity {offered} offered <= {} held; no spill", ByteLen(held));
    };
    let durability = if status.durability == "mirror" {
        "each page is in the spill too (mirror)"
    } else {
        "a page is in one place (writeback)"
    };
    writeln!(out, "capacity {offered} offered <= {} of spill; {durability}", ByteLen(spill))
}

fn write_tier(out: &mut String, tier: &Tier) -> std::fmt::Result {
    writeln!(
        out,
        "\ntier     {} ({})  {} held in {} of {} slabs, target {}{}",
        tier.name,
        tier.kind,
        ByteLen(tier.held_bytes),
        tier.slabs_held,
        tier.slabs_max,
        ByteLen(tier.target_bytes),
        if tier.open { "" } else { ", CLOSED" }
    )?;
    if !tier.about.is_empty() {
        writeln!(out, "         {}", tier.about)?;
    }
    write!(
        out,
        "         {} used by {} extents, {} free",
        ByteLen(tier.used_bytes),
        tier.extents_used,
        ByteLen(tier.free_bytes)
    )?;
    if tier.slabs_quarantined > 0 {
        write!(out, ", {} IN QUARANTINE", ByteLen(tier.quarantined_bytes))?;
    }
    writeln!(out, "{}", if tier.faulty { ", FAILED: takes no new pages" } else { "" })?;
    let activity = &tier.activity;
    for (what, count, latency) in [
        ("reads", activity.reads, activity.read_latency),
        ("writes", activity.writes, activity.write_latency),
    ] {
        if count > 0 {
            write!(out, "         {count} {what}")?;
            // Operations may be counted whose time is not.
            let times = latency != Latency::default();
            writeln!(out, "{}", if times { percentiles(latency) } else { String::new() })?;
        }
    }
    let failed = [
        (activity.errors, "OPERATIONS FAILED"),
        (activity.checksum_errors, "WRONG CHECKSUMS"),
        (activity.timed_out, "OPERATIONS NOT ANSWERED"),
    ];
    for (count, what) in failed.into_iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "         {count} {what}")?;
    }
    Ok(())
}

fn percentiles(latency: Latency) -> String {
    let Latency { p50_us, p99_us, p999_us } = latency;
    format!(": half within {p50_us} us, 99 % within {p99_us} us, 99.9 % within {p999_us} us")
}
