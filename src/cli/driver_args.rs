// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `sluice driver`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `sluice driver`.
#[derive(Debug, Subcommand)]
pub enum DriverCommand {
    /// Say who holds NVIDIA's driver, whether its parts fit together, and how to get back
    #[command(after_help = "\
Examples:
  sluice driver check
  sluice driver check --json | jq -r '.users[] | \"\\(.pid) \\(.name)\"'
  sudo sluice driver check            sees the processes of others too

Before a module of the driver is exchanged for the patched one, and before the way back: which
modules are loaded and what refers to them, which processes have /dev/nvidia* open, whether
libcuda and libnvidia-ml are of the loaded module's release, whether nvidia-uvm asks policies,
and what to do to load another one. Only files are read; nothing is loaded, unloaded or ended.
It exits with 1 if no driver is loaded, or if user space is of another release.")]
    Check(DriverCheckArgs),
}

/// `sluice driver check`.
#[derive(Args, Clone, Debug)]
pub struct DriverCheckArgs {
    /// Print facts and findings as JSON
    #[arg(long)]
    pub json: bool,
    /// Look at this tree instead of the running system
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
}
