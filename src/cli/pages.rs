// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion scripts and manual pages, made from the argument definitions.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::args::Cli;

/// The programs that have pages and completions; those of the services have neither.
#[cfg(feature = "tray")]
pub(super) const PROGRAMS: [&str; 2] = ["sluice", "sluice-tray"];
/// The same without the tray.
#[cfg(not(feature = "tray"))]
pub(super) const PROGRAMS: [&str; 1] = ["sluice"];

fn command(program: &str) -> Command {
    match program {
        #[cfg(feature = "tray")]
        "sluice-tray" => super::tray_args::TrayArgs::command(),
        _ => Cli::command(),
    }
}

pub(super) fn completions(shell: Shell, program: &str) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(program), program, &mut script);
    super::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn manual(dir: Option<&Path>) -> Result<ExitCode> {
    if let Some(dir) = dir {
        for program in PROGRAMS {
            clap_mangen::generate_to(command(program), dir)
                .with_context(|| format!("cannot write the manual pages into {}", dir.display()))?;
        }
    } else {
        let mut command = Cli::command();
        command.build();
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        super::print(&String::from_utf8(page)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
