// SPDX-License-Identifier: GPL-2.0-only
//! How a failure is told: what failed, then what to do about it.

use std::process::ExitCode;

use anyhow::Result;

/// A failure with a known next step.
#[derive(Debug)]
pub struct Failure {
    message: String,
    next: String,
}

impl Failure {
    /// A failure and the command, option or path that helps.
    pub fn new(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { message: message.into(), next: next.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Turns a command's result into its exit code, showing an error.
pub fn finish(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let broken_pipe = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("sluice-policy: {error:#}");
    if let Some(failure) = error.downcast_ref::<Failure>() {
        eprintln!("  next: {}", failure.next);
    }
    ExitCode::FAILURE
}
