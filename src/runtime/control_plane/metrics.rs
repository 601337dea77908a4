// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[metrics]`: answers Prometheus over HTTP, on a Unix socket or a loopback
//! address. A scrape looks at the store anew, so that no number is older than it.
//! Who asks is not trusted: a request is short, is said in time, and few at once.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::sleep;

mod http;

use self::http::{Stream, answer};
use super::store_link;
use crate::bus::manager::{Shared, read};
use crate::config::metrics::Listen;
use crate::engine::view::{ControlState, metrics};

/// How long a client may take to ask, and again to take its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients at a time; others wait until one is answered.
const MAX_CLIENTS: usize = 8;
/// Between two tries to listen.
const AGAIN: Duration = Duration::from_secs(10);

/// What is asked in a scrape.
#[derive(Clone)]
pub(super) struct Source {
    /// The store's control socket.
    pub socket: PathBuf,
    /// The control plane.
    pub control: Shared<ControlState>,
}

impl Source {
    async fn text(&self) -> String {
        let store = store_link::look(&self.socket).await;
        let store = store.map_err(|error| tracing::debug!("for metrics: {error}")).ok().flatten();
        metrics::text(store.as_deref(), Some(&read(&self.control)))
    }
}

/// Answers until it is dropped.
pub(super) struct Server {
    /// Where.
    pub listen: Listen,
    task: JoinHandle<()>,
}

impl Server {
    pub fn start(listen: Listen, source: Source) -> Self {
        let task = tokio::spawn(serve(listen.clone(), source));
        Self { listen, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Listener {
    Unix { listener: UnixListener, _file: SocketFile },
    Loopback(TcpListener),
}

/// Removed with its listener.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Loopback(address) => Ok(Self::Loopback(TcpListener::bind(address).await?)),
            Listen::Unix(path) => {
                make_room(path)?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                // As on the bus, everybody may look who can come here.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
                Ok(Self::Unix { listener, _file: file })
            }
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix { listener, .. } => Box::new(listener.accept().await?.0),
            Self::Loopback(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Makes the folder, and removes the socket of a process that was killed.
fn make_room(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        // Not ours: to listen fails.
        _ => Ok(()),
    }
}

async fn serve(listen: Listen, source: Source) {
    let mut complained = false;
    let listener = loop {
        match Listener::bind(&listen).await {
            Ok(listener) => break listener,
            Err(error) if !complained => {
                tracing::error!("no metrics at {listen}, which is tried again: {error}");
                complained = true;
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    };
    tracing::info!("metrics are at {listen}");
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok(stream) => {
                let source = source.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, PATIENCE, || source.text()).await {
                        tracing::debug!("a client of metrics: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("metrics: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/metrics");
        let listen = Listen::Unix(path.clone());
        let first = Listener::bind(&listen).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        // Killed: nothing removes it.
        let Listener::Unix { listener, _file: file } = first else { panic!("a Unix socket") };
        drop(listener);
        std::mem::forget(file);
        let second = Listener::bind(&listen).await.unwrap();
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "somebody's").unwrap();
        let error = Listener::bind(&listen).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
    }
}
