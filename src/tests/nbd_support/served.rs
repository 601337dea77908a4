// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection on its own thread, at the other end of a socketpair.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sluice::block::nbd::connection::{Connection, Ended, Heartbeat, Options, Sockets};
use sluice::block::nbd::waker::EventWaker;
use sluice::engine::tier::Wake;

use super::client::Client;
use super::memory_io::{Disk, MemoryIo, Style};

/// Small enough to overrun, and no multiple of anything.
pub const DISK_BYTES: usize = 8 << 20;

pub struct Served {
    pub client: Client,
    pub disk: Arc<Disk>,
    pub stop: Arc<EventWaker>,
    pub heartbeat: Arc<Heartbeat>,
    thread: JoinHandle<(Ended, bool)>,
}

pub fn options() -> Options {
    Options {
        spin: Duration::from_micros(20),
        long_spin: Duration::ZERO,
        linger: Duration::from_secs(600),
    }
}

impl Served {
    pub fn new(style: Style) -> Self {
        Self::with(style, options(), |run| run())
    }

    /// `around` runs on the server's thread and calls its argument.
    pub fn with(
        style: Style,
        options: Options,
        around: impl FnOnce(&mut dyn FnMut()) + Send + 'static,
    ) -> Self {
        let disk = Disk::new(DISK_BYTES);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wake = Arc::new(EventWaker::new().unwrap());
        let stop = Arc::new(EventWaker::new().unwrap());
        let heartbeat = Arc::new(Heartbeat::default());
        let io = MemoryIo::new(disk.clone(), style, wake.clone());
        let (stopper, beat) = (stop.clone(), heartbeat.clone());
        let thread = std::thread::spawn(move || {
            let mut connection = Connection::new(io, options);
            let mut socket = Some(theirs.into());
            let mut ended = None;
            around(&mut || {
                let sockets = Sockets {
                    socket: socket.take().unwrap(),
                    wake: wake.as_fd(),
                    stop: stopper.as_fd(),
                };
                ended = Some(connection.run(sockets, &beat));
            });
            (ended.unwrap(), connection.into_io().is_some())
        });
        Self { client: Client::new(ours), disk, stop, heartbeat, thread }
    }

    pub fn stop(&self) {
        self.stop.wake();
    }

    /// Waits for the server's thread; the client's socket stays open until then.
    pub fn join(self) -> (Ended, Client, Arc<Disk>) {
        (ended(self.thread), self.client, self.disk)
    }

    /// Closes the client's socket first.
    pub fn hang_up(self) -> (Ended, Arc<Disk>) {
        drop(self.client);
        (ended(self.thread), self.disk)
    }
}

fn ended(thread: JoinHandle<(Ended, bool)>) -> Ended {
    let (ended, got_store_back) = thread.join().expect("the server panicked");
    assert_eq!(ended.open == 0, got_store_back, "a store in use came back, or a free one did not");
    ended
}
