// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice policy`: hands over to `sluice-policy`, the one program that knows
//! BPF, so that nothing else is linked with it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};

const PROGRAM: &str = "sluice-policy";

/// Becomes `sluice-policy`; returns only if that is not possible.
pub fn run(words: &[OsString]) -> Result<ExitCode> {
    Err(failure(&become_program(std::env::current_exe().ok().as_deref(), words)))
}

/// The program beside this one is of this build; else the one in the path.
fn become_program(own: Option<&Path>, words: &[OsString]) -> io::Error {
    if let Some(beside) = own.map(|own| own.with_file_name(PROGRAM)) {
        let error = Command::new(beside).args(words).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return error;
        }
    }
    Command::new(PROGRAM).args(words).exec()
}

fn failure(error: &io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return anyhow!(
            "there is no program {PROGRAM}, beside sluice or in PATH\n  \
             next: install it: cargo build -p {PROGRAM}, see docs/how-to/use-policies.md"
        );
    }
    anyhow!("cannot run {PROGRAM}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_next_step() {
        let text = failure(&io::Error::from(io::ErrorKind::NotFound)).to_string();
        assert!(text.contains("no program sluice-policy") && text.contains("next: "), "{text}");
    }
}
