// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store hold`: the parent that outlives the store.
//!
//! It does no I/O for anybody, loads no GPU library, starts no thread and, once
//! it has begun, allocates nothing. It waits for the store to say something or
//! to die. That is also why it tells an errno by its number: the text of one
//! would have to be allocated.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::message::{BYTES, End, Kind, Message, Role};
use super::vault::{DESCRIPTORS, Vault};
use super::voice::Voice;
use crate::host::armour;
use crate::host::handover;
use crate::host::kept::Reserve;
use crate::host::process::{Ended, Image, Process, Program};
use crate::host::signals::Signals;

/// A store that lives shorter and never served was not worth starting at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The longest pause before a store is started that keeps dying.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The shortest.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two steps of taking the reserve.
const RESERVE_STEP: Duration = Duration::from_millis(200);
/// The largest reserve.
const RESERVE_BYTES: usize = 64 << 20;
/// Stack in place before the first start.
const STACK_TOUCHED: usize = 64 << 10;

/// How a holder is told to work.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store's configuration.
    pub config: PathBuf,
    /// The store's control socket; [`super::hold_socket`] is beside it.
    pub socket: PathBuf,
    /// What a reload executes; `None`: the path of this program.
    pub executable: Option<PathBuf>,
    /// Only take over a store that lives; start none.
    pub adopt_only: bool,
}

/// Where a holder is.
///
/// ```text
///  (start) ── a store lives and has no holder ──► Adopting ── it serves ──┐
///     │ none lives                                                        ▼
///     ▼                                                    ┌───────── Serving
///  Starting ── it serves ──────────────────────────────────┘              │
///     ▲  ▲ │ dies                                                         │ dies
///     │  │ ▼                                                              ▼
///     │  └─ Pausing ◄── it died at once and never served ◄── its sockets are cut
///     └──────────────── any other death, or it handed over ◄──────────────┤
///                                                                         │
///   (exit) ◄── it said that it is finished, or holds nothing and ended ◄──┤
///   Keeping ◄── it said that it cannot trust the index ◄──────────────────┘
///      └── SIGHUP ──► Starting
/// ```
/// In every state the vault belongs to the holder; a store that is alive has
/// its own descriptors of the same memory. Only `Keep` and `Forget` of a living
/// store change the vault, its death only takes the sockets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A living store is giving us what it has.
    Adopting,
    /// A store runs and has not answered a request yet.
    Starting,
    /// A store answers requests.
    Serving,
    /// No store runs; the next one is started then.
    Pausing(Instant),
    /// No store runs, and none is started unasked.
    Keeping,
}

/// The exit code of a holder that did not get everything; it is to be restarted.
const HALF_TAKEN: u8 = 3;

struct Holder {
    state: State,
    vault: Vault,
    voice: Voice,
    reserve: Reserve,
    program: Program,
    /// This very program, for as long as no store has sent its own.
    own: File,
    store: Option<Process>,
    link: Option<OwnedFd>,
    /// What the store said about its end, and the exit code it named.
    goodbye: Option<(End, u32)>,
    started: Instant,
    /// Deaths in a row without service.
    deaths: u32,
    /// Told to end: said again to every store that is started.
    stop: bool,
    /// The store that runs was started from the program's path, not from memory.
    from_path: bool,
}

/// Holds a store until it is finished; the exit code is the store's.
pub fn main(options: &Options) -> ExitCode {
    match Holder::new(options) {
        Ok((mut holder, signals)) => holder.run(&signals),
        Err(error) => super::super::report(Err(error)),
    }
}

