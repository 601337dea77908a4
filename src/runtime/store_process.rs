// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store run`: the process that holds swapped pages.
//!
//! ```text
//!   Starting ── memory locked, tiers held ──► Armed ── attached, swap on ──► Serving
//!      │ any failure: undone in reverse                                        │ SIGTERM
//!      ▼                                                                       ▼
//!    (exit 1)        Stopped ◄── disconnected, threads ended ◄── swap off ── Draining
//!                                                  swap stays on: retried, still serving
//! ```
//! The main thread may allocate, log and wait; I/O threads do none of these.
//! It never ends while the kernel swaps to one of its devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

use super::assembly::Plan;
use super::attach::{self, Device};
use super::control::ControlSocket;
use super::detach::{self, Detaching};
use super::io_thread::{self, End, IoThread};
use super::keeper::{Keeper, Orders};
use super::status;
use super::undo::Undo;
use super::watchdog::Watchdog;
use super::{logging, report};
use crate::block::nbd::connection::Reason;
use crate::block::nbd::netlink::{Events, Family};
use crate::block::nbd::waker::EventWaker;
use crate::config::{self, Config};
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::{ByteLen, EXTENT_BYTES};
use crate::engine::view::{State, Status};
use crate::host::armour;
use crate::host::memory::Lock;
use crate::host::modules::{ensure_module, require_kernel};
use crate::host::signals::Signals;
use crate::host::swap;

/// Descriptors the store may need: slabs, sockets, wakers, with room to spare.
const DESCRIPTORS: u64 = 16384;
/// After a failed drain, before the next.
const DRAIN_AGAIN: Duration = Duration::from_secs(30);
/// After a failure of the main loop itself.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Reads the configuration, starts logging and runs the store; the exit code is
/// 2 for a configuration that cannot be used, 1 for any other failure.
pub fn main(config: &Path, socket: &Path) -> ExitCode {
    match config::load(Path::new("/"), config) {
        Ok(config) => {
            logging::start(config.log.level);
            report(run(&config, socket))
        }
        Err(error) => {
            eprintln!("{error}\nNothing was changed.");
            ExitCode::from(2)
        }
    }
}

/// Runs a store until it is told to stop and nothing is swapped to it.
pub fn run(config: &Config, socket: &Path) -> Result<()> {
    let signals = Signals::block()?;
    armour_process()?;
    let control = ControlSocket::bind(socket)?;
    let mut store = StoreProcess::arm(config)?;
    store.tell_systemd(&[NotifyState::Ready]);
    store.main_loop(&signals, &control)
}

/// All that must hold before the first thread starts and the first page is
/// taken. Each refusal is final: an unarmoured store under swap deadlocks.
fn armour_process() -> Result<()> {
    let root = Path::new("/");
    let release = require_kernel(root)?;
    for ghost in swap::ghosts(root)? {
        tracing::warn!(
            "{} is a swap area whose back-end is gone ({:?}); its pages are lost and only a reboot clears it",
            ghost.entry.path.display(),
            ghost.sign
        );
    }
    armour::set_io_flusher()?;
    armour::set_oom_score_adj(root, -1000)?;
    armour::raise_nofile(DESCRIPTORS)?;
    let locked = armour::lock_all_memory(root)?;
    tracing::debug!("kernel {release}; {} locked", locked.locked);
    Ok(())
}

struct Channels {
    ends: Sender<End>,
    bell: Arc<EventWaker>,
    stop: Arc<EventWaker>,
}

/// What the main loop waits for beside its arguments.
struct Watch {
    links: Option<Events>,
    dog: Watchdog,
    detaching: Option<Detaching>,
    /// When to try to switch swap off, once told to stop.
    drain_at: Option<Instant>,
}

/// A store with its devices attached.
struct StoreProcess {
    store: Arc<Store>,
    channels: Channels,
    ended: Receiver<End>,
    family: Family,
    devices: Vec<(Device, Option<IoThread>)>,
    /// Bytes of the store's address space of each device.
    windows: Vec<std::ops::Range<u64>>,
    state: State,
    message: String,
    /// Last: it uses the store.
    _keeper: Keeper,
}

