// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that change what a running store holds, and those about spills.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::args::{CONTROL_SOCKET, parse_swap_size};
use crate::engine::units::ByteLen;
use crate::engine::view::MAX_DEADLINE_MS;

const ORDER_EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused, or no store answers; nothing was changed
  2  wrong usage
  3  not done within the time given; the store goes on with it";

fn order_help(examples: &str) -> String {
    format!("Examples:\n{examples}\n\n{ORDER_EXIT_CODES}")
}

/// How to ask and what to show.
#[derive(Args, Clone, Debug)]
pub struct OrderArgs {
    /// How long to wait for the end: a whole number and ms, s or m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub within: Duration,
    /// Print the store's reply as JSON
    #[arg(long)]
    pub json: bool,
    /// Show how far it is, also where standard error is no terminal
    #[arg(long)]
    pub progress: bool,
    /// The store's control socket
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    pub socket: PathBuf,
}

/// `sluice vram`.
#[derive(Debug, Subcommand)]
pub enum VramCommand {
    /// Say how much fast memory the store may hold
    #[command(after_help = order_help("  sluice vram target 2G                 hold at most 2 GiB, over all GPUs together
  sluice vram target 0 --tier cuda:1    everything out of the second GPU
  sluice vram target 512M --within 5s   wait for it at most 5 seconds

Whole slabs of 64 MiB are held: SIZE is rounded down. Pages go to other fast
tiers that have room, else to the spill; nothing is lost and swap stays on.
Without a spill, less than is held is refused."))]
    Target {
        /// Bytes of fast memory, e.g. 2G
        #[arg(value_parser = |text: &str| text.parse::<ByteLen>())]
        size: ByteLen,
        /// Of this tier alone, by its name in `sluice status`
        #[arg(long, value_name = "NAME")]
        tier: Option<String>,
        /// How to ask
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Give all fast memory back; every page goes to the spill
    #[command(after_help = order_help("  sluice vram drain
  sluice vram drain --within 500ms && start-a-game

`sluice vram resume` takes it again."))]
    Drain {
        /// How to ask
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Hold again what the configuration says
    #[command(after_help = order_help("  sluice vram resume

Memory is taken as pages come; pages that are used come back by themselves."))]
    Resume {
        /// How to ask
        #[command(flatten)]
        order: OrderArgs,
    },
}

/// `sluice gpu`.
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// Give all fast memory back and close each GPU, so that it can sleep or be removed
    #[command(after_help = order_help("  sluice gpu close && echo auto > /sys/bus/pci/devices/0000:01:00.0/power/control

`sluice vram resume` opens it again. Without a spill it is refused."))]
    Close {
        /// How to ask
        #[command(flatten)]
        order: OrderArgs,
    },
    /// Use a tier again that failed, once its cause is gone
    #[command(after_help = order_help("  sluice status                 which tier failed
  sluice gpu readmit cuda:0

Refused while an operation on it has not come back."))]
    Readmit {
        /// The tier's name in `sluice status`
        #[arg(value_name = "TIER")]
        tier: String,
        /// Print the store's reply as JSON
        #[arg(long)]
        json: bool,
        /// The store's control socket
        #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
        socket: PathBuf,
    },
}

/// `sluice spill`.
#[derive(Debug, Subcommand)]
pub enum SpillCommand {
    /// Make a spill file, every block of it written
    #[command(after_help = "\
Examples:
  sluice spill create /var/lib/sluice/spill --size 8G

The file has SIZE rounded up to 64 MiB, plus 2 MiB: enough for swap.size = SIZE.
Its name appears when it is complete; an interrupted run leaves nothing.")]
    Create {
        /// The file; nothing may have that name
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// The swap it must be able to hold: swap.size
        #[arg(long, value_parser = parse_swap_size)]
        size: ByteLen,
        /// Show how far it is, also where standard error is no terminal
        #[arg(long)]
        progress: bool,
    },
    /// Say whether a file or partition can be a spill, and everything that is wrong with it
    #[command(after_help = "\
Examples:
  sluice spill check /var/lib/sluice/spill --size 8G
  sluice spill check /dev/disk/by-partlabel/sluice-spill

Nothing is changed. It exits with 1 if it cannot be a spill, also while a
running store holds it.")]
    Check {
        /// The file or partition
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Also say whether it is large enough for so much swap
        #[arg(long, value_parser = parse_swap_size)]
        size: Option<ByteLen>,
    },
}

/// `500ms`, `5s`, `2m`.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        _ => None,
    };
    factor
        .zip(number.parse::<u64>().ok())
        .and_then(|(factor, number)| number.checked_mul(factor))
        .filter(|ms| *ms <= MAX_DEADLINE_MS)
        .map(Duration::from_millis)
        .ok_or_else(|| "write a whole number and ms, s or m, at most 60m, e.g. 5s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_parse_with_their_unit_and_refuse_the_rest() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["", "5", "s", "61m", "-1s", "1.5s", "5 s", "5h", "99999999999999999999ms"] {
            assert!(parse_time(bad).is_err(), "{bad:?}");
        }
    }
}
