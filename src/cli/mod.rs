// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `sluice` command: arguments ([`args`]), the commands that need no
//! adapter, and how results and errors are shown.
//!
//! Knows the engine's data and the configuration; never a tier, a block front
//! end or the host. Commands that need those are run by `runtime`.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::config::ConfigError;
use crate::engine::error::{Error, Kind};
use crate::engine::view::{Reply, Request};

pub mod args;
pub mod bench_args;
mod configuration;
pub mod control;
pub mod control_args;
mod doctor;
mod driver;
pub mod driver_args;
mod order;
pub mod order_args;
mod pages;
mod pending;
mod policy;
pub mod reserve;
mod status;
mod tenant;
pub mod top;
#[cfg(feature = "tray")]
pub mod tray_args;

pub use args::{Cli, Command, LocalCommand};
pub use control::Ways;

/// The exit code of a failure.
pub const FAILED: u8 = 1;
/// The exit code of wrong usage or a wrong configuration file.
pub const USAGE: u8 = 2;

/// The exit code of an order that goes on after its deadline.
pub const UNFINISHED: u8 = 3;

/// How a store is asked over the socket at a path; `runtime` knows how.
pub type Ask = fn(&Path, &Request) -> Result<Reply, Error>;

/// The commands that need no adapter.
pub fn run(command: &LocalCommand, ways: &Ways) -> Result<ExitCode> {
    match command {
        LocalCommand::Status(args) => status::run(args, ways),
        LocalCommand::Vram(command) => order::vram(command, ways.ask),
        LocalCommand::Gpu(command) => order::gpu(command, ways.ask),
        LocalCommand::Doctor(args) => doctor::run(args, ways),
        LocalCommand::Driver(command) => driver::run(command),
        LocalCommand::Config(command) => configuration::run(command),
        LocalCommand::Tenant(command) => tenant::run(command, ways),
        LocalCommand::Policy { words } => policy::run(words),
        LocalCommand::Completions { shell, program } => pages::completions(*shell, program),
        LocalCommand::Man { dir } => pages::manual(dir.as_deref()),
    }
}

/// Prints to standard output. A reader that has gone away is an error like
/// any other here, and no failure to [`finish`].
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Turns a command's result into the exit code, showing an error as one
/// sentence per cause and the next step if one is known.
#[must_use]
pub fn finish(result: Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    if let Some(config) = error.downcast_ref::<ConfigError>() {
        eprint!("{}", ended(config.to_string()));
        if config.is_missing() {
            eprintln!("  next: write it, at the least size = \"4G\" under [swap]");
        }
        return ExitCode::from(USAGE);
    }
    eprintln!("sluice: {error:#}");
    let known = error.downcast_ref::<Error>();
    if let Some(hint) = known.and_then(Error::hint) {
        eprintln!("  next: {hint}");
    }
    // What the caller asked for cannot be: the same as a wrong option.
    let asked_wrong = known.is_some_and(|error| error.kind() == Kind::Invalid);
    ExitCode::from(if asked_wrong { USAGE } else { FAILED })
}

fn ended(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
