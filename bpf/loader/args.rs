// SPDX-License-Identifier: GPL-2.0-only
//! The command line: every command, option and help text.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Loads GPU policies into the kernel, replaces and removes them.
#[derive(Debug, Parser)]
#[command(
    name = "sluice-policy",
    bin_name = "sluice policy",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "\
Examples:
  sluice policy load eviction_lfu
  sluice policy load prefetch_stride --gpu 0 --cgroup /machine.slice --set confidence=3
  sluice policy replace eviction_lfu eviction_lru_2q
  sluice policy stats
  sluice policy unload eviction_lru_2q

It needs root and the kernel module sluice_gpu."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the policies that are attached, and those that could be
    List(OutputArgs),
    /// Show by which means each configured policy is in force, or all about an attached one
    #[command(after_help = "\
Examples:
  sluice policy show                  what of [policies] is in force, and by which means
  sluice policy show --json | jq '.[] | select(.means == \"nothing\")'
  sluice policy show eviction_lfu     calls, times and outcomes of an attached one

Without a name it looks at the driver: where its patched modules ask policies, those are in
force; else a parameter of the stock driver may do the same, or nothing, and it says why.
Parameters are read and never written.")]
    Show(ShowArgs),
    /// Verify a policy and attach it
    Load(LoadArgs),
    /// Put another policy in the place of an attached one, without a moment between them
    Replace(ReplaceArgs),
    /// Detach a policy; what it served is native again
    Unload {
        /// The policy's name
        name: String,
    },
    /// Show what came of the policies' hook calls
    Stats(OutputArgs),
    /// Attach what the configuration says, and detach what an earlier one said
    Apply(ApplyArgs),
    /// Have the kernel verify policies without attaching them, and tell what that costs
    Check(CheckArgs),
    /// Compile a policy: NAME.bpf.c to NAME.bpf.o beside it
    Build {
        /// The source
        source: PathBuf,
        /// The folder with intf.h and lib/
        #[arg(long, value_name = "DIR", default_value = "/usr/share/sluice/bpf")]
        headers: PathBuf,
    },
    /// Show what programs ask of the CUDA driver library, or what happens to GPU memory
    Trace(TraceArgs),
    /// Show attaching, replacing, detaching and bypassing as they happen
    Watch,
}

/// How to show something.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `show`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// The name of an attached policy; all configured ones, if not given
    pub name: Option<String>,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = sluice::config::DEFAULT_PATH)]
    pub config: PathBuf,
    /// How to show it.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A policy and its settings.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// The name of an installed policy, or the path of an object file
    pub policy: String,
    /// Give a tunable of the policy another value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, u64)>,
    /// Where installed policies are
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/sluice/policies")]
    pub policies: PathBuf,
}

/// `apply`.
#[derive(Args, Clone, Debug)]
pub struct ApplyArgs {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = sluice::config::DEFAULT_PATH)]
    pub config: PathBuf,
    /// Where installed policies are
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/sluice/policies")]
    pub policies: PathBuf,
}

/// `check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Names of installed policies, or paths of object files
    #[arg(required = true)]
    pub policies: Vec<String>,
    /// Give a tunable of each policy another value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, u64)>,
    /// Where installed policies are
    #[arg(long = "policies", value_name = "DIR", default_value = "/usr/lib/sluice/policies")]
    pub folder: PathBuf,
    /// Fail if verifying costs more than that file says, a line POLICY HOOK INSTRUCTIONS for each
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
}

/// Whom a policy serves.
#[derive(Args, Clone, Debug, Default)]
pub struct ScopeArgs {
    /// Serve this GPU only
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// Serve owners in this cgroup or below it only, as in /machine.slice
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// The longest that a call may take, in microseconds (1 to 1000; 50 if not given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub budget_us: Option<u32>,
    /// What the GPU's faults may rise to after loading, in percent of those before
    /// (101 to 100000; 400 if not given)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(101..=100_000))]
    pub max_faults: Option<u32>,
}

/// `load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// What to load.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Whom it serves.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// The name to attach it by, if not its own
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// Stay, and detach the policy when this program ends, in whatever way
    #[arg(long)]
    pub hold: bool,
}

/// `replace`.
#[derive(Args, Clone, Debug)]
pub struct ReplaceArgs {
    /// The name of the attached policy
    pub name: String,
    /// What takes its place, for the same GPU and cgroup.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The name to attach it by, if not its own
    #[arg(long = "as", value_name = "NAME")]
    pub as_name: Option<String>,
    /// The longest that a call may take, in microseconds (1 to 1000; 50 if not given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub budget_us: Option<u32>,
    /// What the GPU's faults may rise to after that, in percent of those before the first
    /// load (101 to 100000; 400 if not given)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(101..=100_000))]
    pub max_faults: Option<u32>,
}

/// `trace`.
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// Watch faults, prefetches and evictions of NVIDIA's unified memory, or of the simulated GPU
    #[arg(long, conflicts_with = "library")]
    pub memory: bool,
    /// The library to watch; libcuda.so.1 where it usually is, if not given
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// Watch this process only
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// End after that many events
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print a line of JSON for each
    #[arg(long)]
    pub json: bool,
    /// The probe; the installed one that fits, if not given
    #[arg(long, value_name = "FILE")]
    pub probe: Option<PathBuf>,
}

fn parse_setting(text: &str) -> Result<(String, u64), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    let value = value.parse().map_err(|error| format!("{name}={value}: {error}"))?;
    Ok((name.to_owned(), value))
}
