// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transmission phase of one socket, on one thread.
//!
//! Each pass takes every request that is already there, lets the store work,
//! and sends the replies of what finished, in any order, in one gathered call.
//! Nothing waits for a batch to fill. While a device works and nothing else is to
//! do, it is looked at more often than the socket, which costs a system call.
//!
//! # Liveness contract
//! After [`Connection::new`] nothing here allocates, locks or logs. The thread
//! blocks in one place only, a `ppoll` on the socket, the waker and the stop
//! descriptor; sending and receiving never wait. While no request is open it
//! sleeps there without a timeout.
//!
//! # Ownership contract
//! A request whose memory a tier may still touch is driven to its end even when
//! the socket is gone. If that takes longer than [`Options::linger`], or if this
//! thread panics, dropping the [`Connection`] leaves the store's part to the
//! store ([`BlockIo::lose`]): memory that a GPU still writes to is never reused.

mod admission;
mod desk;
mod intake;
mod pace;
mod replies;
mod room;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::io::{BlockIo, Idle};

use super::wire::Malformed;
use desk::Desk;
use intake::{Halt, Intake, Received};
use pace::Pace;
use replies::Sent;
use room::Room;

pub use admission::{MAX_CLAIMED_PAYLOAD, TRANSMISSION_FLAGS};

/// Passes between two looks at the stop descriptor while there is always work.
const PASSES_PER_STOP_CHECK: u64 = 128;
/// Pause between two looks at the socket: a tighter loop only fights for its lock.
const PAUSE: Duration = Duration::from_micros(1);
/// How long a device alone is looked at before the next look at the socket.
const WATCH: Duration = Duration::from_micros(3);
/// How long a thread with open requests sleeps at most: deadlines are looked at then.
const DEADLINE_CHECK: Duration = Duration::from_secs(1);
/// The same while something has to happen that rings nothing.
const RETRY: Duration = Duration::from_millis(10);

/// Room for the replies to large reads: on a Unix socket the sender's buffer counts.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// How a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long to look for work before sleeping, at most; the time in force
    /// adapts below it, down to nothing. Zero: never look, e.g. on battery.
    pub spin: Duration,
    /// The same while requests come steadily, none longer than this after the
    /// last, and half of the machine's cores are free. Zero: never so long. Not
    /// for real-time threads: the kernel takes a core away from one that keeps it.
    pub long_spin: Duration,
    /// How long to wait for open requests, and for the client to read its
    /// replies, after the connection ended.
    pub linger: Duration,
}

impl Default for Options {
    /// 50 us of looking, or none where there is one CPU: the thread that would
    /// bring the work could not run meanwhile. With four CPUs or more 2 ms where
    /// that pays. A minute to linger.
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if cpus > 1 { Duration::from_micros(50) } else { Duration::ZERO };
        let long_spin = if cpus > 3 { Duration::from_millis(2) } else { Duration::ZERO };
        Self { spin, long_spin, linger: Duration::from_secs(60) }
    }
}

impl Options {
    /// For a real-time thread.
    #[must_use]
    pub fn real_time() -> Self {
        Self { long_spin: Duration::ZERO, ..Self::default() }
    }
}

/// Signs of life of one I/O thread, for a watchdog: while `is_busy`, `passes`
/// must keep growing.
#[derive(Debug, Default)]
pub struct Heartbeat {
    passes: AtomicU64,
    busy: AtomicBool,
}

impl Heartbeat {
    /// How often the thread went round its loop. It does so at least once a
    /// second while busy.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// False while the thread sleeps with nothing to do.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client said goodbye.
    Disconnected,
    /// The other end was closed without a goodbye.
    Closed,
    /// The stop descriptor became readable.
    Stopped,
    /// The stream went out of step.
    Malformed(Malformed),
    /// The client claimed a payload of this many bytes, above [`MAX_CLAIMED_PAYLOAD`].
    Oversized(u32),
    /// The socket failed with this errno.
    Failed(i32),
}

/// A connection's end. The socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub reason: Reason,
    /// Requests that never finished. Unless 0, the [`Connection`] cannot be used
    /// again and leaks its store's part.
    pub open: usize,
}

/// The descriptors of one connection.
#[derive(Debug)]
pub struct Sockets<'a> {
    /// The stream, at the start of the transmission phase. Closed at the end.
    pub socket: OwnedFd,
    /// Readable when the store completed something in the background; read empty here.
    pub wake: BorrowedFd<'a>,
    /// Readable, for good, when the connection shall end: open requests are
    /// answered, no more are taken. Not read from: many connections share it.
    pub stop: BorrowedFd<'a>,
}

