// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that answer requests, and how each is armoured before it does.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use crate::block::nbd::connection::{Connection, Heartbeat, Options, Reason, Sockets};
use crate::block::nbd::waker::EventWaker;
use crate::engine::io::BlockIo;
use crate::engine::session::Session;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::window::Window;
use crate::host::armour;
use crate::host::memory::{Arena, Lock};

/// Host memory of one session: what all its open requests' data fits in.
pub const ARENA_BYTES: usize = 8 << 20;
/// The largest payload of one request; the kernel's default limit is 1.25 MiB.
pub const MAX_PAYLOAD: u32 = 4 << 20;
/// Stack of every thread of the store; all of it is locked.
pub const STACK_BYTES: usize = 256 << 10;
/// How much of it is touched before a thread serves.
const STACK_TOUCHED: usize = 128 << 10;

/// What the names of I/O threads begin with.
const NAME: &str = "sluice-io-";

/// From here on a panic of an I/O thread or a tier's worker says nothing: the
/// usual message allocates and may wait for a log that is swapped out to us.
pub fn panic_quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let quiet = thread.name().is_some_and(|name| {
            name.starts_with(NAME) || name.starts_with(crate::tier::spill::WORKER_NAME)
        });
        if !quiet {
            usual(panic);
        }
    }));
}

/// A session over a part of the store, and what rings for it.
pub type Part = Window<Session>;

/// Makes a session over `bytes` of the store's address space.
pub fn session(
    store: &Arc<Store>,
    bytes: Range<u64>,
    lock: Lock,
    waker: Arc<EventWaker>,
) -> Result<Part> {
    let memory = Arc::new(Arena::new(ARENA_BYTES, lock)?);
    let session = Session::new(Arc::clone(store), memory, MAX_PAYLOAD, waker)?;
    Ok(Window::new(session, bytes))
}

/// Prepares the calling thread to be one that the kernel's memory depends on:
/// real-time, with its stack in place.
pub fn armour_thread() -> Result<()> {
    armour::touch_stack(STACK_TOUCHED)?;
    armour::set_realtime_fifo(1)?;
    Ok(())
}

/// A connection's end, as its thread reports it.
#[derive(Debug)]
pub struct End {
    /// Which device it served.
    pub device: usize,
    /// Which of that device's threads it was.
    pub generation: u64,
    /// Why it ended; `None`: the thread panicked.
    pub reason: Option<Reason>,
    /// Requests that a tier never answered; their memory is kept for ever.
    pub stuck: usize,
}

/// How and as whom a thread reports its end.
pub struct Report {
    /// The device's position among ours.
    pub device: usize,
    /// Which of that device's threads it is.
    pub generation: u64,
    /// Where the end goes.
    pub ends: Sender<End>,
    /// Rung afterwards.
    pub bell: Arc<EventWaker>,
}

/// A running I/O thread of a kernel device.
pub struct IoThread {
    /// Its signs of life.
    pub heartbeat: Arc<Heartbeat>,
    handle: JoinHandle<()>,
}

impl IoThread {
    /// Serves `part` on `socket` in a thread of its own, which reports its end;
    /// `stop` readable ends it.
    ///
    /// Returns when the thread is armoured, with its error if that failed.
    pub fn spawn(
        mut part: Part,
        wake: Arc<EventWaker>,
        socket: OwnedFd,
        stop: Arc<EventWaker>,
        report: Report,
    ) -> Result<Self> {
        let heartbeat = Arc::<Heartbeat>::default();
        let shown = Arc::clone(&heartbeat);
        let (armoured, ready) = std::sync::mpsc::sync_channel(1);
        let handle = std::thread::Builder::new()
            .name(format!("{NAME}{}", report.device))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let result = armour_thread();
                let failed = result.is_err();
                part.enter();
                let mut connection = Connection::new(part, Options::real_time());
                let _ = armoured.send(result);
                if failed {
                    return;
                }
                let sockets = Sockets { socket, wake: wake.as_fd(), stop: stop.as_fd() };
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    guard(true);
                    connection.run(sockets, &shown)
                }));
                guard(false);
                let (reason, stuck) = if let Ok(ended) = ended {
                    (Some(ended.reason), ended.open)
                } else {
                    // Requests may be open in a tier: the store ends them.
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(connection)));
                    (None, 0)
                };
                let Report { device, generation, ends, bell } = report;
                let _ = ends.send(End { device, generation, reason, stuck });
                bell.wake();
            })
            .context("cannot start an I/O thread")?;
        ready.recv().context("an I/O thread died before it served")??;
        Ok(Self { heartbeat, handle })
    }

    /// Waits for the thread, which was told to stop or lost its socket.
    pub fn join(self) {
        if self.handle.join().is_err() {
            tracing::error!("an I/O thread panicked");
        }
    }
}

/// In test builds, from here on (or no longer) an allocation by this thread
/// ends the process.
fn guard(on: bool) {
    #[cfg(feature = "malloc-guard")]
    super::malloc_guard::arm(on);
    #[cfg(not(feature = "malloc-guard"))]
    let _ = on;
}
