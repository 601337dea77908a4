// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking a store over its control socket: the one client, for `sluice` and for
//! `sluice-store detach`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::engine::error::{Error, Kind, Result};
use crate::engine::view::{Outcome, Refusal, Reply, Request, Status};

/// Far above any reply: a peer that sends more is no store.
const MAX_REPLY_BYTES: u64 = 1 << 20;
/// How long a store may take beyond what it was asked to wait for: it answers
/// from memory, but its main thread may be busy with a device.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the store on `socket` and waits for the answer, as long as the request
/// itself waits and a little more.
///
/// Errors: `Missing` where no store listens, `Denied` to all but root,
/// `TimedOut` for a store that does not answer, `Protocol` for a peer that is
/// no store, `Busy` for a request that the store refused, in its own words.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply> {
    let line = transfer(socket, request)?;
    let parsed = match serde_json::from_str::<Refusal>(&line) {
        Ok(refusal) => {
            let error = Error::new(Kind::Busy, refusal.error);
            return Err(match refusal.hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            });
        }
        Err(_) if matches!(request, Request::Status {}) => {
            serde_json::from_str::<Status>(&line).map(|status| Reply::Status(Box::new(status)))
        }
        Err(_) => serde_json::from_str::<Outcome>(&line).map(Reply::Ended),
    };
    parsed.map_err(|error| {
        let start: String = line.trim_end().chars().take(80).collect();
        let place = socket.display();
        Error::new(Kind::Protocol, format!("{place} did not answer as a store: {start:?}"))
            .with_source(error)
            .with_hint("is it the control socket, and the same version of sluice on both ends?")
    })
}

/// The store's snapshot.
pub fn status(socket: &Path) -> Result<Status> {
    match ask(socket, &Request::Status {})? {
        Reply::Status(status) => Ok(*status),
        Reply::Ended(_) | Reply::Refused(_) => {
            unreachable!("a request for the status is answered with one, or an error")
        }
    }
}

/// Asks, and until the answer is there looks at the store every `tick`, on
/// connections of its own: `look` gets what it saw.
///
/// Errors: as [`ask`]. A look that fails is left out.
pub fn ask_and_look(
    socket: &Path,
    request: &Request,
    tick: Duration,
    mut look: impl FnMut(&Status),
) -> Result<Reply> {
    std::thread::scope(|scope| {
        let (send, answered) = std::sync::mpsc::channel();
        scope.spawn(move || send.send(ask(socket, request)));
        loop {
            match answered.recv_timeout(tick) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => {
                    if let Ok(status) = status(socket) {
                        look(&status);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(Kind::Io, "the request ended without an answer"));
                }
            }
        }
    })
}

fn transfer(socket: &Path, request: &Request) -> Result<String> {
    let mut stream = UnixStream::connect(socket)
        .map_err(|error| failed(socket, "cannot reach the store at", error))?;
    let text = serde_json::to_string(request).expect("plain data serialises") + "\n";
    let patience = PATIENCE + Duration::from_millis(request.wait_ms());
    stream
        .set_read_timeout(Some(patience))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(text.as_bytes()))
        .map_err(|error| failed(socket, "cannot ask the store at", error))?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES))
        .read_line(&mut reply)
        .map_err(|error| failed(socket, "no answer from the store at", error))?;
    Ok(reply)
}

fn failed(socket: &Path, what: &str, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Kind::Missing,
        ErrorKind::PermissionDenied => Kind::Denied,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Kind::TimedOut,
        _ => Kind::Io,
    };
    let failure = Error::new(kind, format!("{what} {}", socket.display())).with_source(error);
    match kind {
        Kind::Missing => failure.with_hint(
            "no store is running there: systemctl status sluice-store, or name its socket with \
             --socket",
        ),
        Kind::Denied => failure.with_hint("ask as root, e.g. sudo sluice status"),
        Kind::TimedOut => {
            failure.with_hint("the store is stuck: journalctl -u sluice-store says more")
        }
        _ => failure,
    }
}
