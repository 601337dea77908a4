// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-tray`: the switch in a desktop's tray.

use std::process::ExitCode;

use clap::Parser;
use sluice::cli::{self, tray_args::TrayArgs};
use sluice::tray;

fn main() -> ExitCode {
    let Err(error) = tray::run(TrayArgs::parse().span) else { return ExitCode::SUCCESS };
    let hint = error.hint().map(str::to_owned);
    eprintln!("sluice-tray: {:#}", anyhow::Error::from(error));
    if let Some(hint) = hint {
        eprintln!("  next: {hint}");
    }
    ExitCode::from(cli::FAILED)
}
