// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that ask the control plane.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::args::CONTROL_SOCKET;
use super::order_args::parse_time;
use crate::config::DEFAULT_PATH;
use crate::engine::units::ByteLen;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused or failed; sluice explain says why
  2  wrong usage
  3  not done within the time given; it goes on";

fn help(examples: &str) -> String {
    format!("Examples:\n{examples}\n\n{EXIT_CODES}")
}

/// How to ask and what to show.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// How long to wait for the end: a whole number and ms, s or m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub within: Duration,
    /// Print the state that it came to as JSON
    #[arg(long)]
    pub json: bool,
    /// Show how far it is, also where standard error is no terminal
    #[arg(long)]
    pub progress: bool,
    /// The store's control socket, for where sluiced does not run
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    pub socket: PathBuf,
}

/// The commands that ask the control plane.
#[derive(Debug, Subcommand)]
pub enum ControlCommand {
    /// Switch on: start the store if it does not run, and end `off` and `suspend`
    #[command(after_help = help("  sluice on

On battery and while others need the GPU it may hold less than is configured;
`sluice explain` says so."))]
    On {
        /// How to ask
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Switch off: no swap, no GPU memory, until `sluice on`
    #[command(after_help = help("  sluice off
  sluice off --within 5m --progress

Every page comes back to memory first; where they do not fit it is refused or
takes until they do. Nothing but `sluice on` ends it, also over a restart of the
machine."))]
    Off {
        /// How to ask
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Give all GPU memory back and close the GPU; swap stays on
    #[command(after_help = help("  sluice suspend && start-a-game; sluice resume

Without a spill the swap is switched off. `sluice resume` or `sluice on` ends it."))]
    Suspend {
        /// How to ask
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Lend GPU memory again after `suspend`
    #[command(after_help = help("  sluice resume"))]
    Resume {
        /// How to ask
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Set the most GPU memory to hold, until it is set again
    #[command(after_help = help("  sluice target 4G
  sluice target default          as configured"))]
    Target {
        /// Bytes of GPU memory, e.g. 4G, or `default`
        #[arg(value_name = "SIZE", value_parser = parse_target)]
        size: TargetSize,
        /// How to ask
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Have the store hold so much less while a command runs
    #[command(after_help = "\
Examples:
  sluice reserve 6G -- ollama serve
  sluice reserve 2G --within 10s -- blender
  sluice reserve all -- sleep 1h

The command starts when the memory is given back, and the store may have it
again when the command ends. If sluiced is started anew meanwhile, it is reserved again.

Exit codes:
  the command's own; 128 and the signal's number if a signal ended it
  125  nothing was reserved: refused, no spill, or not in time
  126  the command cannot be run
  127  there is no such command")]
    Reserve {
        /// Bytes of GPU memory, e.g. 6G, or `all` that is not reserved yet
        #[arg(value_parser = parse_reserved)]
        size: ReservedSize,
        /// How long to wait for it: a whole number and ms, s or m
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
        within: Duration,
        /// Print what was reserved as JSON on standard error
        #[arg(long)]
        json: bool,
        /// The store's control socket, for where sluiced does not run
        #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
        socket: PathBuf,
        /// The command
        #[arg(required = true, last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Say why the store holds what it holds
    #[command(after_help = "\
Examples:
  sluice explain
  sluice explain --json | jq -r .rule")]
    Explain {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

/// `sluice tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Show each tenant: its service, its floor, and whether that is kept
    #[command(after_help = "\
Examples:
  sluice tenant list
  sluice tenant list --json | jq '.[] | select(.waits == false) | .unit'

WAITS: the service starts only once its floor is free. HELD: the store leaves it free now.")]
    List {
        /// Which file
        #[command(flatten)]
        place: TenantPlace,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print what makes a tenant's service wait for its floor, for systemd
    #[command(after_help = "\
Examples:
  mkdir -p /etc/systemd/system/ollama.service.d
  sluice tenant unit ollama >/etc/systemd/system/ollama.service.d/50-sluice.conf
  systemctl daemon-reload

On NixOS services.sluice.tenants does that.")]
    Unit {
        /// The tenant
        #[arg(value_name = "TENANT")]
        name: String,
        /// Which file
        #[command(flatten)]
        place: TenantPlace,
    },
    /// Have the store leave a tenant its floor until this command is stopped
    #[command(after_help = "\
Examples:
  systemctl start sluice-reserve@ollama     what runs this, and a service waits for
  sluice tenant hold ollama

It tells systemd when the floor is free. If sluiced is started anew meanwhile, it is
reserved again.

Exit codes:
  1  nothing was reserved: refused, not in time, or sluiced does not run
  2  no such tenant, or a wrong configuration file")]
    Hold {
        /// The tenant
        #[arg(value_name = "TENANT")]
        name: String,
        /// Which file
        #[command(flatten)]
        place: TenantPlace,
    },
}

/// Where tenants are declared.
#[derive(Args, Clone, Debug)]
pub struct TenantPlace {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
}

/// What `sluice reserve` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedSize {
    /// All that is not reserved yet.
    All,
    /// So much.
    Bytes(ByteLen),
}

fn parse_reserved(text: &str) -> Result<ReservedSize, String> {
    if text == "all" {
        return Ok(ReservedSize::All);
    }
    text.parse().map(ReservedSize::Bytes).map_err(|why: String| format!("{why}, or all"))
}

/// What `sluice target` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSize {
    /// As configured.
    Default,
    /// At most so much.
    AtMost(ByteLen),
}

fn parse_target(text: &str) -> Result<TargetSize, String> {
    if text == "default" {
        return Ok(TargetSize::Default);
    }
    text.parse().map(TargetSize::AtMost).map_err(|why: String| format!("{why}, or default"))
}
