// SPDX-License-Identifier: GPL-2.0-only
//! `sluice-sim`: makes traces, plays them on the simulated GPU, shows what came of it.

mod import;
mod trace;
mod workloads;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Parser, Subcommand};

use workloads::Workload;

/// Plays GPU workloads on the simulated GPU of the module `sluice_sim`.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Play a workload and print the counters
    Run(RunArgs),
    /// Play a recorded trace and print the counters
    Replay {
        /// The trace
        file: PathBuf,
        /// Where the simulated GPU is.
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Write a workload's trace to standard output
    Write(WorkloadArgs),
    /// Turn a recorded trace into one that can be replayed, on standard output
    ///
    /// It has a line for each event (docs/reference/trace-format.md), or is what
    /// `sluice policy trace --memory --json` has printed.
    Import(ImportArgs),
}

#[derive(Args, Debug)]
struct ImportArgs {
    /// The recorded trace
    file: PathBuf,
    /// The GPU's memory in chunks of 2 MiB, if the trace does not say it
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    chunks: Option<u32>,
    /// The number of the GPU, if the trace does not say it
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// The cgroup of a tenant, as in 1=/machine.slice; that of the player if not given
    #[arg(long = "cgroup", value_name = "TENANT=PATH", value_parser = parse_cgroup)]
    cgroups: Vec<(u16, u64)>,
}

fn imported(args: &ImportArgs) -> Result<Vec<u8>> {
    let place = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {place}"))?;
    let trace = import::import(&text, args.chunks, args.gpu, &args.cgroups)
        .with_context(|| place.to_string())?;
    Ok(trace.bytes())
}

#[derive(Args, Debug)]
struct DeviceArgs {
    /// The simulated GPU
    #[arg(long, default_value = "/dev/sluice_sim")]
    device: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RunArgs {
    /// What to play.
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Where to.
    #[command(flatten)]
    device: DeviceArgs,
    /// Play it that many times, each on a GPU of its own, and print the last one's counters
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
}

#[derive(Args, Debug)]
struct WorkloadArgs {
    /// The workload
    workload: Workload,
    /// The number of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Another seed, another trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The cgroup of a tenant, as in 1=/machine.slice; that of this process if not given
    #[arg(long = "cgroup", value_name = "TENANT=PATH", value_parser = parse_cgroup)]
    cgroups: Vec<(u16, u64)>,
}

impl WorkloadArgs {
    fn bytes(&self) -> Vec<u8> {
        self.workload.trace(self.gpu, self.seed, &self.cgroups).bytes()
    }
}

/// A cgroup's id is the inode number of its folder.
fn parse_cgroup(text: &str) -> Result<(u16, u64), String> {
    use std::os::unix::fs::MetadataExt;
    let (tenant, path) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not TENANT=PATH"))?;
    let tenant = tenant.parse().map_err(|error| format!("tenant {tenant:?}: {error}"))?;
    let folder = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let metadata =
        std::fs::metadata(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok((tenant, metadata.ino()))
}

/// Plays a trace on a GPU of its own.
fn play(device: &Path, bytes: &[u8]) -> Result<String> {
    let mut gpu = open(device)?;
    // One record at a time is refused with its own error, many with the bytes before it.
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = gpu.write(rest).map_err(|error| {
            let number = (bytes.len() - rest.len()) / 32;
            anyhow!("record {number} of the trace is refused: {error}")
        })?;
        rest = &rest[written..];
    }
    let mut report = vec![0; 128 << 10];
    let length = gpu.read(&mut report).context("the simulated GPU gives no report")?;
    report.truncate(length);
    String::from_utf8(report).context("the report is no text")
}

fn open(device: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(device).with_context(|| {
        format!("cannot open {}; next: modprobe sluice_sim, as root", device.display())
    })
}

fn show(report: &str, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if !json {
        out.write_all(report.as_bytes())?;
        return Ok(out.flush()?);
    }
    let mut object = serde_json::Map::new();
    for line in report.lines() {
        let (name, value) = line.split_once(' ').context("a line of the report has no value")?;
        object.insert(name.to_owned(), value.parse::<u64>().context(line.to_owned())?.into());
    }
    writeln!(out, "{}", serde_json::Value::from(object))?;
    Ok(out.flush()?)
}

fn run() -> Result<()> {
    match Cli::parse().command {
        Command::Run(args) => {
            let bytes = args.workload.bytes();
            for _ in 1..args.times {
                play(&args.device.device, &bytes)?;
            }
            show(&play(&args.device.device, &bytes)?, args.device.json)
        }
        Command::Replay { file, device } => {
            let bytes =
                std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            show(&play(&device.device, &bytes)?, device.json)
        }
        Command::Import(args) => Ok(std::io::stdout().lock().write_all(&imported(&args)?)?),
        Command::Write(args) => Ok(std::io::stdout().lock().write_all(&args.bytes())?),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
