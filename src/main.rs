// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store`: the process that holds swapped pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use lexopt::prelude::*;
use sluice::runtime::{detach, report, store_process};

const HELP: &str = "\
sluice-store: the process that holds swapped pages

usage:
  sluice-store run [--config FILE] [--socket PATH]
      Take memory, lock it, attach the kernel's nbd device and switch swap on.
      SIGTERM switches swap off first; the process never ends with pages in use.
  sluice-store detach [--force] [--socket PATH] [DEVICE...]
      Switch swap off, in this process, which is expendable. Without DEVICE:
      all devices of the store that answers on the socket.

defaults: --config /etc/sluice/sluice.toml --socket /run/sluice/store.sock
exit:     0 done, 1 failed, 2 wrong usage or configuration
";

fn main() -> ExitCode {
    match parse() {
        Ok(Some(Command::Run { config, socket })) => store_process::main(&config, &socket),
        Ok(Some(Command::Detach { devices, socket, force })) => {
            report(detach::run(&devices, &socket, force))
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-store: {error}\n  next: sluice-store --help");
            ExitCode::from(2)
        }
    }
}

enum Command {
    Run { config: PathBuf, socket: PathBuf },
    Detach { devices: Vec<PathBuf>, socket: PathBuf, force: bool },
}

fn parse() -> Result<Option<Command>, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut verb = None;
    let (mut config, mut force, mut devices) = (None, false, Vec::new());
    let mut socket = PathBuf::from(sluice::runtime::DEFAULT_SOCKET);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Short('V') | Long("version") => {
                println!("sluice-store {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            Long("config") => config = Some(PathBuf::from(parser.value()?)),
            Long("socket") => socket = PathBuf::from(parser.value()?),
            Long("force") => force = true,
            Value(word) if verb.is_none() => verb = Some(word.string()?),
            Value(device) => devices.push(PathBuf::from(device)),
            other => return Err(other.unexpected()),
        }
    }
    match verb.as_deref() {
        Some("run") if devices.is_empty() && !force => {
            let config = config.unwrap_or_else(|| sluice::config::DEFAULT_PATH.into());
            Ok(Some(Command::Run { config, socket }))
        }
        Some("detach") if config.is_none() => Ok(Some(Command::Detach { devices, socket, force })),
        Some(verb @ ("run" | "detach")) => {
            Err(format!("{verb}: an argument it does not take").into())
        }
        Some(other) => Err(format!("unknown command {other:?}").into()),
        None => Err("no command".into()),
    }
}
