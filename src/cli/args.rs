// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: every command, option and help text.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{DEFAULT_PATH, ServeOptions, TierKind, check::swap_size};
use crate::engine::units::ByteLen;

use super::bench_args::BenchArgs;

/// Where the store listens for `sluice status`.
pub const CONTROL_SOCKET: &str = "/run/sluice/store.sock";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: no answer, wrong data, or something this machine cannot do
  2  wrong usage or a wrong configuration file";

const MAIN_EXAMPLES: &str = "\
Examples:
  sluice demo                         see it work, without privileges
  sluice doctor                       what this machine can do, and what to change
  sluice config check                 is /etc/sluice/sluice.toml right?
  sluice status                       what the running store holds
  sluice bench unix:/run/x.sock       latency and throughput of any NBD server

";

/// Lends idle GPU memory to the kernel as fast swap.
#[derive(Debug, Parser)]
#[command(
    name = "sluice", version, after_help = help_end(), arg_required_else_help = true,
    disable_help_subcommand = true, max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn help_end() -> String {
    format!("{MAIN_EXAMPLES}{EXIT_CODES}")
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the store at work: serve, write, verify, trim and measure, without privileges
    #[command(after_help = "\
Examples:
  sluice demo
  sluice demo --size 512M --seconds 5

It starts `sluice serve` on a RAM tier, is its client, and stops it at the end.")]
    Demo(DemoArgs),
    /// Serve one NBD export on a Unix socket, without the kernel and without privileges
    #[command(after_help = "\
Examples:
  sluice serve --tier ram --size 1G --socket /tmp/sluice.sock
  sluice bench unix:/tmp/sluice.sock
  qemu-io -f raw -c 'write -P 7 0 64k' 'nbd+unix:///?socket=/tmp/sluice.sock'

It runs until it gets SIGINT or SIGTERM; the contents are gone then.")]
    Serve(ServeArgs),
    /// Measure latency, IOPS and throughput of an NBD server or block device, contents verified
    #[command(after_help = super::bench_args::EXAMPLES)]
    Bench(BenchArgs),
    /// A command that this layer runs itself
    #[command(flatten)]
    Local(LocalCommand),
}

/// The commands that need no adapter.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Show what a running store holds and does
    #[command(after_help = "\
Examples:
  sluice status
  sluice status --json | jq .written_pages")]
    Status(StatusArgs),
    /// Say what this machine can and cannot do, and what to change
    #[command(after_help = "\
Examples:
  sluice doctor
  sluice doctor --json | jq '.findings[] | select(.verdict == \"no\")'

Nothing is changed, and a sleeping GPU is left asleep.
It exits with 1 if this machine, as it is, cannot attach swap.")]
    Doctor(DoctorArgs),
    /// Check or show the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  sluice completions bash > /usr/share/bash-completion/completions/sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write one for every command
    #[command(after_help = "\
Examples:
  sluice man | man -l -
  sluice man --dir /usr/share/man/man1")]
    Man {
        /// Write sluice.1, sluice-serve.1 and so on into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `sluice serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Which memory holds the pages: ram (cuda, vulkan and auto are not built in this version)
    #[arg(long, value_name = "KIND", value_parser = built_tier)]
    pub tier: TierKind,
    /// The export's size: a multiple of 2 MiB, at least 64M
    #[arg(long, value_parser = parse_swap_size)]
    pub size: ByteLen,
    /// Where to listen
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// A file or partition for what the tier cannot hold
    #[arg(long, value_name = "PATH")]
    pub spill: Option<PathBuf>,
    /// The export's name; the default export has none
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// The most clients at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub max_clients: u32,
    /// Do without the checksum of each page
    #[arg(long)]
    pub no_checksums: bool,
}

impl From<ServeArgs> for ServeOptions {
    fn from(args: ServeArgs) -> Self {
        Self {
            tier: args.tier,
            size: args.size,
            socket: args.socket,
            spill: args.spill,
            name: args.name,
            max_clients: args.max_clients,
            checksums: !args.no_checksums,
        }
    }
}

/// `sluice status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print the store's reply as JSON
    #[arg(long)]
    pub json: bool,
    /// The store's control socket
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    pub socket: PathBuf,
}

/// `sluice doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Print facts and findings as JSON
    #[arg(long)]
    pub json: bool,
    /// Look at this tree instead of the running system
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
}

/// `sluice demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// How much RAM to serve
    #[arg(long, default_value = "256M", value_parser = parse_swap_size)]
    pub size: ByteLen,
    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// `sluice config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether the file is right, or everything that is wrong with it
    #[command(after_help = "\
Examples:
  sluice config check
  sluice config check ./sluice.toml")]
    Check {
        /// Which file
        #[command(flatten)]
        place: ConfigPlace,
    },
    /// Print the configuration with every default filled in
    #[command(after_help = "\
Examples:
  sluice config show
  sluice config show --json ./sluice.toml")]
    Show {
        /// Which file
        #[command(flatten)]
        place: ConfigPlace,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Which configuration file.
#[derive(Args, Clone, Debug)]
pub struct ConfigPlace {
    /// The file
    #[arg(value_name = "FILE", default_value = DEFAULT_PATH)]
    pub file: PathBuf,
    /// Take an absolute FILE below this directory
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
}

fn built_tier(text: &str) -> Result<TierKind, String> {
    let kind: TierKind = text.parse()?;
    if kind.is_built() {
        Ok(kind)
    } else {
        Err(format!("{} is not built in this version; it has ram", kind.name()))
    }
}

fn parse_swap_size(text: &str) -> Result<ByteLen, String> {
    swap_size(text.parse()?)
}
