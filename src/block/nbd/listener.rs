// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Unix-socket server for any NBD client: `nbdcopy`, `qemu-img`, `fio`.
//!
//! It owns the socket file and one thread per client, and knows nothing of what
//! is served: each client gets its own [`BlockIo`] from a factory. The kernel's
//! own connections never come through here. Logging and allocation are allowed
//! until a client's transmission starts.

mod client;
mod socket_file;

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::io::BlockIo;
use crate::engine::tier::Wake;

use super::connection;
use super::handshake::Export;
use super::waker::EventWaker;
use socket_file::SocketFile;

/// What a listener is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket file. Created with mode 0600; an abandoned one is replaced.
    pub path: PathBuf,
    /// What clients are offered.
    pub export: Export,
    /// Clients at a time, those in the handshake included. One more is closed at once.
    pub max_clients: usize,
    /// How long a client's handshake may take altogether.
    pub handshake_deadline: Duration,
    /// How each connection behaves.
    pub connection: connection::Options,
}

/// A bound socket that nobody is served from yet: clients queue up.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    file: SocketFile,
    options: Options,
}

/// A running server. Stop it with [`Server::stop`]; dropping it does the same.
#[derive(Debug)]
pub struct Server {
    clients: Arc<AtomicUsize>,
    stop: Arc<EventWaker>,
    acceptor: Option<JoinHandle<()>>,
}

impl Listener {
    /// Creates the socket file. Fails with [`Kind::Busy`] if somebody serves
    /// there and with [`Kind::Invalid`] if something else is in its place.
    pub fn bind(options: Options) -> Result<Self> {
        let (socket, file) = SocketFile::bind(&options.path)?;
        Ok(Self { socket, file, options })
    }

    /// Serves clients from now on, each from what `factory` makes for it. The
    /// waker that `factory` gets is the one to ring for that client's thread.
    pub fn serve<I, F>(self, factory: F) -> Result<Server>
    where
        I: BlockIo + 'static,
        F: Fn(Arc<EventWaker>) -> Result<I> + Send + Sync + 'static,
    {
        let stop = Arc::new(EventWaker::new()?);
        let acceptor = Acceptor {
            listener: self,
            factory: Arc::new(factory),
            stop: Arc::clone(&stop),
            clients: Arc::default(),
        };
        let clients = Arc::clone(&acceptor.clients);
        let thread = spawn("nbd-accept", move || acceptor.run())?;
        Ok(Server { clients, stop, acceptor: Some(thread) })
    }
}

impl Server {
    /// Clients connected now, those in the handshake included.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.clients.load(Ordering::Relaxed) as u32
    }

    /// Takes no more clients, answers what is open, closes every connection,
    /// removes the socket file, and returns when all of that is done.
    pub fn stop(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.stop.wake();
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            tracing::error!("the thread that accepts NBD clients panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Acceptor<F> {
    listener: Listener,
    factory: Arc<F>,
    stop: Arc<EventWaker>,
    clients: Arc<AtomicUsize>,
}

impl<F> Acceptor<F> {
    fn run<I>(self)
    where
        I: BlockIo + 'static,
        F: Fn(Arc<EventWaker>) -> Result<I> + Send + Sync + 'static,
    {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let Self { listener: Listener { socket, file, options }, .. } = &self;
        while wait_for_client(socket, &self.stop) {
            threads.retain(|thread| !thread.is_finished());
            let stream = match socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, path = %options.path.display(), "an NBD client was lost");
                    // Out of descriptors, most likely; the client is still
                    // queued, so accepting again at once would only spin.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let Some(seat) = Seat::take(&self.clients, options.max_clients) else {
                tracing::warn!(limit = options.max_clients, "an NBD client too many was closed");
                continue;
            };
            let (factory, stop) = (Arc::clone(&self.factory), Arc::clone(&self.stop));
            let options = options.clone();
            let serve = move || {
                client::serve(stream, &options, &*factory, &stop);
                drop(seat);
            };
            match spawn("nbd-client", serve) {
                Ok(thread) => threads.push(thread),
                Err(error) => tracing::warn!(%error, "an NBD client was closed"),
            }
        }
        file.remove();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread that served an NBD client panicked");
            }
        }
    }
}

/// One of the allowed clients; given back when dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(clients: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let more = |taken| (taken < limit).then_some(taken + 1);
        clients.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(clients)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Waits for a client or the end; false: the end.
fn wait_for_client(socket: &UnixListener, stop: &EventWaker) -> bool {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
        ];
        let ready = poll(&mut fds, None).is_ok();
        if ready && !fds[0].revents().is_empty() {
            return false;
        }
        if ready && !fds[1].revents().is_empty() {
            return true;
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|error| {
        Error::new(Kind::NoSpace, format!("no thread {name} can be started"))
            .with_hint("raise TasksMax of the service")
            .with_source(error)
    })
}
