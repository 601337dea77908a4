// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice driver check`: whether a module of NVIDIA's driver can be exchanged for
//! another now, and whether what is loaded fits together.
//!
//! [`machine`] and `crate::driver` read files and conclude nothing; [`findings`]
//! concludes and reads nothing. Nothing is loaded, unloaded or ended here.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::doctor::{Finding, Verdict, lines};
use super::driver_args::{DriverCheckArgs, DriverCommand};
use crate::driver::Facts;
use machine::{Library, Users};

mod findings;
mod machine;

/// Everything that was read.
#[derive(Serialize)]
struct Machine {
    #[serde(flatten)]
    driver: Facts,
    libraries: Vec<Library>,
    #[serde(flatten)]
    users: Users,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    findings: &'a [Finding],
}

impl Machine {
    fn read(root: &Path) -> Self {
        Self {
            driver: Facts::read(root),
            libraries: machine::libraries(root),
            users: Users::read(root),
        }
    }
}

pub(super) fn run(command: &DriverCommand) -> Result<ExitCode> {
    match command {
        DriverCommand::Check(args) => check(args),
    }
}

fn check(args: &DriverCheckArgs) -> Result<ExitCode> {
    let machine = Machine::read(&args.root);
    let findings = findings::conclude(&machine);
    let text = if args.json {
        let answer = Answer { machine: &machine, findings: &findings };
        serde_json::to_string_pretty(&answer)? + "\n"
    } else {
        lines(&findings)
    };
    super::print(&text)?;
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::No);
    Ok(if fails { ExitCode::from(super::FAILED) } else { ExitCode::SUCCESS })
}
