// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store run`: the process that holds swapped pages.
//!
//! ```text
//!   Starting ── memory locked, tiers held ──► Armed ── attached, swap on ──► Serving
//!    │ │ any failure: undone              │ swapon failed                      │ SIGTERM
//!    │ ▼                                  ▼                                    ▼
//!    │(exit 1)        Stopped ◄── disconnected, threads ended ◄── all off ──── Draining
//!    │                                  something still in use: retried, still serving
//!    └── the holder has an index ──► Adopting ── connected again ──► Serving or Draining
//! ```
//! The main thread may allocate, log and wait; I/O threads do none of these.
//! It never ends while anybody uses one of its devices, but to hand over to
//! another store ([`StoreProcess::hand_over`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

use super::control::{Answer, ControlSocket};
use super::detach::{self, Detaching};
use super::devices::Devices;
use super::hand_over::hand_over;
use super::headline::{Facts as Headline, headline, list, swapped};
use super::holder::custody::{Custody, Source};
use super::holder::description::{Description, Phase};
use super::holder::message::Role;
use super::holder::openings::Openings;
use super::holder::rebuild;
use super::holder::watch::HolderWatch;
use super::io_thread;
use super::keeper::{self, Keeper};
use super::orders::Desk;
use super::start::{Ended, Found, Made, Start, verify};
use super::status;
use super::watchdog::Watchdog;
use crate::block::nbd::netlink::Events;
use crate::config::schema::Durability;
use crate::engine::gpu::GpuSelector;
use crate::engine::orders::State as OrderState;
use crate::engine::store::{Role as TierRole, Store};
use crate::engine::units::ByteLen;
use crate::engine::view::{Configuration, Reply, Request, State, Status};
use crate::host::armour;
use crate::host::modules::ensure_module;
use crate::host::signals::Signals;

/// How often the unit's status line shows how far a drain or a yield is.
const PROGRESS: Duration = Duration::from_secs(1);
/// After a failed drain, before the next.
const DRAIN_AGAIN: Duration = Duration::from_secs(30);
/// After devices could not be let go of, before the next try.
const LET_GO_AGAIN: Duration = Duration::from_secs(30);
/// What the next store needs to start beside what this one has taken: page
/// tables, the kernel's own.
const TO_START: u64 = 4 << 20;
/// After a failure of the main loop itself.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What the main loop waits for beside its arguments.
struct Watch {
    links: Option<Events>,
    dog: Watchdog,
    detaching: Option<Detaching>,
    /// When to try to switch swap off, once told to stop.
    drain_at: Option<Instant>,
    /// Not before: to try again to let go of closed devices.
    let_go_at: Option<Instant>,
}

impl Watch {
    /// It was told to stop.
    fn is_leaving(&self) -> bool {
        self.drain_at.is_some() || self.detaching.is_some()
    }
}

/// A store with its devices attached.
pub(super) struct StoreProcess {
    store: Arc<Store>,
    pub(super) devices: Devices,
    state: State,
    message: String,
    durability: Durability,
    configuration: Configuration,
    desk: Desk,
    custody: Arc<Custody>,
    holder: HolderWatch,
    handed_over: bool,
    openings: Arc<Openings>,
    /// Last: it uses the store.
    keeper: Keeper,
}

impl StoreProcess {
    /// From nothing to attached devices, or nothing left behind.
    pub(super) fn arm(start: &Start<'_>, holder: HolderWatch) -> Result<Self> {
        ensure_module(Path::new("/"), "nbd", &["max_part=0"])?;
        let family = Devices::family()?;
        let made = start.make(None, |making| making.fresh(&start.text))?;
        let mut description = Description::new(start.text.clone());
        description.set_gpus(&gpus(&made.store));
        let custody = Arc::clone(&start.custody);
        let devices = Devices::attach(&made.store, family, start.config, custody, description)?;
        let mut this = Self::of(start, made, devices, holder);
        if let Err(error) = verify() {
            this.devices.disconnect()?;
            return Err(error);
        }
        Ok(this)
    }

    /// From what a dead store left to devices that wait for a connection.
    pub(super) fn adopt(
        start: &Start<'_>,
        found: Found,
        holder: HolderWatch,
    ) -> Result<(Self, rebuild::Torn)> {
        let family = Devices::family()?;
        let mut torn = rebuild::Torn::default();
        let made = start.make(Some(&found.description), |making| {
            let (store, pages) = making.recovered(found.inventory)?;
            torn = pages;
            Ok(store)
        })?;
        let custody = Arc::clone(&start.custody);
        let mut description = found.description;
        description.set_gpus(&gpus(&made.store));
        let devices = Devices::adopt(&made.store, family, start.config, custody, description)?;
        Ok((Self::of(start, made, devices, holder), torn))
    }

