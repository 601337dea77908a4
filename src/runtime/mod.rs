// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only layer that sees all others: it wires and runs the programs.

pub mod assembly;
mod attach;
#[cfg(feature = "cli")]
pub mod bench;
mod control;
#[cfg(feature = "cli")]
pub mod demo;
pub mod detach;
mod devices;
mod io_thread;
mod keeper;
pub mod logging;
#[cfg(feature = "malloc-guard")]
pub mod malloc_guard;
pub mod serve;
mod status;
pub mod store_process;
mod watchdog;

pub use control::DEFAULT_SOCKET;

use std::process::ExitCode;

use crate::engine::error::Error;

/// Shows how a program's work ended, with the next step if one is known, and
/// turns it into the exit code.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let hint = error.chain().find_map(|cause| cause.downcast_ref::<Error>()?.hint());
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
        if let Some(hint) = hint {
            tracing::error!("next: {hint}");
        }
    } else {
        eprintln!("sluice-store: {error:#}");
        if let Some(hint) = hint {
            eprintln!("  next: {hint}");
        }
    }
    ExitCode::FAILURE
}
