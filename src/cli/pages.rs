// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion scripts and manual pages, made from the argument definitions.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Cli;

pub(super) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
    super::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn manual(dir: Option<&Path>) -> Result<ExitCode> {
    let mut command = Cli::command();
    if let Some(dir) = dir {
        clap_mangen::generate_to(command, dir)
            .with_context(|| format!("cannot write the manual pages into {}", dir.display()))?;
    } else {
        command.build();
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        super::print(&String::from_utf8(page)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