/// Everything one connection will ever need. It can serve one socket after
/// another, which is how a kernel device is reconnected without allocating.
pub struct Connection<I: BlockIo> {
    desk: Desk<I>,
    intake: Intake,
    pace: Pace,
    room: Room,
    linger: Duration,
}

/// When and why no more requests are taken.
#[derive(Clone, Copy)]
struct Closing {
    reason: Reason,
    since: Duration,
}

impl<I: BlockIo> Connection<I> {
    /// Allocates all that serving from `io` takes.
    pub fn new(io: I, options: Options) -> Self {
        let mut desk = Desk::new(io);
        let intake = Intake::new(desk.limits());
        let pace = Pace::new(options.spin, options.long_spin);
        Self { desk, intake, pace, room: Room::new(), linger: options.linger }
    }

    /// The store's part, or `None` if it has requests that never finished: then
    /// it is leaked.
    pub fn into_io(self) -> Option<I> {
        self.desk.into_io()
    }

    /// Serves until the client leaves, the stream breaks or `stop` is readable.
    ///
    /// # Panics
    /// When an earlier run ended with open requests: their replies belong to
    /// another stream.
    pub fn run(&mut self, sockets: Sockets<'_>, heartbeat: &Heartbeat) -> Ended {
        assert_eq!(self.desk.open(), 0, "requests of an earlier stream are still open");
        let Sockets { socket, wake, stop } = sockets;
        // As large as the system lets it be, which is more for the privileged; a
        // smaller one only costs time.
        let _ = set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)
            .or_else(|_| set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES));
        let mut closing: Option<Closing> = None;
        let mut passes = 0;
        // Something finished and its reply waits: it goes before new requests.
        let mut answered = false;
        heartbeat.busy.store(true, Ordering::Relaxed);
        loop {
            passes += 1;
            heartbeat.passes.fetch_add(1, Ordering::Relaxed);
            let now = monotonic();
            let (mut moved, end) = match closing {
                None if !answered => self.take_requests(socket.as_fd()),
                _ => (answered, None),
            };
            answered = false;
            let owed = self.desk.open() > 0 || self.desk.idle() != Idle::Empty;
            if owed || self.intake.is_waiting() {
                moved |= self.desk.drive(now);
            }
            let (sent, stuck, broken) = self.send_replies(socket.as_fd());
            moved |= sent;
            let mut reason = end.or(broken);
            if passes % PASSES_PER_STOP_CHECK == 0 && is_readable(stop) {
                reason = reason.or(Some(Reason::Stopped));
            }
            if let (Some(reason), None) = (reason, closing) {
                self.intake.abandon(&mut self.desk);
                if !matches!(reason, Reason::Disconnected | Reason::Stopped) {
                    // The client may ask the same of another connection now.
                    self.desk.cancel();
                }
                closing = Some(Closing { reason, since: now });
            }
            if let Some(Closing { reason, since }) = closing {
                let done = self.desk.open() == 0 && self.desk.replies() == 0;
                if done || now.saturating_sub(since) > self.linger {
                    return self.end(&socket, reason, heartbeat);
                }
            }
            if moved {
                self.pace.worked(now);
            } else if self.desk.idle() == Idle::Device && self.pace.watches_device(now) {
                answered = self.watch(now);
            } else if self.pace.looks_again(now)
                || (self.pace.looks_long(now) && self.room.is_there(now))
            {
                pause(now);
            } else {
                let waiting = Waiting { socket: socket.as_fd(), wake, stop, stuck };
                if self.sleep(&waiting, closing.is_some(), heartbeat) {
                    self.intake.abandon(&mut self.desk);
                    closing = Some(Closing { reason: Reason::Stopped, since: monotonic() });
                }
            }
        }
    }

    /// Receives and starts. Returns whether anything moved, and the end if it came.
    fn take_requests(&mut self, socket: BorrowedFd<'_>) -> (bool, Option<Reason>) {
        let mut moved = false;
        let mut end = None;
        if self.intake.wants_bytes() {
            match self.intake.receive(socket, &self.desk) {
                Received::Bytes => moved = true,
                Received::Nothing => {}
                Received::End | Received::Failed(Errno::CONNRESET) => end = Some(Reason::Closed),
                Received::Failed(errno) => end = Some(Reason::Failed(errno.raw_os_error())),
            }
        }
        match self.intake.advance(&mut self.desk) {
            Ok(advanced) => moved |= advanced,
            Err(Halt::Leave) => end = Some(Reason::Disconnected),
            Err(Halt::Oversized(bytes)) => end = Some(Reason::Oversized(bytes)),
            Err(Halt::Malformed(malformed)) => end = Some(Reason::Malformed(malformed)),
        }
        (moved, end)
    }

    /// Sends. Returns whether any reply is out, what holds up the others, and the
    /// end if nobody reads any more.
    fn send_replies(&mut self, socket: BorrowedFd<'_>) -> (bool, Stuck, Option<Reason>) {
        let before = self.desk.replies();
        if before == 0 {
            return (false, Stuck::No, None);
        }
        let sent = self.desk.send(socket);
        let moved = self.desk.replies() < before;
        match sent {
            Sent::All => (true, Stuck::No, None),
            Sent::Blocked => (moved, Stuck::SocketFull, None),
            Sent::Starved => (moved, Stuck::NoMemory, None),
            Sent::Broken(errno) => {
                self.desk.discard_replies();
                let reason = match errno {
                    Errno::PIPE | Errno::CONNRESET => Reason::Closed,
                    other => Reason::Failed(other.raw_os_error()),
                };
                (true, Stuck::No, Some(reason))
            }
        }
    }

    /// Looks at the device for a moment; true: something finished.
    fn watch(&mut self, from: Duration) -> bool {
        loop {
            let now = monotonic();
            if self.desk.drive(now) {
                return true;
            }
            if now.saturating_sub(from) >= WATCH {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until something happens that this thread can act on. True: stop.
    fn sleep(&mut self, on: &Waiting<'_>, closing: bool, heartbeat: &Heartbeat) -> bool {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, !closing && self.intake.wants_bytes());
        interest.set(PollFlags::OUT, on.stuck == Stuck::SocketFull);
        let open = self.desk.open() > 0;
        // A descriptor without interest is not watched at all: its hang-up would
        // end every sleep at once. An eventfd never hangs up.
        let nothing = || PollFd::from_borrowed_fd(on.stop, PollFlags::empty());
        let watch = |fd, interest| PollFd::from_borrowed_fd(fd, interest);
        let mut set = [
            if closing { nothing() } else { watch(on.stop, PollFlags::IN) },
            if open { watch(on.wake, PollFlags::IN) } else { nothing() },
            if interest.is_empty() { nothing() } else { watch(on.socket, interest) },
        ];
        let longest = match self.desk.idle() {
            // Without an open request: what was given up may still be answered.
            Idle::Woken if on.stuck != Stuck::NoMemory => Some(DEADLINE_CHECK),
            Idle::Device | Idle::Poll | Idle::Empty if open => Some(self.pace.next_nap()),
            _ if on.stuck == Stuck::NoMemory => Some(self.pace.next_nap()),
            _ if self.intake.is_waiting() || closing => Some(RETRY),
            _ => None,
        };
        let timeout = longest.and_then(|longest| Timespec::try_from(longest).ok());
        heartbeat.busy.store(longest.is_some(), Ordering::Relaxed);
        // An interrupted or failed poll is one more pass around the loop.
        let _ = poll(&mut set, timeout.as_ref());
        heartbeat.busy.store(true, Ordering::Relaxed);
        if open && !set[1].revents().is_empty() {
            // Before the store is driven, so that no later ring is lost.
            let _ = rustix::io::read(on.wake, &mut [0; 8]);
        }
        !closing && !set[0].revents().is_empty()
    }

    fn end(&mut self, socket: &OwnedFd, reason: Reason, heartbeat: &Heartbeat) -> Ended {
        // Closing alone would not reach the other end while somebody holds a copy.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        self.desk.discard_replies();
        heartbeat.busy.store(false, Ordering::Relaxed);
        Ended { reason, open: self.desk.open() }
    }
}

struct Waiting<'a> {
    socket: BorrowedFd<'a>,
    wake: BorrowedFd<'a>,
    stop: BorrowedFd<'a>,
    stuck: Stuck,
}

/// What holds up replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    No,
    SocketFull,
    NoMemory,
}

/// The monotonic clock, the same for all threads.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
}

fn pause(from: Duration) {
    while monotonic().saturating_sub(from) < PAUSE {
        for _ in 0..8 {
            std::hint::spin_loop();
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
