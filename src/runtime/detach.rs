// SPDX-License-Identifier: MIT OR Apache-2.0
//! Switching swap off, in a process that does nothing else: swapoff(2) makes
//! its caller the first victim when memory runs out, so the caller must be
//! expendable. If it is killed, the device simply stays on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::control;
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;
use crate::engine::view::Request;
use crate::host::{armour, detach as host, swap};

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
    armour::clear_io_flusher()?;
    // The parent's -1000 came along; this process is the expendable one.
    armour::set_oom_score_adj(Path::new("/"), 0)?;
    let devices = if devices.is_empty() { devices_of(socket)? } else { devices.to_vec() };
    for device in &devices {
        off(device, force)?;
    }
    Ok(())
}

fn devices_of(socket: &Path) -> Result<Vec<PathBuf>> {
    let status = control::ask(socket, &Request::Status {})?;
    Ok(status.devices.into_iter().map(|device| PathBuf::from(device.path)).collect())
}

fn off(device: &Path, force: bool) -> Result<()> {
    let Some(budget) = host::budget(Path::new("/"), device)? else {
        return Ok(());
    };
    if !force && !budget.suffices(LEFT_OVER) {
        return Err(Error::new(
            Kind::NoSpace,
            format!(
                "{}: {} in use do not fit into {} of available memory and {} of other swap",
                device.display(),
                budget.used,
                budget.available,
                budget.other_swap
            ),
        )
        .with_hint("end a program or add swap; --force tries all the same")
        .into());
    }
    let total = budget.used;
    tell(&format!("switching {} off: {total} to bring back", device.display()));
    host::swapoff_with_progress(Path::new("/"), device, TICK, |left| {
        tell(&format!("switching {} off: {left} of {total} left", device.display()));
    })?;
    tell(&format!("{} is off", device.display()));
    Ok(())
}

fn tell(text: &str) {
    eprintln!("{text}");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(text)]);
}

/// The child that switches devices off.
pub struct Detaching {
    child: Child,
    pidfd: OwnedFd,
}

/// Starts `sluice-store detach` for these devices.
pub fn in_a_process_of_its_own(devices: &[PathBuf]) -> Result<Detaching> {
    let child = Command::new("/proc/self/exe")
        .arg("detach")
        .args(devices)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start the process that switches swap off")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid of 0")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch that process")?;
    Ok(Detaching { child, pidfd })
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
