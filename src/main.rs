// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store`: the process that holds swapped pages.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use lexopt::prelude::*;
use sluice::runtime::holder::process as holder;
use sluice::runtime::{detach, report, shutdown, sleep, start};

const HELP: &str = "\
sluice-store: the process that holds swapped pages

usage:
  sluice-store hold [--config FILE] [--socket PATH] [--executable FILE] [--adopt]
      Start a store and hold what it must not lose: if the store dies, another
      one takes over. SIGHUP has the store hand over to the program that is at
      FILE now (default: where this program is). SIGTERM stops the store.
      If a store lives that nobody holds, hold that one; --adopt: only that.
  sluice-store run [--config FILE] [--socket PATH]
      Take memory, lock it, attach the kernel's nbd device and switch swap on,
      with nobody to hold it.
      SIGTERM switches swap off first; the process never ends with pages in use.
  sluice-store detach [--force] [--socket PATH] [DEVICE...]
      Switch swap off, in this process, which is expendable. Without DEVICE:
      all devices of the store that answers on the socket.

for the units that run when the machine goes down or sleeps:
  sluice-store shutdown [--within SECONDS] [--socket PATH]
      Switch swap off and end the store; where the pages do not fit into memory,
      empty the GPUs into the spill and have the store serve them to the end.
  sluice-store sleep [--within SECONDS] [--socket PATH]
      Empty the GPUs into the spill and close them; refuses without a spill.
  sluice-store wake [--socket PATH]
      Use them again as before.
  sluice-store freeze [--spare UNIT]... [--within SECONDS] [--socket PATH]
      Stop every control group but init's, the store's, this one and UNIT's.
  sluice-store thaw [--socket PATH]
      Continue those.

defaults: --config /etc/sluice/sluice.toml --socket /run/sluice/store.sock
          --within 600 (freeze: 20)
exit:     0 done, 1 failed, 2 wrong usage or configuration
";

fn main() -> ExitCode {
    match parse() {
        Ok(Some(Command::Hold(options))) => holder::main(&options),
        Ok(Some(Command::Run(options))) => start::main(&options),
        Ok(Some(Command::Detach { devices, socket, force })) => {
            report(detach::run(&devices, &socket, force))
        }
        Ok(Some(Command::Shutdown { socket, within })) => report(shutdown::run(&socket, within)),
        Ok(Some(Command::Sleep { socket, within })) => report(sleep::sleep(&socket, within)),
        Ok(Some(Command::Wake { socket })) => report(sleep::wake(&socket)),
        Ok(Some(Command::Freeze { socket, spared, within })) => {
            report(sleep::freeze(&socket, &spared, within))
        }
        Ok(Some(Command::Thaw { socket })) => report(sleep::thaw(&socket)),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-store: {error}\n  next: sluice-store --help");
            ExitCode::from(2)
        }
    }
}

enum Command {
    Hold(holder::Options),
    Run(start::Options),
    Detach { devices: Vec<PathBuf>, socket: PathBuf, force: bool },
    Shutdown { socket: PathBuf, within: Duration },
    Sleep { socket: PathBuf, within: Duration },
    Wake { socket: PathBuf },
    Freeze { socket: PathBuf, spared: Vec<String>, within: Duration },
    Thaw { socket: PathBuf },
}

/// The longest that a step may be given, in seconds: longer than a machine has
/// to go down.
const MAX_WITHIN: u64 = 3600;

fn seconds(text: &str) -> Result<Duration, lexopt::Error> {
    match text.parse() {
        Ok(seconds @ 1..=MAX_WITHIN) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("--within {text}: whole seconds, 1 to {MAX_WITHIN}").into()),
    }
}

fn parse() -> Result<Option<Command>, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut verb = None;
    let (mut config, mut force, mut devices) = (None, false, Vec::new());
    let (mut held, mut executable, mut adopt_only) = (None, None, false);
    let (mut within, mut spared) = (None, Vec::new());
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
            Long("held") => held = Some(parser.value()?.parse()?),
            Long("executable") => executable = Some(PathBuf::from(parser.value()?)),
            Long("adopt") => adopt_only = true,
            Long("within") => within = Some(seconds(&parser.value()?.string()?)?),
            Long("spare") => spared.push(parser.value()?.string()?),
            Value(word) if verb.is_none() => verb = Some(word.string()?),
            Value(device) => devices.push(PathBuf::from(device)),
            other => return Err(other.unexpected()),
        }
    }
    let for_store = config.is_some() || held.is_some();
    let for_holder = executable.is_some() || adopt_only;
    let for_detach = !devices.is_empty() || force;
    let for_step = within.is_some();
    let for_freeze = !spared.is_empty();
    let config_path = || config.clone().unwrap_or_else(|| sluice::config::DEFAULT_PATH.into());
    let verb = verb.ok_or("no command")?;
    let stray = match &*verb {
        "hold" => for_detach || for_step || for_freeze || held.is_some(),
        "run" => for_detach || for_step || for_freeze || for_holder,
        "detach" => for_store || for_holder || for_step || for_freeze,
        "shutdown" | "sleep" => for_store || for_holder || for_detach || for_freeze,
        "freeze" => for_store || for_holder || for_detach,
        _ => for_store || for_holder || for_detach || for_step || for_freeze,
    };
    let command = match &*verb {
        "hold" => {
            let config = config_path();
            Command::Hold(holder::Options { config, socket, executable, adopt_only })
        }
        "run" => Command::Run(start::Options { config: config_path(), socket, held }),
        "detach" => Command::Detach { devices, socket, force },
        "shutdown" => Command::Shutdown { socket, within: within.unwrap_or(shutdown::WITHIN) },
        "sleep" => Command::Sleep { socket, within: within.unwrap_or(sleep::WITHIN) },
        "wake" => Command::Wake { socket },
        "freeze" => Command::Freeze { socket, spared, within: within.unwrap_or(sleep::FREEZING) },
        "thaw" => Command::Thaw { socket },
        other => return Err(format!("unknown command {other:?}").into()),
    };
    if stray {
        return Err(format!("{verb}: an argument it does not take").into());
    }
    Ok(Some(command))
}
