// SPDX-License-Identifier: MIT OR Apache-2.0
//! Switching swap off, in a process that does nothing else: swapoff(2) makes
//! its caller the first victim when memory runs out, so the caller must be
//! expendable. If it is killed, the device simply stays on.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::control_client;
use super::headline::list;
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;
use crate::host::{armour, detach as host, signals, swap};

/// How often progress is shown.
const TICK: Duration = Duration::from_secs(1);
/// Memory that must be left when everything on the device has come back.
const LEFT_OVER: ByteLen = ByteLen(16 << 20);

/// `sluice-store detach`: switches off the devices given, or those of the
/// store that answers on `socket`.
///
/// Refuses, with the arithmetic, what would not fit into memory and other swap
/// unless `force`.
pub fn run(devices: &[PathBuf], socket: &Path, force: bool) -> Result<()> {
    let named = if devices.is_empty() { devices_of(socket)? } else { devices.to_vec() };
    let on = still_on(&named)?;
    for device in named.iter().filter(|device| !on.contains(device)) {
        tell(&format!("{} is not swap; nothing to do", device.display()));
    }
    if on.is_empty() {
        return Ok(());
    }
    become_expendable()?;
    if !force {
        fits(&on)?;
    }
    on.iter().try_for_each(|device| off(device))
}

/// Whether all that is on `devices` fits elsewhere now.
///
/// Errors: `NoSpace` with the figures.
pub(super) fn fits(devices: &[PathBuf]) -> Result<(), Error> {
    let budget = host::budget(Path::new("/"), devices)?;
    if budget.suffices(LEFT_OVER) {
        return Ok(());
    }
    Err(Error::new(
        Kind::NoSpace,
        format!(
            "{} in use on {} do not fit into {} of available memory and {} of other swap",
            budget.used,
            list(devices),
            budget.available,
            budget.other_swap
        ),
    )
    .with_hint("end a program or add swap; --force tries all the same"))
}

/// Undoes what came along from the store: this process may be interrupted, may
/// cause I/O, and may be killed first.
fn become_expendable() -> Result<()> {
    signals::unblock();
    if let Err(error) = armour::clear_io_flusher() {
        // Only a process without the right to set the mark cannot clear it.
        tell(&format!("{error}; going on"));
    }
    Ok(armour::set_oom_score_adj(Path::new("/"), 0)?)
}

fn devices_of(socket: &Path) -> Result<Vec<PathBuf>> {
    let status = control_client::status(socket)?;
    Ok(status.devices.into_iter().map(|device| PathBuf::from(device.path)).collect())
}

fn off(device: &Path) -> Result<()> {
    // A shutdown that did not come to its end may have taken it away.
    swap::node::show(Path::new("/"), device)?;
    let total = swap::used_bytes(Path::new("/"), device)?.unwrap_or_default();
    tell(&format!("switching {} off: {total} to bring back", device.display()));
    host::swapoff_with_progress(Path::new("/"), device, TICK, |left| {
        tell(&format!("switching {} off: {left} of {total} left", device.display()));
    })?;
    tell(&format!("{} is off", device.display()));
    Ok(())
}

/// Says how far it is, on standard error and in the unit's status.
pub(super) fn tell(text: &str) {
    // A terminal that is gone is no reason to leave swap on.
    let _ = writeln!(std::io::stderr(), "{text}");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(text)]);
}

/// The child that switches devices off.
pub struct Detaching {
    child: Child,
    pidfd: OwnedFd,
}

/// Starts `sluice-store detach` for these devices.
pub fn in_a_process_of_its_own(devices: &[PathBuf]) -> Result<Detaching> {
    let mut child = Command::new("/proc/self/exe")
        .arg("detach")
        .args(devices)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start the process that switches swap off")?;
    match watch(&child) {
        Ok(pidfd) => Ok(Detaching { child, pidfd }),
        Err(error) => {
            // A child that nobody waits for would run beside the next one.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn watch(child: &Child) -> Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid of 0")?;
    pidfd_open(pid, PidfdFlags::empty()).context("cannot watch the process that detaches")
}

impl Detaching {
    /// Waits for the end; an error says how it ended.
    pub fn wait_for_success(mut self) -> Result<()> {
        let status = self.child.wait().context("cannot wait for the process that detaches")?;
        if !status.success() {
            bail!("swap was not switched off ({status}); the device stays on");
        }
        Ok(())
    }

    /// Has it give up: what it has not brought back stays where it is.
    pub fn give_up(mut self) {
        // KILL ends a swapoff(2) between two pages, and cannot be missed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl AsFd for Detaching {
    /// Readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Those of `devices` that the kernel still swaps to.
pub fn still_on(devices: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let entries = swap::entries(Path::new("/"))?;
    Ok(devices.iter().filter(|d| entries.iter().any(|e| e.path == **d)).cloned().collect())
}
