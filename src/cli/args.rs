// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: every command, option and help text.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::schema::Durability;
use crate::config::{Cuda, DEFAULT_PATH, ServeOptions, TierKind, Vulkan, check::swap_size};
use crate::engine::gpu::GpuSelector;
use crate::engine::units::ByteLen;

use super::bench_args::BenchArgs;
use super::control_args::{ControlCommand, TenantCommand};
use super::driver_args::DriverCommand;
use super::order_args::{GpuCommand, SpillCommand, VramCommand, parse_time};

/// Where the store listens for `sluice status` and for orders.
pub const CONTROL_SOCKET: &str = "/run/sluice/store.sock";

/// The shortest interval of `sluice top`: the store is asked each time.
const SHORTEST: Duration = Duration::from_millis(100);

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: no answer, wrong data, or something this machine cannot do
  2  wrong usage or a wrong configuration file
  3  not done within the time given; it goes on (on, off, vram, gpu ...)
sluice reserve ends with its command's exit code.";

const MAIN_EXAMPLES: &str = "\
Examples:
  sluice demo                         see it work, without privileges
  sluice doctor                       what this machine can do, and what to change
  sluice config check                 is /etc/sluice/sluice.toml right?
  sluice status                       what the running store holds
  sluice top                          and what it does, each second
  sluice off; sluice on               no swap on the GPU; swap again
  sluice explain                      why it holds what it holds
  sluice reserve 6G -- a-game         room on the GPU while a command runs
  sluice tenant list                  services that have a floor of GPU memory
  sluice vram drain                   give the GPU its memory back; swap stays on
  sluice spill create PATH --size 8G  a file for pages that leave the GPU
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
  sluice demo --tier cuda --size 4G
  sluice demo --tier cuda --nbd       as root: a block device of the kernel, not used as swap

It starts `sluice serve` on a RAM tier, or on a GPU with --tier vulkan or cuda, is its client,
and stops it at the end. With --nbd it starts `sluice-store run`, writes and checks the whole
device, and detaches it.")]
    Demo(DemoArgs),
    /// Serve one NBD export on a Unix socket, without the kernel and without privileges
    #[command(after_help = "\
Examples:
  sluice serve --tier ram --size 1G --socket /tmp/sluice.sock
  sluice serve --tier vulkan --size 4G --socket /tmp/sluice.sock
  sluice serve --tier cuda --size 4G --socket /tmp/sluice.sock
  sluice bench unix:/tmp/sluice.sock
  qemu-io -f raw -c 'write -P 7 0 64k' 'nbd+unix:///?socket=/tmp/sluice.sock'

It runs until it gets SIGINT or SIGTERM; the contents are gone then.")]
    Serve(ServeArgs),
    /// Measure latency, IOPS and throughput of an NBD server or block device, contents verified
    #[command(after_help = super::bench_args::EXAMPLES)]
    Bench(BenchArgs),
    /// Make a spill file, or check what shall be one
    #[command(subcommand)]
    Spill(SpillCommand),
    /// Show what a running store holds and does, again and again
    #[command(after_help = "\
Examples:
  sluice top
  sluice top --interval 5s
  sluice top --count 1                one block of text, over a second
  sluice top --json | jq .rates.bytes_in

On a terminal q ends it. Where the output is no terminal, and with --count, it is blocks of
text. The object of --json has three parts: `store` as of sluice status --json, `rates`, each
by the second, and `control`; a part is null where nobody answers.")]
    Top(TopArgs),
    /// A command that asks the control plane
    #[command(flatten)]
    Control(ControlCommand),
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
  sluice status --watch
  sluice status --json | jq .written_pages
  sluice status --metrics             for Prometheus, where sluiced does not serve it
  sluice status --json | jq '.pending.changes[]'    what is configured and not in force

With --watch and --json it is one object on one line, every second.")]
    Status(StatusArgs),
    /// Say how much fast memory a running store may hold
    #[command(subcommand)]
    Vram(VramCommand),
    /// Close the GPUs of a running store, or use one again that failed
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Say what this machine can and cannot do, and what to change
    #[command(after_help = "\
Examples:
  sluice doctor
  sluice doctor --json | jq '.findings[] | select(.verdict == \"no\")'

Nothing is changed, and a sleeping GPU is left asleep.
It exits with 1 if this machine, as it is, cannot attach swap.")]
    Doctor(DoctorArgs),
    /// Look at NVIDIA's driver: who holds it, and does everything of it fit together
    #[command(subcommand)]
    Driver(DriverCommand),
    /// Check or show the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Services with a floor of GPU memory, and what keeps it free for them
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Load GPU policies into the kernel, replace, remove and watch them
    #[command(after_help = "\
