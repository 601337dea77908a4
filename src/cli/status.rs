// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice status`: ask a store over its control socket and show the answer.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::args::StatusArgs;
use crate::engine::error::{Error, Kind};
use crate::engine::units::{ByteLen, PAGE_BYTES};
use crate::engine::view::{Request, Status};

/// A store answers from memory; one that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Far above any reply: a peer that sends more is no store.
const MAX_REPLY_BYTES: u64 = 1 << 20;

pub(super) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let status = ask(&args.socket)?;
    let text =
        if args.json { serde_json::to_string_pretty(&status)? + "\n" } else { render(&status) };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(socket: &Path) -> Result<Status, Error> {
    let place = socket.display();
    let failed = |what: &str, error: std::io::Error| {
        let kind = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Kind::Missing,
            ErrorKind::PermissionDenied => Kind::Denied,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Kind::TimedOut,
            _ => Kind::Io,
        };
        let failure = Error::new(kind, format!("{what} {place}")).with_source(error);
        match kind {
            Kind::Missing => failure.with_hint(
                "no store is running there: systemctl status sluice-store, or name its socket \
                 with --socket",
            ),
            Kind::Denied => failure.with_hint("ask as root: sudo sluice status"),
            Kind::TimedOut => {
                failure.with_hint("the store is stuck: journalctl -u sluice-store says more")
            }
            _ => failure,
        }
    };
    let mut stream =
        UnixStream::connect(socket).map_err(|error| failed("cannot reach the store at", error))?;
    let request = serde_json::to_string(&Request::Status {}).expect("plain data serialises") + "\n";
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(request.as_bytes()))
        .map_err(|error| failed("cannot ask the store at", error))?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES))
        .read_line(&mut reply)
        .map_err(|error| failed("no answer from the store at", error))?;
    serde_json::from_str(&reply).map_err(|error| {
        let start: String = reply.trim_end().chars().take(80).collect();
        Error::new(Kind::Protocol, format!("{place} did not answer as a store: {start:?}"))
            .with_source(error)
            .with_hint("is it the control socket, and the same version of sluice on both ends?")
    })
}

/// The report for a person.
fn render(status: &Status) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, status);
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
    for tier in &status.tiers {
        write!(
            out,
            "\ntier     {} ({})  {} in {} of {} slabs, {} extents used, {} free",
            tier.name,
            tier.kind,
            ByteLen(tier.held_bytes),
            tier.slabs_held,
            tier.slabs_max,
            tier.extents_used,
            tier.slots_free
        )?;
        if tier.slabs_quarantined > 0 {
            write!(out, ", {} SLABS QUARANTINED", tier.slabs_quarantined)?;
        }
    }
    let requests = &status.requests;
    writeln!(
        out,
        "\n\nrequests read {}, write {}, trim {}, write-zeroes {}, flush {}; {} had to wait",
        requests.read,
        requests.write,
        requests.trim,
        requests.write_zeroes,
        requests.flush,
        requests.parked
    )?;
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
        "memory   {} locked, {} of it the store's own",
        ByteLen(status.memory.locked_bytes),
        ByteLen(status.memory.ours_bytes)
    )
}
