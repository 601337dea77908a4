// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store shutdown`: what becomes of the swap when the machine goes down.
//! Runs when services and sessions have ended, so their pages are gone already.
//!
//! ```text
//!   what is left fits into memory ── swapoff ──► off ──► the store ends
//!        │ no, or not in time         │ killed or refused
//!        ▼                            ▼
//!   GPUs emptied into the spill and closed ──► device nodes taken away ──► stays
//! ```
//! A swap that *stays* is served by the store until the kernel itself ends: both
//! its processes are exempt from the last kill. Without a node nobody else can
//! call swapoff(2) on it, which would end a process, or the kernel, for want of
//! memory (decision 0051).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::control_client;
use super::detach::{self, tell};
use super::headline::list;
use crate::engine::error::Kind;
use crate::engine::units::ByteLen;
use crate::engine::view::{Ended, Reply, Request, Status};
use crate::host::process::Process;
use crate::host::{handover, swap};

/// How long swapoff may take unless the caller says otherwise.
pub const WITHIN: Duration = Duration::from_secs(600);
/// How long memory is waited for that others are about to give back.
const ROOM: Duration = Duration::from_secs(10);
/// Between two looks.
const TICK: Duration = Duration::from_secs(1);
/// How long emptying the GPUs may take.
const EMPTYING: Duration = Duration::from_secs(300);
/// How long a store that holds nothing may take to end.
const TO_END: Duration = Duration::from_secs(30);

/// Switches the swap of the store on `socket` off and ends it, or leaves both in
/// order where the pages do not fit or swapoff takes longer than `within`.
///
/// Errors: the store cannot be asked. That its swap stays on is none.
pub fn run(socket: &Path, within: Duration) -> Result<()> {
    let status = match control_client::status(socket) {
        Err(error) if error.kind() == Kind::Missing => {
            tell("no store runs; there is nothing to do");
            return Ok(());
        }
        other => other?,
    };
    let devices: Vec<_> = status.devices.iter().map(|device| PathBuf::from(&device.path)).collect();
    let on = detach::still_on(&devices)?;
    if let Err(why) = bring_back(&on, Instant::now() + within) {
        tell(&format!("{why:#}"));
        return stay(socket, &status, &on);
    }
    end(status.pid)
}

/// Switches all of `on` off before `deadline`.
fn bring_back(on: &[PathBuf], deadline: Instant) -> Result<()> {
    if on.is_empty() {
        return Ok(());
    }
    let patience = Instant::now() + ROOM;
    let mut told = false;
    while let Err(no_room) = detach::fits(on) {
        if no_room.kind() != Kind::NoSpace || Instant::now() >= patience.min(deadline) {
            return Err(no_room.into());
        }
        if !told {
            tell(&format!("{no_room}; waiting {} s for memory", ROOM.as_secs()));
            told = true;
        }
        std::thread::sleep(TICK);
    }
    let child = detach::in_a_process_of_its_own(on)?;
    let left = deadline.saturating_duration_since(Instant::now());
    if !handover::wait_readable(child.as_fd(), left)? {
        child.give_up();
        bail!("{} could not be switched off in the time given", list(on));
    }
    child.wait_for_success()
}

/// Ends a store that holds nothing any more.
fn end(pid: u32) -> Result<()> {
    let store = match Process::open(pid) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        other => other.with_context(|| format!("cannot watch the store, process {pid}"))?,
    };
    match store.signal(Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(errno).context("cannot tell the store to end"),
    }
    if handover::wait_readable(store.as_fd(), TO_END)? {
        tell("the swap is off and the store has ended");
    } else {
        tell("the swap is off; the store has not ended, and holds no page");
    }
    Ok(())
}

/// Leaves swap on that cannot be switched off.
fn stay(socket: &Path, status: &Status, on: &[PathBuf]) -> Result<()> {
    if status.tiers.iter().any(|tier| tier.is_lent() && tier.held_bytes > 0) {
        empty(socket);
    }
    // Whether it was switched off meanwhile, by hand or by the last try.
    let on = detach::still_on(on)?;
    for device in &on {
        swap::node::hide(device)?;
    }
    tell(&format!(
        "{} stays on; the store serves it until the machine is off, and no page is lost before",
        list(&on)
    ));
    Ok(())
}

/// Moves what is on GPUs to the spill. What cannot be moved is served from there.
fn empty(socket: &Path) {
    let deadline_ms = u64::try_from(EMPTYING.as_millis()).ok();
    let answer =
        control_client::ask_and_look(socket, &Request::CloseGpu { deadline_ms }, TICK, |status| {
            tell(&format!("moving pages to the spill: {}", lent(status)));
        });
    tell(&match answer {
        Ok(Reply::Ended(outcome)) if outcome.outcome == Ended::Done => format!(
            "the GPUs are closed; {} of pages went to the spill",
            ByteLen(outcome.moved_bytes)
        ),
        Ok(Reply::Ended(outcome)) => format!(
            "{} of GPU memory could not be emptied in time: {}",
            ByteLen(outcome.held_bytes),
            outcome.message
        ),
        Ok(_) => "the store answered something else; its GPUs stay as they are".to_owned(),
        Err(error) => format!("{error}; the GPUs stay as they are"),
    });
}

/// How much of each GPU is held.
pub(super) fn lent(status: &Status) -> String {
    let held = |tier: &crate::engine::view::Tier| {
        format!("{} held on {}", ByteLen(tier.held_bytes), tier.name)
    };
    let lent = status.tiers.iter().filter(|tier| tier.is_lent());
    lent.map(held).collect::<Vec<_>>().join(", ")
}