Examples:
  sluice policy load eviction_lfu --gpu 0
  sluice policy stats
  sluice policy load --help

It runs `sluice-policy` with the same words, which needs root and the kernel module sluice_gpu.")]
    Policy {
        /// What to do: list, show, load, replace, unload, apply, stats, check, build, trace or watch
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  sluice completions bash > /usr/share/bash-completion/completions/sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish
  sluice completions bash --program sluice-tray")]
    Completions {
        /// The shell
        shell: Shell,
        /// Of which program
        #[arg(long, value_name = "NAME", default_value = "sluice", value_parser = super::pages::PROGRAMS)]
        program: String,
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
    /// Which memory holds the pages: vulkan, cuda, auto or ram
    #[arg(long, value_name = "KIND", value_parser = built_tier)]
    pub tier: TierKind,
    /// The export's size: a multiple of 2 MiB, at least 64M
    #[arg(long, value_parser = parse_swap_size)]
    pub size: ByteLen,
    /// Where to listen
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Answer `sluice status`, `vram` and `gpu` here too, for their --socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// A GPU of tier cuda: number, UUID or PCI address; repeat for several [default: 0]
    #[arg(long, value_name = "GPU", value_parser = parse_gpu)]
    pub cuda_device: Vec<GpuSelector>,
    /// The driver's library of tier cuda, instead of looking for it
    #[arg(long, value_name = "PATH", value_parser = parse_absolute)]
    pub cuda_library: Option<PathBuf>,
    /// A GPU of tier vulkan, by the same names [default: the first with memory of its own]
    #[arg(long, value_name = "GPU", value_parser = parse_gpu)]
    pub vulkan_device: Vec<GpuSelector>,
    /// The Vulkan loader of tier vulkan, instead of looking for it
    #[arg(long, value_name = "PATH", value_parser = parse_absolute)]
    pub vulkan_library: Option<PathBuf>,
    /// A file or partition for what the tier cannot hold
    #[arg(long, value_name = "PATH")]
    pub spill: Option<PathBuf>,
    /// Write each page to the spill too before it is answered (durability mirror)
    #[arg(long, requires = "spill")]
    pub mirror: bool,
    /// The export's name; the default export has none
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    /// The most clients at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub max_clients: u32,
    /// Do without the checksum of each page
    #[arg(long)]
    pub no_checksums: bool,
    /// The link to the process that holds the pages, by number; for that process only
    #[arg(long, value_name = "FD", hide = true)]
    pub held: Option<i32>,
}

impl From<ServeArgs> for ServeOptions {
    fn from(args: ServeArgs) -> Self {
        Self {
            tier: args.tier,
            size: args.size,
            socket: args.socket,
            control: args.control,
            durability: if args.mirror { Durability::Mirror } else { Durability::Writeback },
            cuda: Cuda {
                library: args.cuda_library,
                devices: if args.cuda_device.is_empty() {
                    Cuda::default().devices
                } else {
                    args.cuda_device
                },
            },
            vulkan: Vulkan { library: args.vulkan_library, devices: args.vulkan_device },
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
    /// Print the store's reply as JSON, with what is configured and not in force
    #[arg(long)]
    pub json: bool,
    /// Print it again every second, until it is interrupted or the store is gone
    #[arg(long)]
    pub watch: bool,
    /// Print what Prometheus reads; a store that does not answer is no failure then
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub metrics: bool,
    /// The store's control socket
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    pub socket: PathBuf,
}

/// `sluice top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Print one JSON object on one line for each interval
    #[arg(long)]
    pub json: bool,
    /// How long an interval is: a whole number and ms, s or m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
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
    /// Which memory to serve: ram, vulkan, cuda or auto
    #[arg(long, value_name = "KIND", default_value = "ram", value_parser = built_tier)]
    pub tier: TierKind,
    /// Go through the kernel's nbd driver instead of a socket; needs root
    #[arg(long)]
    pub nbd: bool,
    /// How much of it to serve
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
        Err(format!(
            "{} is not built in this version; it has {}",
            kind.name(),
            TierKind::built().join(", ")
        ))
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_time(text)
        .and_then(|time| (time >= SHORTEST).then_some(time).ok_or("at least 100ms".to_owned()))
}

fn parse_gpu(text: &str) -> Result<GpuSelector, String> {
    text.parse().map_err(str::to_owned)
}

fn parse_absolute(text: &str) -> Result<PathBuf, String> {
    Some(PathBuf::from(text))
        .filter(|path| path.is_absolute())
        .ok_or_else(|| "not an absolute path".to_owned())
}

pub(super) fn parse_swap_size(text: &str) -> Result<ByteLen, String> {
    swap_size(text.parse()?)
}