impl Holder {
    fn new(options: &Options) -> Result<(Self, Signals)> {
        let signals = Signals::block()?;
        super::call_process(c"sluice-hold");
        let voice = Voice::new();
        let root = std::path::Path::new("/");
        armour::set_io_flusher()?;
        armour::set_oom_score_adj(root, -1000)?;
        armour::raise_nofile(DESCRIPTORS)?;
        let link = match handover::connect(&super::hold_socket(&options.socket)) {
            Ok(link) => Some(link),
            Err(Errno::NOENT | Errno::CONNREFUSED) if !options.adopt_only => None,
            Err(errno) => {
                return Err(errno).with_context(|| {
                    format!("no store can be asked on {}", options.socket.display())
                });
            }
        };
        let store = link
            .as_ref()
            .map(|link| handover::peer(link.as_fd()).and_then(|(pid, _)| Process::open(pid)))
            .transpose()
            .context("cannot watch the store that lives")?;
        let own = File::open("/proc/self/exe").context("cannot open this program")?;
        let program = program(options)?;
        let floor = armour::free_memory_floor(root)?;
        armour::touch_stack(STACK_TOUCHED)?;
        let vault = Vault::new();
        // Not what is mapped later: that is locked piece by piece, or not at all.
        armour::lock_present_memory()?;
        let reserve = Reserve::new(RESERVE_BYTES, floor).context("cannot map a reserve")?;
        armour::set_realtime_fifo(1)?;
        let holder = Self {
            state: State::Adopting,
            vault,
            voice,
            reserve,
            program,
            own,
            store,
            link,
            goodbye: None,
            started: Instant::now(),
            deaths: 0,
            stop: false,
            from_path: false,
        };
        Ok((holder, signals))
    }

    fn run(&mut self, signals: &Signals) -> ExitCode {
        guard(true);
        if self.link.is_none() {
            self.start(true);
        }
        let code = loop {
            self.wait(signals);
            let heard = signals.heard();
            if heard.end {
                self.stop = true;
                if self.store.is_none() && self.vault.holds_pages() {
                    self.voice.say(format_args!("pages are held: this does not end"));
                }
                self.signal(Signal::TERM);
            }
            if heard.hang_up {
                if self.state == State::Keeping {
                    self.start(true);
                } else {
                    self.signal(Signal::HUP);
                }
            }
            let code = self.listen();
            if code.is_some() {
                break code;
            }
            let lives = !self.store.as_ref().is_some_and(is_readable);
            if self.state == State::Adopting && self.link.is_none() && lives {
                // What came is not everything, and is false as soon as the store
                // goes on. Another holder begins from nothing.
                self.voice.say(format_args!("the store did not hand over everything"));
                break Some(ExitCode::from(HALF_TAKEN));
            }
            if self.store.as_ref().is_some_and(is_readable) {
                // What it said last may have come after the look above.
                let code = self.listen().or_else(|| self.died());
                if code.is_some() {
                    break code;
                }
            }
            if let State::Pausing(until) = self.state
                && until <= Instant::now()
            {
                self.start(false);
            }
            if self.store.is_none() && self.stop && !self.vault.holds_pages() {
                break Some(ExitCode::SUCCESS);
            }
            if self.state == State::Serving
                && let Err(errno) = self.reserve.grow()
            {
                let held = self.reserve.held() as u64;
                self.reserve.want(held);
                self.voice.say(format_args!(
                    "no more than {held} bytes of reserve: errno {}",
                    errno.raw_os_error()
                ));
            }
        };
        guard(false);
        code.unwrap_or(ExitCode::FAILURE)
    }

