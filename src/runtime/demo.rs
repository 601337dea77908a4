// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice demo`.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::args::DemoArgs;

/// Shows the store at work.
pub fn run(_args: &DemoArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
