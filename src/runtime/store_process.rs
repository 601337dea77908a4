// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store run`: the process that holds swapped pages.
//!
//! ```text
//!   Starting ── memory locked, tiers held ──► Armed ── attached, swap on ──► Serving
//!      │ any failure: undone              │ swapon failed                      │ SIGTERM
//!      ▼                                  ▼                                    ▼
//!    (exit 1)        Stopped ◄── disconnected, threads ended ◄── all off ──── Draining
//!                                       something still in use: retried, still serving
//! ```
//! The main thread may allocate, log and wait; I/O threads do none of these.
//! It never ends while anybody uses one of its devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

use super::assembly::Plan;
use super::control::ControlSocket;
use super::detach::{self, Detaching};
use super::devices::Devices;
use super::io_thread;
use super::keeper::{Keeper, Orders};
use super::status;
use super::watchdog::Watchdog;
use super::{logging, report};
use crate::block::nbd::netlink::Events;
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

/// Runs a store until it is told to stop and nobody uses its devices.
pub fn run(config: &Config, socket: &Path) -> Result<()> {
    let signals = Signals::block()?;
    io_thread::panic_quietly();
    armour_process()?;
    let control = ControlSocket::bind(socket)?;
    let mut store = StoreProcess::arm(config)?;
    if config.swap.swapon
        && let Err(error) = store.devices.swap_on(config)
    {
        // Some devices may be on, with pages in them already.
        tracing::error!("{error:#}; what is on is switched off again");
        store.main_loop(&signals, &control, Some(Instant::now()))?;
        return Err(error);
    }
    store.state = State::Serving;
    store.tell_systemd(&[NotifyState::Ready]);
    store.main_loop(&signals, &control, None)
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
    devices: Devices,
    state: State,
    message: String,
    /// Last: it uses the store.
    _keeper: Keeper,
}

impl StoreProcess {
    /// From nothing to attached devices, or nothing left behind.
    fn arm(config: &Config) -> Result<Self> {
        ensure_module(Path::new("/"), "nbd", &["max_part=0"])?;
        let family = Devices::family()?;
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
        let mut devices = Devices::attach(&store, family, config)?;
        // All threads exist now, the tiers' included.
        let verified = armour::verify_io_flusher_on_all_threads(Path::new("/"))
            .and_then(|_| armour::verify_locked_memory(Path::new("/")));
        if let Err(error) = verified {
            devices.disconnect()?;
            return Err(error.into());
        }
        Ok(Self { store, devices, state: State::Armed, message: String::new(), _keeper: keeper })
    }

