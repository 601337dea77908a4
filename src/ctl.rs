// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice`: the command-line client.

use std::process::ExitCode;

use clap::Parser;
use sluice::cli::{self, Cli, Command};
use sluice::runtime;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    cli::finish(match command {
        Command::Serve(args) => runtime::serve::run(&args.into()).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => runtime::bench::run(&args),
        Command::Demo(args) => runtime::demo::run(&args),
        Command::Local(command) => cli::run(&command),
    })
}