    fn wait(&self, signals: &Signals) {
        let nothing = || PollFd::new(signals, PollFlags::empty());
        let mut fds = [PollFd::new(signals, PollFlags::IN), nothing(), nothing()];
        if let Some(link) = &self.link {
            fds[1] = PollFd::new(link, PollFlags::IN);
        }
        if let Some(store) = &self.store {
            fds[2] = PollFd::new(store, PollFlags::IN);
        }
        let patience = match self.state {
            State::Pausing(until) => Some(until.saturating_duration_since(Instant::now())),
            State::Serving if self.reserve.is_short() => Some(RESERVE_STEP),
            _ => None,
        };
        let timeout = patience.and_then(|time| Timespec::try_from(time).ok());
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn signal(&self, signal: Signal) {
        if let Some(store) = &self.store {
            let _ = store.signal(signal);
        }
    }

    /// Reads what the store says. A code: this process ends.
    fn listen(&mut self) -> Option<ExitCode> {
        let mut record = [0; BYTES];
        loop {
            let link = self.link.as_ref()?;
            match handover::receive(link.as_fd(), &mut record) {
                Ok((0, _)) => self.link = None,
                Ok((bytes, passed)) => {
                    // A record of a newer version is not understood, and not needed.
                    if let Some(message) = Message::decode(&record[..bytes]) {
                        let code = self.hear(&message, passed);
                        if code.is_some() {
                            return code;
                        }
                    }
                }
                Err(Errno::AGAIN) => return None,
                Err(errno) => {
                    self.voice.say(format_args!(
                        "the store's link failed: errno {}",
                        errno.raw_os_error()
                    ));
                    self.link = None;
                }
            }
        }
    }

    fn hear(&mut self, message: &Message, passed: Option<OwnedFd>) -> Option<ExitCode> {
        match message.kind {
            Kind::Hello => self.give_everything(),
            Kind::Keep => {
                let done = passed.ok_or(Errno::BADF).and_then(|fd| {
                    self.vault.keep(message.role, message.number, fd, message.bytes)
                });
                let mut answer = Message::about(Kind::Answer, message.role, message.number);
                answer.sequence = message.sequence;
                answer.code = done.err().map_or(0, Errno::raw_os_error);
                // Sequence 0 waits for no answer, and nobody would read it.
                if message.sequence != 0 {
                    self.send(&answer, None);
                }
            }
            Kind::Forget => self.vault.forget(message.role, message.number),
            Kind::Serving => {
                if self.state == State::Adopting {
                    self.voice
                        .say(format_args!("took over a store with {} slabs", self.vault.slabs()));
                    self.voice.notify(format_args!("READY=1"));
                }
                self.state = State::Serving;
                self.deaths = 0;
                self.reserve.want(message.bytes);
            }
            Kind::Goodbye => {
                if !message.text().is_empty() {
                    self.voice.say(format_args!("the store ends: {}", message.text()));
                }
                self.goodbye = message.end().map(|end| (end, message.number));
            }
            Kind::Taken => {
                self.voice.say(format_args!(
                    "process {} holds the store already; end it first, or leave it",
                    message.number
                ));
                return Some(ExitCode::FAILURE);
            }
            Kind::Item | Kind::All | Kind::Answer => {}
        }
        None
    }

    fn give_everything(&mut self) {
        let mut count = 0;
        let mut all_sent = true;
        for thing in self.vault.iter().filter(|thing| thing.role != Role::Socket) {
            let mut item = Message::about(Kind::Item, thing.role, thing.number);
            item.bytes = thing.bytes;
            all_sent = all_sent && self.send(&item, Some(thing.fd()));
            count += 1;
        }
        if !all_sent {
            // Half would be taken for all: this store must not begin.
            self.link = None;
            return;
        }
        let mut all = Message::new(Kind::All);
        all.number = count;
        self.send(&all, None);
    }

    /// Sends a record, waiting for the store to take it or to die. False: it died.
    fn send(&self, message: &Message, passed: Option<std::os::fd::BorrowedFd<'_>>) -> bool {
        let (Some(link), Some(store)) = (&self.link, &self.store) else { return false };
        let record = message.encode();
        loop {
            match handover::send(link.as_fd(), &record, passed) {
                Ok(()) => return true,
                Err(Errno::AGAIN) => {
                    let mut fds =
                        [PollFd::new(link, PollFlags::OUT), PollFd::new(store, PollFlags::IN)];
                    let _ = poll(&mut fds, None);
                    if !fds[1].revents().is_empty() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
    }

    /// The store is dead. A code: this process ends.
    fn died(&mut self) -> Option<ExitCode> {
        let ended = self.store.take().map_or(Ended::Unknown, |store| store.reap());
        // First of all: the kernel waits for this.
        self.vault.cut_sockets();
        self.link = None;
        let served = self.state == State::Serving;
        match (self.goodbye.take(), ended) {
            (Some((End::Finished, code)), _) => {
                return Some(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            (Some((End::HandingOver, _)), _) => self.start(true),
            // The program that served a moment ago is in memory still.
            (Some((End::Distrust, _)), _) if self.from_path => self.start(false),
            (Some((End::Distrust, _)), _) => self.keep_without_a_store(),
            (Some((End::Failed, _)), _) => self.start_again(served),
            (None, Ended::Exited(code)) if !self.vault.holds_pages() => {
                return Some(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            (None, Ended::Unknown) if !self.vault.holds_pages() => return Some(ExitCode::FAILURE),
            (None, _) => {
                self.start_again(served);
                // After the start: it must wait for nothing.
                self.tell_death(ended);
            }
        }
        None
    }

    fn start_again(&mut self, served: bool) {
        if served || self.started.elapsed() > SHORT_LIFE {
            self.start(false);
        } else {
            self.deaths = self.deaths.saturating_add(1);
            let pause = PAUSE.saturating_mul(1 << self.deaths.min(16)).min(LONGEST_PAUSE);
            self.state = State::Pausing(Instant::now() + pause);
        }
    }

    fn tell_death(&self, ended: Ended) {
        let slabs = self.vault.slabs();
        match ended {
            Ended::Exited(code) => self.voice.say(format_args!(
                "the store ended with code {code}; {slabs} slabs are held, another takes over"
            )),
            Ended::Killed(signal) => self.voice.say(format_args!(
                "the store was killed by signal {signal}; {slabs} slabs are held, another takes over"
            )),
            Ended::Unknown => self.voice.say(format_args!(
                "the store is dead; {slabs} slabs are held, another takes over"
            )),
        }
    }

    fn keep_without_a_store(&mut self) {
        self.state = State::Keeping;
        let slabs = self.vault.slabs();
        self.voice.say(format_args!(
            "{slabs} slabs are held and nobody serves them; systemctl reload starts another store"
        ));
        self.voice.notify(format_args!("STATUS=holding {slabs} slabs that no store serves"));
    }

    /// Starts a store: of the program at the path, if `afresh` and that runs;
    /// else of the program that the last one ran, which is in memory.
    fn start(&mut self, afresh: bool) {
        self.from_path = false;
        self.reserve.release();
        self.started = Instant::now();
        let afresh = afresh && self.vault.find(Role::Program, 0).is_some();
        let started = if afresh {
            self.try_start(true).map(|()| self.from_path = true).or_else(|errno| {
                let path = self.program.path().to_str().unwrap_or("its path");
                self.voice.say(format_args!(
                    "cannot start {path}: errno {}; the old one goes on",
                    errno.raw_os_error()
                ));
                self.try_start(false)
            })
        } else {
            self.try_start(false)
        };
        match started {
            Ok(()) => {
                self.state = State::Starting;
                if self.stop {
                    self.signal(Signal::TERM);
                }
            }
            Err(errno) => {
                self.voice.say(format_args!(
                    "cannot start a store: errno {}; trying again",
                    errno.raw_os_error()
                ));
                self.state = State::Pausing(Instant::now() + SHORT_LIFE);
            }
        }
    }

    fn try_start(&mut self, at_path: bool) -> Result<(), Errno> {
        let (ours, theirs) = handover::pair()?;
        let image = match self.vault.find(Role::Program, 0) {
            _ if at_path => Image::AtPath,
            Some(program) => Image::Open(program.fd()),
            None => Image::Open(self.own.as_fd()),
        };
        self.store = Some(self.program.start(image, theirs.as_fd())?);
        self.link = Some(ours);
        Ok(())
    }
}

/// `run --held FD` with our own options, called by our own name: its first
/// letter may be the mark that exempts storage from the last kill at shutdown.
fn program(options: &Options) -> Result<Program> {
    let path = match &options.executable {
        Some(path) => path.clone(),
        None => std::fs::read_link("/proc/self/exe").context("cannot find this program")?,
    };
    let name = std::env::args_os().next().unwrap_or_else(|| path.clone().into());
    let (config, socket) = (&options.config, &options.socket);
    let arguments = vec![
        name,
        "run".into(),
        "--held".into(),
        Program::PASSED.into(),
        "--config".into(),
        config.into(),
        "--socket".into(),
        socket.into(),
    ];
    Program::new(path.into(), arguments).context("a path has a NUL in it")
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// In test builds, from here on an allocation ends this process.
fn guard(on: bool) {
    #[cfg(feature = "malloc-guard")]
    super::super::malloc_guard::arm(on);
    #[cfg(not(feature = "malloc-guard"))]
    let _ = on;
}