    fn of(start: &Start<'_>, made: Made, devices: Devices, holder: HolderWatch) -> Self {
        let Made { store, keeper, configured, in_force, openings } = made;
        Self {
            store,
            devices,
            state: State::Armed,
            message: String::new(),
            durability: start.config.swap.durability,
            configuration: start.configuration(),
            desk: Desk::new(configured, in_force),
            custody: Arc::clone(&start.custody),
            holder,
            handed_over: false,
            openings,
            keeper,
        }
    }

    /// From here on a death costs nothing: the next store has all that it needs.
    pub(super) fn serves(&mut self, phase: Phase) -> Result<()> {
        self.keep_files()?;
        self.devices.describe(phase)?;
        self.tell_memory()?;
        self.state = State::Serving;
        Ok(())
    }

    /// Looks after devices and holder without waiting.
    pub(super) fn look_after(&mut self) {
        for message in [self.devices.look_after(), self.holder.look()].into_iter().flatten() {
            self.message = message;
        }
    }

    /// Ends between two requests so that another store can take over, of the
    /// program that is at its path then. Nothing is detached; the kernel waits.
    fn hand_over(&mut self, reason: &str) -> Result<()> {
        hand_over(reason, &self.custody, &self.keeper, &mut self.devices)?;
        self.handed_over = true;
        Ok(())
    }

    /// Hands over if devices are closed that only the end of this process lets
    /// go of, and nobody is owed an answer.
    fn let_go(&mut self, control: &ControlSocket, watch: &mut Watch) -> bool {
        let now = Instant::now();
        if !self.desk.in_force().close
            || !self.keeper.is_at_rest()
            || !control.is_idle()
            || watch.is_leaving()
            || watch.let_go_at.is_some_and(|at| at > now)
        {
            return false;
        }
        let Some(nodes) = self.store.tiers().iter().find_map(|slots| slots.tier().lingers()) else {
            return false;
        };
        let handed = self.hand_over(&format!("the driver of a closed GPU keeps {nodes} open"));
        if let Err(error) = handed {
            watch.let_go_at = Some(now + LET_GO_AGAIN);
            self.message = format!("{error:#}");
            tracing::error!("{}; next try in {} s", self.message, LET_GO_AGAIN.as_secs());
        }
        self.handed_over
    }

    /// Puts threads that know a device which was opened since in place of those
    /// that do not; then its slabs can be used.
    fn prepare_threads(&mut self) -> Result<()> {
        let Some(opened) = self.openings.unprepared() else { return Ok(()) };
        self.devices.renew_threads().context("no thread is prepared for the GPU")?;
        self.openings.prepared(opened);
        self.keeper.look();
        // The next store needs the driver's library to start.
        if let Err(error) = self.keep_files().and_then(|()| self.tell_memory()) {
            tracing::error!("{error:#}; another store would need the disk to start");
        }
        Ok(())
    }

    /// Puts threads with a lane to a tier that is to be trusted again in place of
    /// those that were made when it gave none, if nothing else is in the way. What
    /// goes wrong leaves threads without a lane, and the order is refused for them.
    fn give_lanes(&mut self, name: &str) {
        let mut tiers = self.store.tiers().iter();
        let lacks_lanes = tiers.any(|slots| {
            slots.tier().name() == name
                && slots.sessions_without_lane() > 0
                && slots.lost_operations() == 0
                && !slots.is_lost()
        });
        if lacks_lanes && let Err(error) = self.devices.renew_threads() {
            tracing::error!("no thread gets a lane to {name}: {error:#}");
        }
    }

    /// Gives the holder the program and the libraries that are mapped: the next
    /// store starts without the disk.
    fn keep_files(&self) -> Result<()> {
        let files = rebuild::mapped_files()?;
        let count = files.len() as u32;
        for (number, (role, file)) in (0..).zip(files) {
            let bytes = file.metadata().map_or(0, |data| data.len());
            let number = if role == Role::Program { 0 } else { number };
            self.custody.keep(role, number, Source::Descriptor(file.into()), bytes)?;
        }
        self.custody.forget_from(Role::Library, count);
        Ok(())
    }

    /// Tells the holder that this store serves, and how much memory the next one
    /// would need to start.
    fn tell_memory(&self) -> Result<()> {
        let memory = armour::verify_locked_memory(Path::new("/"))?;
        self.custody.serving(memory.anonymous.0 + TO_START);
        Ok(())
    }