impl StoreProcess {
    /// From nothing to swap switched on, or nothing left behind.
    fn arm(config: &Config) -> Result<Self> {
        ensure_module(Path::new("/"), "nbd", &["max_part=0"])?;
        let mut family = Family::open(Path::new("/"))?;
        let plan = Plan::armed(config);
        let keeper_bell = Arc::new(EventWaker::new()?);
        let prepare = Arc::new(|| {
            if let Err(error) = io_thread::armour_thread() {
                tracing::warn!("a spill worker runs without real-time priority: {error:#}");
            }
        });
        let ring = Arc::clone(&keeper_bell) as Arc<dyn Wake>;
        let store = plan.build(&(prepare as Arc<dyn Fn() + Send + Sync>), ring)?;
        let orders =
            Orders { target_slabs: plan.fast_slabs(), reserve: plan.reserve, lock: Lock::Required };
        let keeper = Keeper::start(&store, keeper_bell, orders)?;
        let (ends, ended) = channel();
        let channels = Channels {
            ends,
            bell: Arc::new(EventWaker::new()?),
            stop: Arc::new(EventWaker::new()?),
        };
        let mut undo = Undo::default();
        let mut devices = Vec::new();
        let mut windows = Vec::new();
        let mut start = 0;
        for (number, size) in config.swap.device_sizes().into_iter().enumerate() {
            let window = start..start + size.0;
            start = window.end;
            let (server, kernel_end) = attach::sockets()?;
            let thread = serve(&store, &channels, number, &window, server)?;
            let device = attach::attach(
                &mut family,
                &config.nbd,
                number as u32,
                size,
                kernel_end,
                &mut undo,
            )?;
            tracing::info!("{} of {size} is attached", device.path.display());
            devices.push((device, Some(thread)));
            windows.push(window);
        }
        // All threads exist now, the tiers' included.
        armour::verify_io_flusher_on_all_threads(Path::new("/"))?;
        armour::verify_locked_memory(Path::new("/"))?;
        if config.swap.swapon {
            for (device, _) in &devices {
                attach::swap_on(config, device, &mut undo)?;
                tracing::info!(
                    "{} is swap of priority {}",
                    device.path.display(),
                    config.swap.priority
                );
            }
        }
        undo.keep();
        Ok(Self {
            store,
            channels,
            ended,
            family,
            devices,
            windows,
            state: State::Serving,
            message: String::new(),
            _keeper: keeper,
        })
    }

    /// Ends only when nothing is swapped to us. Whatever else goes wrong, a
    /// panic included, is logged and survived: ending would lose pages.
    fn main_loop(&mut self, signals: &Signals, control: &ControlSocket) -> Result<()> {
        let mut watch = Watch {
            links: self.family.events().inspect_err(|error| tracing::warn!("{error}")).ok(),
            dog: Watchdog::new(),
            detaching: None,
            drain_at: None,
        };
        loop {
            let round = catch_unwind(AssertUnwindSafe(|| self.round(signals, control, &mut watch)));
            match round {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => return self.stop(),
                Ok(Err(error)) => {
                    tracing::error!("{error:#}");
                    std::thread::sleep(AFTER_FAILURE);
                }
                Err(_) => {
                    tracing::error!("the main thread panicked and goes on");
                    std::thread::sleep(AFTER_FAILURE);
                }
            }
        }
    }

    /// Waits for something to happen and deals with it; true: all swap is off
    /// and we were told to stop.
    fn round(
        &mut self,
        signals: &Signals,
        control: &ControlSocket,
        watch: &mut Watch,
    ) -> Result<bool> {
        let child_ended = self.wait(signals, control, watch)?;
        if signals.take() {
            tracing::info!("told to stop: draining");
            watch.drain_at = Some(Instant::now());
        }
        control.answer(|| self.status());
        if let Some(links) = &mut watch.links {
            for event in links.take()? {
                tracing::debug!("nbd: {event:?}");
            }
        }
        while let Ok(end) = self.ended.try_recv() {
            self.connection_ended(&end);
        }
        if child_ended && let Some(child) = watch.detaching.take() {
            let now = Instant::now();
            watch.drain_at = Some(match child.wait_for_success() {
                Ok(()) => now,
                Err(error) => {
                    self.stays_on(&format!("{error:#}"));
                    now + DRAIN_AGAIN
                }
            });
        }
        if watch.detaching.is_none() && watch.drain_at.is_some_and(|at| at <= Instant::now()) {
            let on = detach::still_on(&self.paths())?;
            if on.is_empty() {
                return Ok(true);
            }
            self.drain(&on, watch);
        }
        watch.dog.look(&self.devices);
        self.tell_systemd(&[]);
        Ok(false)
    }

