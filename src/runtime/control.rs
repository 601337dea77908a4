// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's control socket: one JSON object a line, asked and answered.
//! Served by the main thread, never by an I/O thread, and without waiting for
//! any client:
//!
//! ```text
//!   accepted ──► Asking ── a line ──► decided ── at once ──► Answering ──► closed
//!                  │ too slow             │ an order            ▲  │ too slow
//!                  ▼                      ▼                     │  ▼
//!                closed               Waiting ── its end ───────┘ closed
//!                                         │ hung up: only its answer is lost
//!                                         ▼
//!                                       closed
//! ```

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::error::{Error, Kind};
use crate::engine::view::{Refusal, Reply, Request};

/// Where the store answers unless a path is given.
pub const DEFAULT_SOCKET: &str = "/run/sluice/store.sock";
/// The longest request line.
const MAX_LINE: usize = 4096;
/// How long a client may take to say its line, and again to take its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients at a time; one more is told so.
const MAX_CLIENTS: usize = 32;

/// What a waiting client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What becomes of a request.
pub enum Answer {
    /// Answered now.
    Now(Reply),
    /// Answered by [`ControlSocket::finish`].
    Later(Ticket),
}

/// The bound socket and who is connected; removed when dropped.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, to know whether it is still ours.
    identity: Option<(u64, u64)>,
    clients: Vec<Client>,
}

struct Client {
    stream: UnixStream,
    stage: Stage,
    /// What came in, then what is left to go out.
    bytes: Vec<u8>,
    /// When it is given up; no matter while it waits.
    until: Instant,
}

enum Stage {
    Asking,
    Waiting(Ticket),
    Answering,
}

impl ControlSocket {
    /// Binds `path` with mode 0600. A socket that nobody serves is replaced;
    /// a live one is `Busy`: another store runs.
    pub fn bind(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        if UnixStream::connect(path).is_ok() {
            return Err(Error::new(
                Kind::Busy,
                format!("a store already answers on {}", path.display()),
            )
            .with_hint("systemctl status sluice-store; stop it, or give this one --socket PATH")
            .into());
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let (identity, path) = (identity(path), path.to_path_buf());
        Ok(Self { listener, path, identity, clients: Vec::new() })
    }

    /// What to wait for, beside [`ControlSocket::due`].
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let clients = self.clients.iter().map(|client| {
            let flags = match client.stage {
                Stage::Asking => PollFlags::IN,
                // Only that it hangs up, which is always told.
                Stage::Waiting(_) => PollFlags::empty(),
                Stage::Answering => PollFlags::OUT,
            };
            PollFd::new(&client.stream, flags)
        });
        std::iter::once(PollFd::new(&self.listener, PollFlags::IN)).chain(clients)
    }

    /// Nobody asks, and nobody is owed an answer.
    pub fn is_idle(&self) -> bool {
        self.clients.is_empty()
    }

    /// When a client is to be given up.
    pub fn due(&self) -> Option<Instant> {
        let hurried = |client: &&Client| !matches!(client.stage, Stage::Waiting(_));
        self.clients.iter().filter(hurried).map(|client| client.until).min()
    }

    /// Goes on with every client as far as possible without waiting; `decide` is
    /// asked once for each request that could be understood.
    pub fn serve(&mut self, decide: &mut dyn FnMut(Request) -> Answer) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.greet(stream);
        }
        self.clients.retain_mut(|client| match client.go_on(decide) {
            Ok(stays) => stays,
            Err(error) => {
                tracing::debug!("a control client: {error:#}");
                false
            }
        });
    }

    /// Answers everyone who waits for `ticket`; nobody may.
    pub fn finish(&mut self, ticket: Ticket, reply: &Reply) {
        for client in &mut self.clients {
            if matches!(client.stage, Stage::Waiting(waits) if waits == ticket) {
                client.answer(reply);
            }
        }
    }

    fn greet(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let mut client = Client { stream, stage: Stage::Asking, bytes: Vec::new(), until };
        if self.clients.len() >= MAX_CLIENTS {
            client.refuse(&Error::new(
                Kind::Busy,
                format!("{MAX_CLIENTS} clients are asking or waiting already"),
            ));
            let _ = client.write();
            return;
        }
        self.clients.push(client);
    }
}

impl Client {
    /// False: it is done with. An error: it is given up.
    fn go_on(&mut self, decide: &mut dyn FnMut(Request) -> Answer) -> Result<bool> {
        if matches!(self.stage, Stage::Asking) && self.read()? {
            match understand(&self.bytes) {
                Ok(request) => match decide(request) {
                    Answer::Now(reply) => self.answer(&reply),
                    Answer::Later(ticket) => self.stage = Stage::Waiting(ticket),
                },
                Err(error) => self.refuse(&error),
            }
        }
        if let Stage::Waiting(_) = self.stage {
            return Ok(!self.has_hung_up());
        }
        let all = matches!(self.stage, Stage::Answering) && self.write()?;
        anyhow::ensure!(all || Instant::now() < self.until, "it took too long");
        Ok(!all)
    }

    fn refuse(&mut self, error: &Error) {
        self.answer(&Reply::Refused(Refusal::from(error)));
    }

    fn answer(&mut self, reply: &Reply) {
        self.bytes = serde_json::to_vec(reply).expect("plain data serialises");
        self.bytes.push(b'\n');
        self.stage = Stage::Answering;
        self.until = Instant::now() + PATIENCE;
    }

    /// Takes what is there; true: the line is complete, or as long as it may be.
    fn read(&mut self) -> Result<bool> {
        let mut part = [0; 512];
        loop {
            if self.bytes.ends_with(b"\n") || self.bytes.len() > MAX_LINE {
                return Ok(true);
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(count) => self.bytes.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends what it can; true: all.
    fn write(&mut self) -> Result<bool> {
        while !self.bytes.is_empty() {
            match self.stream.write(&self.bytes) {
                Ok(count) => {
                    self.bytes.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Its end is closed; one that has only stopped to send still waits.
    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn understand(line: &[u8]) -> crate::engine::error::Result<Request> {
    if line.len() > MAX_LINE {
        let what = format!("a request of more than {MAX_LINE} bytes");
        return Err(Error::new(Kind::Protocol, what));
    }
    let request: Request = serde_json::from_slice(line)
        .map_err(|error| Error::new(Kind::Protocol, format!("not a request: {error}")))?;
    request.check()?;
    Ok(request)
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A store that started later may have put its own there.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(test)]
mod tests;
