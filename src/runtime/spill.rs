// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice spill`: make a spill file, or say what is wrong with a space.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cli::order_args::SpillCommand;
use crate::engine::units::ByteLen;
use crate::tier::spill::{self, Finding};

/// Between two lines of progress.
const TICK: Duration = Duration::from_millis(250);

/// Runs the command; the exit code of `check` is 1 for a space that cannot be
/// a spill.
pub fn run(command: &SpillCommand) -> Result<ExitCode> {
    match command {
        SpillCommand::Create { path, size, progress } => {
            let terminal = std::io::stderr().is_terminal();
            let mut shown = Instant::now();
            let mut tell = |done: ByteLen, all: ByteLen| {
                let last = done == all;
                if (terminal || *progress) && (last || shown.elapsed() >= TICK) {
                    shown = Instant::now();
                    show_progress(done, all, terminal);
                }
            };
            let bytes = spill::create(path, *size, &mut tell)?;
            crate::cli::print(&format!(
                "{}: {bytes}, written in full, for {size} of swap\n\
                 next, in /etc/sluice/sluice.toml:\n  [spill]\n  path = {:?}\n",
                path.display(),
                std::path::absolute(path)?.display().to_string()
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        SpillCommand::Check { path, size } => {
            let findings = spill::check(path, *size);
            let fit = findings.iter().all(|finding| finding.result.is_ok());
            let text: String = findings.iter().map(render).collect();
            let verdict = if fit { "can be a spill" } else { "CANNOT be a spill" };
            crate::cli::print(&format!("{text}{} {verdict}\n", path.display()))?;
            Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Progress is for a person; one that is gone is no reason to fail.
fn show_progress(done: ByteLen, all: ByteLen, terminal: bool) {
    let mut err = std::io::stderr().lock();
    let end = if terminal && done != all { "" } else { "\n" };
    let start = if terminal { "\r\x1b[K" } else { "" };
    let _ = write!(err, "{start}{done} of {all} written{end}");
    let _ = err.flush();
}

fn render(finding: &Finding) -> String {
    match &finding.result {
        Ok(fact) => format!("ok  {:13}{fact}\n", finding.about),
        Err(error) => {
            let cause = std::error::Error::source(error);
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            let next = error.hint().map(|hint| format!("      next: {hint}\n")).unwrap_or_default();
            format!("NO  {:13}{error}{cause}\n{next}", finding.about)
        }
    }
}
