// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluiced`: the control plane.

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::*;
use sluice::runtime::control_plane::daemon::{self, Options};

const HELP: &str = "\
sluiced: the control plane of Sluice

usage:
  sluiced [--config FILE] [--socket PATH] [--state-dir DIR] [--unit NAME] [--root DIR]
      Watch power, sleep, memory and clients, and have the store hold as much
      GPU memory as they allow. It is org.sluice.Sluice1 on the system bus.
      It may end and start at any time: the store goes on.
      SIGHUP reads the configuration anew; a wrong one is refused whole.
  sluiced --check-config [--config FILE]
      Say whether the configuration is right, and everything that is wrong with it.

defaults: --config /etc/sluice/sluice.toml --socket /run/sluice/store.sock
          --state-dir $STATE_DIRECTORY or /var/lib/sluiced
          --unit sluice-store.service --root /
exit:     0 ended as told, 1 failed, 2 wrong usage or configuration
";

fn main() -> ExitCode {
    match parse() {
        Ok(Some((options, true))) => daemon::check_config(&options.config),
        Ok(Some((options, false))) => daemon::main(&options),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluiced: {error}\n  next: sluiced --help");
            ExitCode::from(2)
        }
    }
}

/// The options, and whether only the configuration is to be checked.
fn parse() -> Result<Option<(Options, bool)>, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut check = false;
    let state_dir = std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
    let mut options = Options {
        config: sluice::config::DEFAULT_PATH.into(),
        socket: sluice::runtime::DEFAULT_SOCKET.into(),
        state_dir: state_dir.unwrap_or_else(|| "/var/lib/sluiced".into()),
        unit: "sluice-store.service".to_owned(),
        root: "/".into(),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Short('V') | Long("version") => {
                println!("sluiced {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            Long("check-config") => check = true,
            Long("config") => options.config = parser.value()?.into(),
            Long("socket") => options.socket = parser.value()?.into(),
            Long("state-dir") => options.state_dir = parser.value()?.into(),
            Long("unit") => options.unit = parser.value()?.string()?,
            Long("root") => options.root = parser.value()?.into(),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some((options, check)))
}