    /// Sleeps until one of the descriptors or a point in time; true: the process
    /// that detaches has ended.
    fn wait(&self, signals: &Signals, control: &ControlSocket, watch: &Watch) -> Result<bool> {
        let mut fds = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
            PollFd::new(&*self.channels.bell, PollFlags::IN),
        ];
        if let Some(child) = &watch.detaching {
            fds.push(PollFd::new(child, PollFlags::IN));
        }
        if let Some(links) = &watch.links {
            fds.push(PollFd::new(links, PollFlags::IN));
        }
        let round = watch.dog.round();
        let wait = watch
            .drain_at
            .map_or(round, |at| at.saturating_duration_since(Instant::now()).min(round));
        let timeout = Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let child_ended = watch.detaching.is_some() && !fds[3].revents().is_empty();
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.channels.bell, &mut count);
        Ok(child_ended)
    }

    fn drain(&mut self, on: &[PathBuf], watch: &mut Watch) {
        self.state = State::Draining;
        self.message = format!("switching {} off", list(on));
        self.tell_systemd(&[]);
        match detach::in_a_process_of_its_own(on) {
            Ok(child) => {
                watch.detaching = Some(child);
                watch.drain_at = None;
            }
            Err(error) => {
                self.stays_on(&format!("{error:#}"));
                watch.drain_at = Some(Instant::now() + DRAIN_AGAIN);
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|(device, _)| device.path.clone()).collect()
    }

    fn stays_on(&mut self, why: &str) {
        tracing::error!("{why}; still serving, next try in {} s", DRAIN_AGAIN.as_secs());
        self.state = State::Serving;
        why.clone_into(&mut self.message);
    }

    /// A connection was lost although nobody told it to stop: the kernel gets a
    /// new one and sends again what was in flight.
    fn connection_ended(&mut self, end: &End) {
        let (device, thread) = &mut self.devices[end.device];
        if let Some(thread) = thread.take() {
            thread.join();
        }
        let device = device.clone();
        tracing::warn!(
            "{}: connection ended: {:?}, {} requests never answered",
            device.path.display(),
            end.reason,
            end.stuck
        );
        if end.reason == Some(Reason::Disconnected) {
            self.message = format!("{} was disconnected by somebody else", device.path.display());
            tracing::error!("{}; what was swapped to it cannot be read", self.message);
            return;
        }
        let (store, channels) = (&self.store, &self.channels);
        let window = self.windows[end.device].clone();
        let mut latest = None;
        let result = attach::reconnect(&mut self.family, &device, || {
            let (server, kernel_end) = attach::sockets()?;
            let watched = server.try_clone()?;
            // A thread whose socket was not taken sees end of file and ends.
            latest = Some(serve(store, channels, end.device, &window, server)?);
            Ok((watched, kernel_end))
        });
        self.devices[end.device].1 = latest;
        match result {
            Ok(()) => tracing::info!("{} is served again", device.path.display()),
            Err(error) => {
                self.message = format!("{}: {error:#}", device.path.display());
                tracing::error!("{}; its pages are kept", self.message);
            }
        }
    }

    /// Disconnects everything; nothing is swapped to us any more.
    fn stop(&mut self) -> Result<()> {
        self.tell_systemd(&[NotifyState::Stopping]);
        for (device, _) in &self.devices {
            self.family.disconnect(device.index)?;
            tracing::info!("{} is detached", device.path.display());
        }
        self.channels.stop.wake();
        for (_, thread) in &mut self.devices {
            if let Some(thread) = thread.take() {
                thread.join();
            }
        }
        self.state = State::Stopped;
        Ok(())
    }

    fn status(&self) -> Status {
        let sessions = self.devices.iter().filter(|(_, thread)| thread.is_some()).count();
        status::snapshot(
            &self.store,
            status::Facts {
                state: self.state,
                devices: self.devices.iter().map(|(d, _)| (&*d.path, d.size)).collect(),
                connections: sessions as u32,
                buffers: (sessions * io_thread::session_bytes() + EXTENT_BYTES) as u64,
                message: self.message.clone(),
            },
        )
    }

    fn tell_systemd(&self, also: &[NotifyState<'_>]) {
        let text = if self.message.is_empty() {
            let size = ByteLen(self.store.device_bytes());
            format!("{} {size} on {}", self.state.name(), list(&self.paths()))
        } else {
            format!("{}: {}", self.state.name(), self.message)
        };
        let mut states = vec![NotifyState::Status(&text)];
        states.extend_from_slice(also);
        let _ = sd_notify::notify(&states);
    }
}

fn serve(
    store: &Arc<Store>,
    channels: &Channels,
    number: usize,
    window: &std::ops::Range<u64>,
    server: std::os::fd::OwnedFd,
) -> Result<IoThread> {
    let waker = Arc::new(EventWaker::new()?);
    let part = io_thread::session(store, window.clone(), Lock::Required, Arc::clone(&waker))?;
    IoThread::spawn(
        number,
        part,
        waker,
        server,
        Arc::clone(&channels.stop),
        channels.ends.clone(),
        Arc::clone(&channels.bell),
    )
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
