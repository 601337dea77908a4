// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `sluice-tray`.

use std::time::Duration;

use clap::Parser;

use super::order_args::parse_time;

const AFTER_HELP: &str = "\
It waits for a tray and for sluiced, may be started before either, and ends with the session;
a second one in the same session ends at once. Faults and battery stops become notifications.
What the menu gave you ends with it.

Exit codes:
  0  ended by its menu, with the session, or because one runs already
  1  no session bus
  2  wrong usage";

/// Shows in the desktop's tray what GPU memory is lent as swap, and switches it.
#[derive(Debug, Parser)]
#[command(name = "sluice-tray", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct TrayArgs {
    /// For how long the menu gives you the GPU: a whole number and ms, s or m, at most 60m
    #[arg(long = "for", value_name = "TIME", default_value = "60m", value_parser = parse_time)]
    pub span: Duration,
}