    /// Ends only when nobody uses the devices. Whatever else goes wrong, a panic
    /// included, is logged and survived: ending would lose pages.
    pub(super) fn main_loop(
        &mut self,
        signals: &Signals,
        control: &mut ControlSocket,
        drain_at: Option<Instant>,
    ) -> Result<Ended> {
        let links = self.devices.events().inspect_err(|error| tracing::warn!("{error:#}")).ok();
        let (dog, detaching, let_go_at) = (Watchdog::new(), None, None);
        let mut watch = Watch { links, dog, detaching, drain_at, let_go_at };
        loop {
            let round = catch_unwind(AssertUnwindSafe(|| self.round(signals, control, &mut watch)));
            match round {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    self.state = State::Stopped;
                    return Ok(if self.handed_over { Ended::HandedOver } else { Ended::Drained });
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
        control: &mut ControlSocket,
        watch: &mut Watch,
    ) -> Result<bool> {
        let child_ended = self.wait(signals, control, watch)?;
        self.look_after();
        let heard = signals.heard();
        // Without a holder HUP means what it means to everybody.
        if heard.end || (heard.hang_up && !self.custody.is_held()) {
            tracing::info!("told to stop: draining");
            if let Err(error) = self.devices.describe(Phase::Draining) {
                tracing::error!("{error:#}; a store that takes over would not drain");
            }
            watch.drain_at = Some(Instant::now());
        } else if heard.hang_up {
            self.hand_over("told to reload")?;
            return Ok(true);
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
        if let Some(message) = watch.dog.failures(&self.store) {
            self.message = message;
        }
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
        self.desk.answer(control, &self.keeper);
        let told = self.desk.in_force().clone();
        control.serve(&mut |request| match request {
            Request::Status {} => Answer::Now(Reply::Status(Box::new(self.status()))),
            order => {
                if let Request::Readmit { tier } = &order {
                    self.give_lanes(tier);
                }
                self.desk.decide(&order, &self.store, &self.keeper)
            }
        });
        if *self.desk.in_force() != told
            && let Err(error) = self.devices.describe_orders(self.desk.in_force())
        {
            tracing::error!("{error:#}; a store that takes over would go by the order before");
        }
        if self.let_go(control, watch) {
            return Ok(true);
        }
        self.prepare_threads()?;
        Ok(false)
    }

    /// Sleeps until one of the descriptors or a point in time; true: the process
    /// that detaches has ended.
    fn wait(&self, signals: &Signals, control: &ControlSocket, watch: &Watch) -> Result<bool> {
        let mut fds = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&*self.devices.bell, PollFlags::IN),
            PollFd::new(&**self.keeper.bell(), PollFlags::IN),
        ];
        if let Some(child) = &watch.detaching {
            fds.push(PollFd::new(child, PollFlags::IN));
        }
        if let Some(links) = &watch.links {
            fds.push(PollFd::new(links, PollFlags::IN));
        }
        fds.extend(control.poll_fds());
        fds.extend(self.holder.poll_fds());
        let drain_at = watch.drain_at.filter(|_| watch.detaching.is_none());
        let wait = [drain_at, self.devices.due(), control.due(), self.desk.due()]
            .into_iter()
            .flatten()
            .map(|at| at.saturating_duration_since(Instant::now()))
            .fold(self.longest_wait(&watch.dog), Duration::min);
        match poll(&mut fds, Timespec::try_from(wait).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let child_ended = watch.detaching.is_some() && !fds[3].revents().is_empty();
        for bell in [&self.devices.bell, self.keeper.bell()] {
            bell.clear();
        }
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

    /// What a person should know: what happened last, else what is in the way.
    fn what_to_know(&self) -> String {
        match self.keeper.progress().state {
            OrderState::Stuck(why) if self.message.is_empty() => why,
            _ => self.message.clone(),
        }
    }

    fn status(&self) -> Status {
        let sessions = self.devices.iter().filter(|(_, thread)| thread.is_some()).count();
        status::snapshot(
            &self.store,
            status::Facts {
                state: self.state,
                devices: self.devices.iter().map(|(d, _)| (&*d.path, d.size)).collect(),
                connections: sessions as u32,
                buffers: (sessions * io_thread::ARENA_BYTES + keeper::BUFFER_BYTES) as u64,
                progress: self.keeper.progress(),
                durability: self.durability,
                configuration: Some(self.configuration.clone()),
                message: self.what_to_know(),
            },
        )
    }

    pub(super) fn tell_systemd(&self, also: &[NotifyState<'_>]) {
        let paths = self.devices.paths();
        let is_draining = self.state == State::Draining;
        let text = headline(&Headline {
            state: self.state,
            message: &self.message,
            size: ByteLen(self.store.device_bytes()),
            paths: &paths,
            progress: &self.keeper.progress(),
            swapped: if is_draining { swapped(&paths) } else { None },
        });
        let mut states = vec![NotifyState::Status(&text)];
        states.extend_from_slice(also);
        let _ = sd_notify::notify(&states);
    }

    /// The longest sleep: while something is under way its progress is shown.
    fn longest_wait(&self, dog: &Watchdog) -> Duration {
        let moves = self.keeper.progress().state == OrderState::Working;
        if moves || self.state == State::Draining { PROGRESS.min(dog.round()) } else { dog.round() }
    }
}

/// Which GPU each fast tier is.
fn gpus(store: &Store) -> Vec<Option<GpuSelector>> {
    let fast = store.tiers().iter().filter(|slots| slots.role() == TierRole::Fast);
    fast.map(|slots| slots.tier().device()).collect()
}
