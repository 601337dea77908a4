// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice on`, `off`, `suspend`, `resume`, `target` and `explain`: ask the
//! control plane and show what came of it. Where none runs, the store itself is
//! asked, and systemd for its unit.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command as Program, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::control_args::{ControlCommand, TargetSize, WaitArgs};
use super::{Ask, FAILED, UNFINISHED, order, reserve};
use crate::config::in_force::Settings;
use crate::engine::arbiter::Explanation;
use crate::engine::error::{Error, Kind};
use crate::engine::gpu::Offer;
use crate::engine::units::ByteLen;
use crate::engine::view::{ControlReply, ControlRequest, ControlState, Request};

/// Between two looks at how far it is.
const TICK: Duration = Duration::from_millis(250);
/// The store's unit, for where no control plane runs.
const UNIT: &str = "sluice-store.service";

/// How the control plane is asked; `runtime` knows how.
pub type AskControl = fn(&ControlRequest) -> Result<ControlReply, Error>;

/// The ways to the store, to the control plane and to the GPUs' drivers.
#[derive(Clone, Copy)]
pub struct Ways {
    /// To the store.
    pub ask: Ask,
    /// To what Vulkan's drivers offer; wakes GPUs.
    pub vulkan_gpus: fn() -> Result<Vec<Offer>, Error>,
    /// To the control plane.
    pub control: AskControl,
    /// To what the control plane goes by, without starting it; `Missing`: it does not
    /// run.
    pub settings: fn() -> Result<Settings, Error>,
    /// To a lease.
    pub reserve: reserve::Take,
    /// To systemd, where it waits for this process: it is ready, and how it stands.
    pub ready: fn(&str),
}

/// What a program without the feature `bus` says instead.
#[must_use]
pub fn not_built() -> Error {
    Error::new(Kind::Missing, "this sluice is built without the bus, and cannot ask sluiced")
}

/// Runs a command of the control plane.
pub fn run(command: &ControlCommand, ways: &Ways) -> Result<ExitCode> {
    let (request, wait) = match command {
        ControlCommand::On { wait } => (ControlRequest::Enable, wait),
        ControlCommand::Off { wait } => (ControlRequest::Disable, wait),
        ControlCommand::Suspend { wait } => (ControlRequest::Suspend, wait),
        ControlCommand::Resume { wait } => (ControlRequest::Resume, wait),
        ControlCommand::Target { size, wait } => {
            let bytes = match size {
                TargetSize::Default => None,
                TargetSize::AtMost(bytes) => Some(bytes.0),
            };
            (ControlRequest::SetTarget(bytes), wait)
        }
        ControlCommand::Explain { json } => return explain(ways, *json),
        ControlCommand::Reserve { size, within, json, socket, command } => {
            let asked = reserve::Asked { size: *size, within: *within, json: *json, socket };
            return Ok(reserve::run(&asked, command, ways));
        }
    };
    match (ways.control)(&request) {
        Ok(_) => follow(ways, wait),
        Err(error) if error.kind() == Kind::Missing => without_control(&request, wait, ways, error),
        Err(error) => Err(error.into()),
    }
}

/// How the control plane is.
pub(super) fn state(ways: &Ways) -> Result<ControlState, Error> {
    match (ways.control)(&ControlRequest::State)? {
        ControlReply::State(state) => Ok(*state),
        _ => Err(Error::new(Kind::Protocol, "sluiced answered something else")),
    }
}

/// Waits until it is done, has failed, or takes too long.
fn follow(ways: &Ways, wait: &WaitArgs) -> Result<ExitCode> {
    let until = Instant::now() + wait.within;
    let mut shown = order::Shown::new(wait.progress);
    let state = loop {
        let state = state(ways)?;
        let is_over = matches!(state.progress.as_str(), "settled" | "failed" | "down");
        if is_over || Instant::now() >= until {
            break state;
        }
        shown.show(&format!(
            "{}: {} held, target {}",
            state.progress,
            ByteLen(state.held_bytes),
            ByteLen(state.target_bytes)
        ));
        std::thread::sleep(TICK);
    };
    shown.end();
    let text =
        if wait.json { serde_json::to_string_pretty(&state)? + "\n" } else { render(&state) };
    super::print(&text)?;
    Ok(match state.progress.as_str() {
        "settled" => ExitCode::SUCCESS,
        "failed" | "down" => ExitCode::from(FAILED),
        _ => ExitCode::from(UNFINISHED),
    })
}

