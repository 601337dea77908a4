// SPDX-License-Identifier: GPL-2.0-only
//! `sluice-policy`: loads GPU policies into the kernel, replaces and removes
//! them, and shows what came of them. `sluice policy` runs it.
//!
//! A policy that is loaded is a pinned BPF link (see [`pins`]): it stays when
//! this program ends, however it ends. With `--hold` nothing is pinned, and the
//! kernel removes the policy as soon as this process is gone.

mod apply;
mod args;
mod baseline;
mod commands;
mod compile;
mod configured;
mod failure;
mod links;
mod netlink;
mod object;
mod pins;
mod render;
mod trace;
mod trace_memory;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    failure::finish(commands::run(args::Cli::parse().command))
}
