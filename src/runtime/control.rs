// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's control socket: one JSON object a line, asked and answered.
//! Served by the main thread, never by an I/O thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::engine::error::{Error, Kind};
use crate::engine::view::{Request, Status};

/// Where the store answers unless a path is given.
pub const DEFAULT_SOCKET: &str = "/run/sluice/store.sock";
/// The longest request line.
const MAX_LINE: usize = 4096;
/// How long a client may take to say its line, all of it; the main thread waits.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a client waits for the store, which may be busy with its devices.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);

/// The bound socket; removed when dropped.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, to know whether it is still ours.
    identity: Option<(u64, u64)>,
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
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, identity: identity(path), path: path.to_path_buf() })
    }

    /// Answers one who waits, if any does.
    pub fn answer(&self, status: impl FnOnce() -> Status) {
        if let Ok((client, _)) = self.listener.accept()
            && let Err(error) = answer_one(client, status)
        {
            tracing::debug!("a control client: {error:#}");
        }
    }
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

fn answer_one(mut client: UnixStream, status: impl FnOnce() -> Status) -> Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let line = read_line(&client)?;
    let reply = match serde_json::from_str::<Request>(&line) {
        Ok(Request::Status {}) => serde_json::to_string(&status())?,
        Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
    };
    client.write_all(format!("{reply}\n").as_bytes())?;
    Ok(())
}

/// One line within [`PATIENCE`], however the client cuts it up.
fn read_line(mut client: &UnixStream) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && line.len() < MAX_LINE {
        let left = deadline.saturating_duration_since(Instant::now());
        anyhow::ensure!(!left.is_zero(), "it took too long to ask");
        client.set_read_timeout(Some(left))?;
        let mut part = [0; 512];
        let count = client.read(&mut part)?;
        if count == 0 {
            break;
        }
        line.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Asks the store on `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Status> {
    let place = || format!("the store on {}", socket.display());
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("{} does not answer", place()))?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .with_context(|| format!("{} broke off", place()))?;
    serde_json::from_str(&line).with_context(|| format!("{} answered {line:?}", place()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_busy_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.sock");
        let first = ControlSocket::bind(&path).unwrap();
        let error = ControlSocket::bind(&path).err().unwrap();
        assert_eq!(error.downcast_ref::<Error>().unwrap().kind(), Kind::Busy);
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        ControlSocket::bind(&path).unwrap();
    }

    #[test]
    fn nonsense_is_answered_with_an_error_and_the_next_client_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.sock");
        let socket = ControlSocket::bind(&path).unwrap();
        for nonsense in ["{}", "no json", r#"{"command":"explode"}"#] {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(format!("{nonsense}\n").as_bytes()).unwrap();
            socket.answer(|| unreachable!("no status was asked for"));
            let mut line = String::new();
            BufReader::new(client).read_line(&mut line).unwrap();
            assert!(line.starts_with(r#"{"error":"#), "{line}");
        }
    }
}
