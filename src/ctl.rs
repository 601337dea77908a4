// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice`: the command-line client.

use std::process::ExitCode;

use clap::Parser;
use sluice::cli::{self, Cli, Command, Ways};
use sluice::runtime;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    cli::finish(match command {
        Command::Serve(args) => {
            let held = args.held;
            runtime::serve::run(&args.into(), held).map(|()| ExitCode::SUCCESS)
        }
        Command::Bench(args) => runtime::bench::run(&args),
        Command::Demo(args) => runtime::demo::run(&args),
        Command::Spill(command) => runtime::spill::run(&command),
        Command::Control(command) => cli::control::run(&command, &ways()),
        Command::Top(args) => runtime::top::run(&args, ways()),
        Command::Local(command) => cli::run(&command, &ways()),
    })
}

#[cfg(feature = "bus")]
fn ways() -> Ways {
    use sluice::runtime::control_plane::client;
    Ways {
        ask: runtime::ask,
        vulkan_gpus: runtime::vulkan_gpus,
        control: client::ask,
        settings: client::settings,
        reserve: client::reserve,
        ready: runtime::ready,
    }
}

#[cfg(not(feature = "bus"))]
fn ways() -> Ways {
    Ways {
        ask: runtime::ask,
        vulkan_gpus: runtime::vulkan_gpus,
        control: |_| Err(cli::control::not_built()),
        settings: || Err(cli::control::not_built()),
        reserve: |_, _| Err(cli::control::not_built()),
        ready: runtime::ready,
    }
}
