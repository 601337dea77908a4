// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice bench`: from the command line to a plan, and from a report to the
//! screen.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::block::bench::plan::{Pace, Pattern, Plan, Target};
use crate::block::bench::{self};
use crate::cli;
use crate::cli::bench_args::{self, BenchArgs};
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;

/// A desktop's working set that was swapped out, and small enough to fill in a moment.
const SPORADIC_SPAN: ByteLen = ByteLen(64 << 20);

/// Measures and shows the result. The exit code is a failure's if anything
/// read was wrong or any request failed.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let plan = plan(args)?;
    let show_progress = std::io::stderr().is_terminal();
    let report = bench::run(&plan, &mut |name, round, rounds| {
        if show_progress {
            eprintln!("measuring {name}, round {round} of {rounds}, {} s ...", plan.seconds);
        }
    })?;
    let text =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.table() };
    cli::print(&text)?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(cli::FAILED) })
}

fn plan(args: &BenchArgs) -> Result<Plan, Error> {
    let pace = match (args.pause, args.sporadic) {
        (Some(rest), _) => Pace::Pause(Duration::from_micros(rest)),
        (None, true) => Pace::Every(Duration::from_millis(args.interval)),
        (None, false) => Pace::Full,
    };
    let depth = match (args.depth, pace) {
        (Some(depth), Pace::Full) => depth,
        (None, Pace::Full) => 32,
        (Some(1) | None, _) => 1,
        (Some(depth), _) => {
            return Err(Error::new(
                Kind::Invalid,
                format!("--depth {depth} with --pause or --sporadic, which send one at a time"),
            )
            .with_hint("leave --depth out, or the pause"));
        }
    };
    if args.sporadic && args.block.0 != 4096 {
        return Err(Error::new(
            Kind::Invalid,
            format!("--block {} with --sporadic, which is about single pages", args.block),
        )
        .with_hint("leave --block out, or use --pause"));
    }
    let names: Vec<String> =
        [Some(&args.target), args.against.as_ref()].into_iter().flatten().cloned().collect();
    let targets = names.iter().map(|name| Target::parse(name)).collect::<Result<_, _>>()?;
    let (write, seconds) = if args.sporadic { (0, 60) } else { (50, 5) };
    Ok(Plan {
        targets,
        names,
        rounds: args.rounds,
        connections: args.connections,
        depth,
        write_percent: args.write.unwrap_or(write),
        block_bytes: args.block.0 as u32,
        seconds: args.seconds.unwrap_or(seconds),
        span: args.span.or(args.sporadic.then_some(SPORADIC_SPAN)),
        pattern: match args.pattern {
            bench_args::Pattern::Random => Pattern::Random,
            bench_args::Pattern::Sequential => Pattern::Sequential,
        },
        pace,
        fill: args.fill || args.sporadic,
        destroy_contents: args.destroy_contents,
    })
}
