// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of `sluice bench`; what they mean to the generator is
//! `block::bench::plan`.

use clap::{Args, ValueEnum};

use crate::engine::units::ByteLen;

/// The end of `sluice bench --help`.
pub const EXAMPLES: &str = "\
Examples:
  sluice bench unix:/tmp/sluice.sock
  sluice bench 'nbd+unix:///swap?socket=/tmp/x.sock' --connections 8 --write 0 --fill
  sluice bench unix:/tmp/a.sock --against unix:/tmp/b.sock --rounds 5
  sluice bench /dev/zram0 --sporadic --seconds 120 --destroy-contents
  sluice bench /tmp/file.img --block 1M --depth 4 --pattern sequential --write 100

Targets: unix:PATH, nbd+unix:///NAME?socket=PATH, or the path of a block device or
file (opened with O_DIRECT). Every page's contents say which page it is and how
often it was written, and every read of a page written in this run is checked.
It exits with 1 if anything read was wrong or any request failed.
The run overwrites the target, unless --write 0 without --fill.";

/// The order in which blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Every block as likely as any other.
    Random,
    /// One after another, from the start again at the end.
    Sequential,
}

/// `sluice bench`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct BenchArgs {
    /// What to measure: an NBD server's socket, a block device or a file (see below)
    pub target: String,
    /// A second target, measured in turns with the first; the ratio is shown
    #[arg(long, value_name = "TARGET")]
    pub against: Option<String>,
    /// How often each target is measured; medians are shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Connections, or for a device groups of threads, each with its own part of the span
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub connections: u32,
    /// Requests kept open on each connection [default: 32; 1 with --pause or --sporadic]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: Option<u32>,
    /// How many requests of a hundred are writes [default: 50; 0 with --sporadic]
    #[arg(long, short, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub write: Option<u32>,
    /// Bytes of each request: 4K to 1M, whole pages
    #[arg(long, short, value_name = "SIZE", default_value = "4K", value_parser = block_size)]
    pub block: ByteLen,
    /// How long each round lasts [default: 5; 60 with --sporadic]
    #[arg(long, short, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// How much of the target, from its start, is used [default: all; 64M with --sporadic]
    #[arg(long, value_name = "SIZE")]
    pub span: Option<ByteLen>,
    /// The order of the blocks
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pub pattern: Pattern,
    /// Write the whole span once before measuring, so that every read meets written pages
    #[arg(long)]
    pub fill: bool,
    /// One request at a time on each connection, with so many microseconds of rest after it
    #[arg(long, value_name = "US", conflicts_with = "sporadic")]
    pub pause: Option<u64>,
    /// One 4 KiB request now and then, like the faults of an idle desktop; fills first
    #[arg(long)]
    pub sporadic: bool,
    /// Milliseconds between the requests of --sporadic
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "sporadic", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub interval: u64,
    /// Overwrite a block device or file that holds data
    #[arg(long)]
    pub destroy_contents: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

fn block_size(text: &str) -> Result<ByteLen, String> {
    let size: ByteLen = text.parse()?;
    if size.0 < 4096 || size.0 > 1 << 20 || !size.0.is_multiple_of(4096) {
        return Err("a block is a multiple of 4K, from 4K to 1M".to_owned());
    }
    Ok(size)
}
