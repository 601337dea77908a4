// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only layer that sees all others: it wires and runs the programs.

pub mod assembly;
mod attach;
#[cfg(feature = "cli")]
pub mod bench;
mod capacity;
mod choice;
mod control;
mod control_client;
#[cfg(feature = "bus")]
pub mod control_plane;
#[cfg(feature = "cli")]
pub mod demo;
pub mod detach;
mod devices;
mod hand_over;
mod headline;
pub mod holder;
mod io_thread;
mod keeper;
pub mod logging;
#[cfg(feature = "malloc-guard")]
pub mod malloc_guard;
mod orders;
pub mod serve;
pub mod shutdown;
pub mod sleep;
#[cfg(feature = "cli")]
pub mod spill;
pub mod start;
mod status;
mod store_process;
#[cfg(feature = "cli")]
pub mod top;
mod watchdog;

pub use choice::vulkan_gpus;
pub use control::DEFAULT_SOCKET;
pub use control_client::ask;

use std::process::ExitCode;

use sd_notify::NotifyState;

use crate::engine::error::Error;

/// Tells systemd, where it waits for this process, that it is ready and how it stands.
pub fn ready(status: &str) {
    // Without systemd nobody waits.
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Shows how a program's work ended, with the next step if one is known, and
/// turns it into the exit code.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let hint = error.chain().find_map(|cause| cause.downcast_ref::<Error>()?.hint());
    // Not by the log: the journal files a message under its unit by looking at
    // the sender, which is about to end. Standard error is filed when it is opened.
    let mark = if logging::stderr_is_the_journal() { "<3>" } else { "" };
    eprintln!("{mark}sluice-store: {error:#}");
    if let Some(hint) = hint {
        eprintln!("{mark}  next: {hint}");
    }
    ExitCode::FAILURE
}
