// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice vram` and `sluice gpu`: give a store an order, show how far it is
//! while it is carried out, and what came of it.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::order_args::{GpuCommand, OrderArgs, VramCommand};
use super::{Ask, FAILED, UNFINISHED};
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;
use crate::engine::view::{Ended, Outcome, Reply, Request, Status};

/// Between two looks at how far it is.
const TICK: Duration = Duration::from_millis(250);

pub(super) fn vram(command: &VramCommand, ask: Ask) -> Result<ExitCode> {
    match command {
        VramCommand::Target { size, tier, order } => {
            let deadline_ms = milliseconds(order);
            let request = Request::Target { bytes: size.0, tier: tier.clone(), deadline_ms };
            give_as(&request, order, ask)
        }
        VramCommand::Drain { order } => {
            give_as(&Request::Drain { deadline_ms: milliseconds(order) }, order, ask)
        }
        VramCommand::Resume { order } => {
            give_as(&Request::Resume { deadline_ms: milliseconds(order) }, order, ask)
        }
    }
}

pub(super) fn gpu(command: &GpuCommand, ask: Ask) -> Result<ExitCode> {
    match command {
        GpuCommand::Close { order } => {
            give_as(&Request::CloseGpu { deadline_ms: milliseconds(order) }, order, ask)
        }
        GpuCommand::Readmit { tier, json, socket } => {
            show(ask(socket, &Request::Readmit { tier: tier.clone() })?, *json)
        }
    }
}

fn give_as(request: &Request, order: &OrderArgs, ask: Ask) -> Result<ExitCode> {
    give(request, &order.socket, order.progress, order.json, ask)
}

fn milliseconds(order: &OrderArgs) -> Option<u64> {
    u64::try_from(order.within.as_millis()).ok()
}

/// Gives an order to the store on a socket, and shows how far it is and what
/// came of it.
pub(super) fn give(
    request: &Request,
    socket: &Path,
    progress: bool,
    json: bool,
    ask: Ask,
) -> Result<ExitCode> {
    let reply = if std::io::stderr().is_terminal() || progress {
        ask_and_watch(request, socket, ask)?
    } else {
        ask(socket, request)?
    };
    show(reply, json)
}

/// Asks on one connection and, until the answer is there, for the status on others.
fn ask_and_watch(request: &Request, socket: &Path, ask: Ask) -> Result<Reply> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = send.send(ask(socket, request));
        });
        let mut shown = Shown::new(true);
        loop {
            let answer = receive.recv_timeout(TICK);
            let waiting = matches!(answer, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
            if waiting {
                if let Ok(Reply::Status(status)) = ask(socket, &Request::Status {}) {
                    shown.show(&progress(&status));
                }
                continue;
            }
            shown.end();
            let gone = || Error::new(Kind::Io, "the request ended without an answer");
            return Ok(answer.map_err(|_| gone())??);
        }
    })
}

/// A line on standard error that says how far it is.
pub(super) struct Shown {
    terminal: bool,
    wanted: bool,
    last: String,
}

impl Shown {
    /// Shown on a terminal, and elsewhere if it is `wanted`.
    pub fn new(wanted: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), wanted, last: String::new() }
    }

    /// Shows a line that is not there yet.
    pub fn show(&mut self, line: &str) {
        if (self.terminal || self.wanted) && line != self.last {
            self.write(line);
            line.clone_into(&mut self.last);
        }
    }

    /// The line makes room for what comes next.
    pub fn end(&mut self) {
        if self.terminal && !self.last.is_empty() {
            self.write("");
        }
    }

    /// Progress is for a person; one that is gone is no reason to fail.
    fn write(&self, line: &str) {
        let mut err = std::io::stderr().lock();
        let _ = if self.terminal { write!(err, "\r\x1b[K{line}") } else { writeln!(err, "{line}") };
        let _ = err.flush();
    }
}

fn progress(status: &Status) -> String {
    let mut line = String::new();
    for tier in status.tiers.iter().filter(|tier| tier.kind == "fast") {
        let separator = if line.is_empty() { "" } else { "; " };
        let (held, target) = (ByteLen(tier.held_bytes), ByteLen(tier.target_bytes));
        let _ = write!(line, "{separator}{}: {held} held, target {target}", tier.name);
    }
    line
}

fn show(reply: Reply, json: bool) -> Result<ExitCode> {
    let Reply::Ended(outcome) = reply else {
        return Err(Error::new(Kind::Protocol, "the store answered something else").into());
    };
    let text = if json { serde_json::to_string_pretty(&outcome)? + "\n" } else { render(&outcome) };
    super::print(&text)?;
    Ok(match outcome.outcome {
        Ended::Done => ExitCode::SUCCESS,
        Ended::Continues => ExitCode::from(UNFINISHED),
        Ended::Stuck if outcome.continues => ExitCode::from(UNFINISHED),
        Ended::Stuck | Ended::Replaced => ExitCode::from(FAILED),
    })
}

fn render(outcome: &Outcome) -> String {
    let word = match outcome.outcome {
        Ended::Done => "done",
        Ended::Continues => "not done yet",
        Ended::Stuck => "stuck",
        Ended::Replaced => "replaced by another order",
    };
    let mut out = format!(
        "{word} after {}: {} held, {} allowed\n",
        elapsed(outcome.elapsed_ms),
        ByteLen(outcome.held_bytes),
        ByteLen(outcome.target_bytes)
    );
    if outcome.slabs_released + outcome.extents_moved > 0 {
        let _ = writeln!(
            out,
            "  {} given back, {} of pages moved in {} extents",
            ByteLen(outcome.released_bytes),
            ByteLen(outcome.moved_bytes),
            outcome.extents_moved
        );
    }
    if outcome.left_bytes > 0 {
        let _ = writeln!(
            out,
            "  {} too much is still held, {} written pages must leave",
            ByteLen(outcome.left_bytes),
            outcome.left_pages
        );
    }
    if !outcome.message.is_empty() {
        let _ = writeln!(out, "  {}", outcome.message);
    }
    if outcome.continues {
        out.push_str("  the store goes on with it; sluice status shows how far it is\n");
    }
    out
}

fn elapsed(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { format!("{}.{} s", ms / 1000, ms % 1000 / 100) }
}