fn render(state: &ControlState) -> String {
    let mut out = format!("{}\n", state.sentence);
    if state.running {
        let (held, target) = (ByteLen(state.held_bytes), ByteLen(state.target_bytes));
        let _ = writeln!(out, "  {held} held, {target} allowed of {}", ByteLen(state.full_bytes));
    } else {
        out.push_str("  no store runs\n");
    }
    if !state.is_settled() {
        let _ = write!(out, "  {}", state.progress);
        let _ =
            writeln!(out, "{}{}", if state.detail.is_empty() { "" } else { ": " }, state.detail);
    }
    out
}

fn explain(ways: &Ways, json: bool) -> Result<ExitCode> {
    let ControlReply::Explanation(said) = (ways.control)(&ControlRequest::Explain)? else {
        return Err(Error::new(Kind::Protocol, "sluiced answered something else").into());
    };
    let text = if json { serde_json::to_string_pretty(&*said)? + "\n" } else { spell(&said) };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn spell(said: &Explanation) -> String {
    let mut out = format!("{}\n", said.sentence);
    let detail = if said.detail.is_empty() { String::new() } else { format!(": {}", said.detail) };
    let _ = writeln!(out, "  rule       {}", said.rule.name());
    let _ = writeln!(out, "  progress   {}{detail}", said.progress);
    let _ = writeln!(out, "  last       {}", said.last_event);
    out.push_str("\nWhat the rules look at:\n");
    let width = said.inputs.iter().map(|input| input.name.len()).max().unwrap_or_default();
    for input in &said.inputs {
        let _ = writeln!(out, "  {:width$}  {}", input.name, input.value);
    }
    out
}

/// Without a control plane nobody keeps what was asked for: it is done once.
fn without_control(
    request: &ControlRequest,
    wait: &WaitArgs,
    ways: &Ways,
    missing: Error,
) -> Result<ExitCode> {
    eprintln!("sluice: {missing}; asking the store itself, nobody keeps it so");
    let deadline_ms = u64::try_from(wait.within.as_millis()).ok();
    let order = match request {
        ControlRequest::Disable => return systemctl("stop", wait),
        ControlRequest::Enable if (ways.ask)(&wait.socket, &Request::Status {}).is_err() => {
            return systemctl("start", wait);
        }
        ControlRequest::Enable | ControlRequest::Resume | ControlRequest::SetTarget(None) => {
            Request::Resume { deadline_ms }
        }
        ControlRequest::Suspend => Request::CloseGpu { deadline_ms },
        ControlRequest::SetTarget(Some(bytes)) => {
            Request::Target { bytes: *bytes, tier: None, deadline_ms }
        }
        ControlRequest::Explain | ControlRequest::State => return Err(missing.into()),
    };
    order::give(&order, &wait.socket, wait.progress, wait.json, ways.ask)
}

fn systemctl(verb: &str, wait: &WaitArgs) -> Result<ExitCode> {
    let ran = Program::new("systemctl").args([verb, UNIT]).stdin(Stdio::null()).status();
    let failed = |why: String| {
        Error::new(Kind::Io, format!("systemctl {verb} {UNIT}: {why}"))
            .with_hint(format!("as root, and: systemctl status {UNIT}"))
    };
    let status = ran.map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(status.to_string()).into());
    }
    super::print(&if wait.json {
        format!("{{\n  \"unit\": \"{UNIT}\",\n  \"job\": \"{verb}\"\n}}\n")
    } else {
        format!("{UNIT}: {verb} is done\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The store's target lowered by so much, and what undoes it; for a lease where
/// no control plane runs.
pub(super) fn lower_by(
    bytes: ByteLen,
    socket: &Path,
    within: Duration,
    ask: Ask,
) -> Result<Request, Error> {
    use crate::engine::view::{Ended, Reply};
    let Reply::Status(status) = ask(socket, &Request::Status {})? else {
        return Err(Error::new(Kind::Protocol, "the store answered something else"));
    };
    let fast = || status.tiers.iter().filter(|tier| tier.kind == "fast");
    let before: u64 = fast().map(|tier| tier.target_bytes).sum();
    let Some(target) = before.checked_sub(bytes.0) else {
        let what = format!("{bytes} cannot be reserved: the store may hold {}", ByteLen(before));
        return Err(Error::new(Kind::NoSpace, what).with_hint("ask for less"));
    };
    let deadline_ms = u64::try_from(within.as_millis()).ok();
    let undo = Request::Target { bytes: before, tier: None, deadline_ms: Some(0) };
    match ask(socket, &Request::Target { bytes: target, tier: None, deadline_ms })? {
        Reply::Ended(outcome) if outcome.outcome == Ended::Done => Ok(undo),
        _ => {
            // Taken back, so that nothing stays half done.
            ask(socket, &undo)?;
            Err(Error::new(Kind::TimedOut, format!("{bytes} are not given back in time"))
                .with_hint("allow more time: --within 5m"))
        }
    }
}
