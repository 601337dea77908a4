// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice reserve`: a command that runs while the store holds less.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::control::{self, Ways, lower_by};
use super::control_args::ReservedSize;
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;
use crate::engine::view::Request;

/// Nothing was reserved.
const NOT_RESERVED: u8 = 125;
/// The command cannot be run.
const CANNOT_RUN: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;
/// Between two tries to have a lease again that was lost.
const AGAIN: Duration = Duration::from_secs(1);

/// How a lease is taken; it ends when the descriptor is closed.
pub type Take = fn(u64, Duration) -> Result<OwnedFd, Error>;

/// What was asked for.
pub(super) struct Asked<'a> {
    pub size: ReservedSize,
    pub within: Duration,
    pub json: bool,
    pub socket: &'a Path,
}

/// What is to be reserved.
struct Wanted<'a> {
    bytes: ByteLen,
    within: Duration,
    json: bool,
    socket: &'a Path,
}

pub(super) fn run(asked: &Asked<'_>, command: &[OsString], ways: &Ways) -> ExitCode {
    let bytes = match asked.size {
        ReservedSize::Bytes(bytes) => Ok(bytes),
        ReservedSize::All => control::state(ways)
            .map(|state| ByteLen(state.full_bytes.saturating_sub(state.leased_bytes))),
    };
    let wanted = match bytes {
        Ok(bytes) => Wanted { bytes, within: asked.within, json: asked.json, socket: asked.socket },
        Err(error) => {
            let _ = super::finish(Err(error.into()));
            return ExitCode::from(NOT_RESERVED);
        }
    };
    reserve(&wanted, command, ways)
}

fn reserve(wanted: &Wanted<'_>, command: &[OsString], ways: &Ways) -> ExitCode {
    let lent = match (ways.reserve)(wanted.bytes.0, wanted.within) {
        Ok(lease) => Ok(Lent::Lease(lease)),
        Err(error) if error.kind() == Kind::Missing => {
            eprintln!("sluice: {error}; asking the store itself");
            lower_by(wanted.bytes, wanted.socket, wanted.within, ways.ask).map(Lent::Target)
        }
        Err(error) => Err(error),
    };
    let lent = match lent {
        Ok(lent) => lent,
        Err(error) => {
            let _ = super::finish(Err(error.into()));
            return ExitCode::from(NOT_RESERVED);
        }
    };
    if wanted.json {
        eprintln!("{{\"reserved_bytes\":{}}}", wanted.bytes.0);
    }
    let undo = match lent {
        Lent::Lease(lease) => {
            let (bytes, within, take) = (wanted.bytes.0, wanted.within, ways.reserve);
            std::thread::spawn(move || keep(lease, bytes, within, take));
            None
        }
        Lent::Target(undo) => Some(undo),
    };
    let code = run_command(command);
    if let Some(undo) = undo
        && let Err(error) = (ways.ask)(wanted.socket, &undo)
    {
        eprintln!("sluice: the store holds less than before: {error}");
    }
    // A lease ends with this process.
    code
}

enum Lent {
    Lease(OwnedFd),
    Target(Request),
}

/// Keeps a lease for as long as the process lives: takes it again whenever the control
/// plane was started anew.
pub(super) fn keep(mut lease: OwnedFd, bytes: u64, within: Duration, take: Take) -> ! {
    loop {
        // Nothing is ever sent: this ends when the other end is closed.
        let _ = UnixStream::from(lease).read(&mut [0; 1]);
        lease = loop {
            std::thread::sleep(AGAIN);
            if let Ok(again) = take(bytes, within) {
                break again;
            }
        };
    }
}

fn run_command(command: &[OsString]) -> ExitCode {
    let (program, arguments) = command.split_first().expect("clap asks for one");
    match Command::new(program).args(arguments).status() {
        Ok(status) => {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("sluice: cannot run {}: {error}", program.display());
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            ExitCode::from(if missing { NOT_FOUND } else { CANNOT_RUN })
        }
    }
}
