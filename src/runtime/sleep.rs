// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store sleep`, `freeze`, `thaw` and `wake`: what must be done before a
//! machine sleeps and after.
//!
//! ```text
//!   awake ── sleep: GPUs emptied and closed ──► drained ── freeze: all who may
//!     ▲            │ refused or late: undone        │       wait for a page stop
//!     │◄───────────┘                                ▼
//!     └── wake: memory as before ◄── thaw ◄── still ──► (the kernel suspends)
//! ```
//! Each step notes what it will change before it changes it, so that its undo
//! works after any failure, a kill of this process included. The undo of a step
//! that was never done does nothing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::control_client;
use super::detach::tell;
use super::shutdown::lent;
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;
use crate::engine::view::{Ended, Reply, Request, Status};
use crate::host::freezer::{self, Group};

/// How long emptying the GPUs may take unless the caller says otherwise.
pub const WITHIN: Duration = Duration::from_secs(600);
/// How long a group may take to stop unless the caller says otherwise.
pub const FREEZING: Duration = Duration::from_secs(20);
/// How long a store may be too busy to hear that the machine is awake.
const WAKING: Duration = Duration::from_secs(120);
/// Between two looks at how far it is.
const TICK: Duration = Duration::from_secs(1);
/// PID 1 starts what is to run while others are stopped.
const INIT: u32 = 1;

/// What was there before, in files beside the control socket.
struct Notes(PathBuf);

impl Notes {
    /// How much fast memory the store might hold, before it was told to hold none.
    fn asleep(socket: &Path) -> Self {
        Self(socket.with_extension("asleep"))
    }

    /// The groups that were stopped, one a line.
    fn frozen(socket: &Path) -> Self {
        Self(socket.with_extension("frozen"))
    }

    fn read(&self) -> Result<Option<String>> {
        match fs::read_to_string(&self.0) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.0.display())),
        }
    }

    fn write(&self, text: &str) -> Result<()> {
        fs::write(&self.0, text).with_context(|| format!("cannot write {}", self.0.display()))
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }
}

/// `sluice-store sleep`: no page is on a GPU and no GPU is open when this
/// returns. Memory of the machine keeps what it has while it sleeps.
///
/// Errors: there is no spill, it did not end `within` that time, or a GPU is
/// still open. Then everything is as before, and the machine must not sleep.
pub fn sleep(socket: &Path, within: Duration) -> Result<()> {
    let status = control_client::status(socket)?;
    let lent_tiers = || status.tiers.iter().filter(|tier| tier.is_lent());
    if !lent_tiers().any(|tier| tier.open || tier.held_bytes > 0) {
        tell("no GPU is open; nothing to do before sleep");
        return Ok(());
    }
    let notes = Notes::asleep(socket);
    if notes.read()?.is_none() {
        notes.write(&targets(&status).to_string())?;
    }
    tell(&format!("emptying the GPUs before sleep: {}", lent(&status)));
    close(socket, within).inspect_err(|_| {
        if let Err(error) = wake(socket) {
            tell(&format!("{error:#}; sluice vram resume has the GPUs used again"));
        }
    })
}

/// Bytes that the fast tiers may hold, all together.
fn targets(status: &Status) -> u64 {
    status.tiers.iter().filter(|tier| tier.kind == "fast").map(|tier| tier.target_bytes).sum()
}