    /// Ends only when nobody uses the devices. Whatever else goes wrong, a panic
    /// included, is logged and survived: ending would lose pages.
    fn main_loop(
        &mut self,
        signals: &Signals,
        control: &ControlSocket,
        drain_at: Option<Instant>,
    ) -> Result<()> {
        let links = self.devices.events().inspect_err(|error| tracing::warn!("{error:#}")).ok();
        let mut watch = Watch { links, dog: Watchdog::new(), detaching: None, drain_at };
        loop {
            let round = catch_unwind(AssertUnwindSafe(|| self.round(signals, control, &mut watch)));
            match round {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    self.state = State::Stopped;
                    return Ok(());
                }
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

    /// Waits for something to happen and deals with it, the most urgent first;
    /// true: told to stop, and all is detached.
    fn round(
        &mut self,
        signals: &Signals,
        control: &ControlSocket,
        watch: &mut Watch,
    ) -> Result<bool> {
        let child_ended = self.wait(signals, control, watch)?;
        if let Some(message) = self.devices.look_after() {
            self.message = message;
        }
        if signals.take() {
            tracing::info!("told to stop: draining");
            watch.drain_at = Some(Instant::now());
        }
        if child_ended && let Some(child) = watch.detaching.take() {
            match child.wait_for_success() {
                Ok(()) => watch.drain_at = Some(Instant::now()),
                Err(error) => self.stays_on(watch, &format!("{error:#}")),
            }
        }
        if watch.detaching.is_none()
            && watch.drain_at.is_some_and(|at| at <= Instant::now())
            && self.drain(watch)?
        {
            return Ok(true);
        }
        watch.dog.look(&self.devices);
        self.tell_systemd(&[]);
        if let Some(links) = &mut watch.links {
            match links.take() {
                Ok(events) => events.iter().for_each(|event| tracing::debug!("nbd: {event:?}")),
                Err(error) => {
                    tracing::warn!("{error:#}; nbd's events are not followed any more");
                    watch.links = None;
                }
            }
        }
        control.answer(|| self.status());
        Ok(false)
    }

    /// Sleeps until one of the descriptors or a point in time; true: the process
    /// that detaches has ended.
    fn wait(&self, signals: &Signals, control: &ControlSocket, watch: &Watch) -> Result<bool> {
        let mut fds = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
            PollFd::new(&*self.devices.bell, PollFlags::IN),
        ];
        if let Some(child) = &watch.detaching {
            fds.push(PollFd::new(child, PollFlags::IN));
        }
        if let Some(links) = &watch.links {
            fds.push(PollFd::new(links, PollFlags::IN));
        }
        let drain_at = watch.drain_at.filter(|_| watch.detaching.is_none());
        let wait = [drain_at, self.devices.due()]
            .into_iter()
            .flatten()
            .map(|at| at.saturating_duration_since(Instant::now()))
            .fold(watch.dog.round(), Duration::min);
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
        let _ = rustix::io::read(&*self.devices.bell, &mut count);
        Ok(child_ended)
    }

    /// Starts to switch swap off, or disconnects if nobody uses the devices any
    /// more (true).
    fn drain(&mut self, watch: &mut Watch) -> Result<bool> {
        let on = detach::still_on(&self.devices.paths())?;
        if on.is_empty() {
            return match self.devices.claim() {
                Ok(claims) => {
                    self.tell_systemd(&[NotifyState::Stopping]);
                    let result = self.devices.disconnect();
                    drop(claims);
                    result.map(|()| true)
                }
                Err(error) => {
                    self.stays_on(watch, &format!("{error:#}"));
                    Ok(false)
                }
            };
        }
        self.state = State::Draining;
        self.message = format!("switching {} off", list(&on));
        self.tell_systemd(&[]);
        match detach::in_a_process_of_its_own(&on) {
            Ok(child) => {
                watch.detaching = Some(child);
                watch.drain_at = None;
            }
            Err(error) => self.stays_on(watch, &format!("{error:#}")),
        }
        Ok(false)
    }

    fn stays_on(&mut self, watch: &mut Watch, why: &str) {
        tracing::error!("{why}; still serving, next try in {} s", DRAIN_AGAIN.as_secs());
        self.state = State::Serving;
        why.clone_into(&mut self.message);
        watch.drain_at = Some(Instant::now() + DRAIN_AGAIN);
    }

    fn status(&self) -> Status {
        let sessions = self.devices.iter().filter(|(_, thread)| thread.is_some()).count();
        status::snapshot(
            &self.store,
            status::Facts {
                state: self.state,
                devices: self.devices.iter().map(|(d, _)| (&*d.path, d.size)).collect(),
                connections: sessions as u32,
                buffers: (sessions * io_thread::ARENA_BYTES + EXTENT_BYTES) as u64,
                message: self.message.clone(),
            },
        )
    }

    fn tell_systemd(&self, also: &[NotifyState<'_>]) {
        let text = if self.message.is_empty() {
            let size = ByteLen(self.store.device_bytes());
            format!("{} {size} on {}", self.state.name(), list(&self.devices.paths()))
        } else {
            format!("{}: {}", self.state.name(), self.message)
        };
        let mut states = vec![NotifyState::Status(&text)];
        states.extend_from_slice(also);
        let _ = sd_notify::notify(&states);
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