fn close(socket: &Path, within: Duration) -> Result<()> {
    let deadline_ms = u64::try_from(within.as_millis()).ok();
    let request = Request::CloseGpu { deadline_ms };
    let answer = control_client::ask_and_look(socket, &request, TICK, |status| {
        tell(&format!("emptying the GPUs before sleep: {}", lent(status)));
    })
    .context("the GPUs cannot be emptied, so this machine must not sleep now")?;
    let Reply::Ended(outcome) = answer else {
        return Err(Error::new(Kind::Protocol, "the store answered something else").into());
    };
    if outcome.outcome != Ended::Done {
        return Err(Error::new(
            Kind::TimedOut,
            format!(
                "{} with {} written pages are still on GPUs after {} s, so this machine must not sleep now. {}",
                ByteLen(outcome.held_bytes),
                outcome.left_pages,
                within.as_secs(),
                outcome.message
            ),
        )
        .with_hint("sluice status says more; a faster spill or a longer --within helps")
        .into());
    }
    let after = control_client::status(socket)?;
    if let Some(tier) =
        after.tiers.iter().find(|tier| tier.is_lent() && (tier.open || tier.held_bytes > 0))
    {
        return Err(Error::new(
            Kind::Busy,
            format!("{} is still open, so this machine must not sleep now", tier.name),
        )
        .with_hint("journalctl -u sluice-store says why")
        .into());
    }
    tell(&format!(
        "the GPUs are closed; {} of pages went to the spill in {} ms",
        ByteLen(outcome.moved_bytes),
        outcome.elapsed_ms
    ));
    Ok(())
}

/// `sluice-store wake`: the undo of [`sleep`]; GPUs are used as before. Does not
/// wait for their memory.
pub fn wake(socket: &Path) -> Result<()> {
    let notes = Notes::asleep(socket);
    let Some(text) = notes.read()? else { return Ok(()) };
    let bytes = text.parse().with_context(|| format!("{} is {text:?}", notes.0.display()))?;
    let request = Request::Target { bytes, tier: None, deadline_ms: Some(0) };
    let until = Instant::now() + WAKING;
    loop {
        match control_client::ask(socket, &request) {
            // Everybody goes on at once; the store's main thread has to wait its turn.
            Err(error) if error.kind() == Kind::TimedOut && Instant::now() < until => {}
            other => {
                other?;
                break;
            }
        }
    }
    notes.remove()?;
    tell(&format!("awake: up to {} of GPU memory are used again", ByteLen(bytes)));
    Ok(())
}

/// `sluice-store freeze`: everybody stops who might wait for a page, but for
/// PID 1, this process, the store and the groups called by one of `spared`.
///
/// Errors: somebody does not stop. Then nobody is stopped.
pub fn freeze(socket: &Path, spared: &[String], patience: Duration) -> Result<()> {
    let root = Path::new("/");
    let store = control_client::status(socket)?.pid;
    let own = [INIT, std::process::id(), store].map(|pid| Group::of(root, pid));
    let own = own.into_iter().collect::<Result<Vec<_>, _>>()?;
    let groups = freezer::groups_but(root, &own, spared)?;
    let lines: Vec<_> = groups.iter().map(Group::to_string).collect();
    Notes::frozen(socket).write(&lines.join("\n"))?;
    stop(root, &groups, patience).inspect_err(|_| {
        if let Err(error) = thaw(socket) {
            tell(&format!("{error:#}"));
        }
    })?;
    tell(&format!("{} control groups are stopped", groups.len()));
    Ok(())
}

/// Stops users' programs first, then services: the first may wait for the others.
fn stop(root: &Path, groups: &[Group], patience: Duration) -> Result<()> {
    let services = groups.partition_point(|group| !group.path().starts_with("system.slice"));
    let (users, services) = groups.split_at(services);
    for groups in [users, services] {
        for group in groups {
            group.set(root, true)?;
        }
        freezer::wait_until_frozen(root, groups, patience)?;
    }
    Ok(())
}

/// `sluice-store thaw`: the undo of [`freeze`].
///
/// Errors: a group cannot be continued; all others are.
pub fn thaw(socket: &Path) -> Result<()> {
    let notes = Notes::frozen(socket);
    let Some(text) = notes.read()? else { return Ok(()) };
    let mut failed = None;
    // Services first: whoever continues may need them at once.
    for line in text.lines().rev() {
        let group = Group::parse(line);
        let group = group.with_context(|| format!("{}: {line:?}", notes.0.display()));
        if let Err(error) = group.and_then(|group| Ok(group.set(Path::new("/"), false)?)) {
            tell(&format!("{error:#}"));
            failed = Some(error);
        }
    }
    match failed {
        None => notes.remove(),
        Some(error) => Err(error),
    }
}
