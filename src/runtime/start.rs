// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a store begins: from nothing, or from what a dead one left with the
//! holder; and what it says when it ends.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sd_notify::NotifyState;

use super::assembly::Plan;
use super::attach::BACKEND_PREFIX;
use super::control::ControlSocket;
use super::holder::DESCRIPTORS;
use super::holder::custody::{Custody, Source};
use super::holder::description::{Description, Phase};
use super::holder::inventory::Inventory;
use super::holder::message::{End, Role};
use super::holder::openings::Openings;
use super::holder::rebuild::{self, Making};
use super::holder::watch::{HolderWatch, Listening};
use super::io_thread;
use super::keeper::Keeper;
use super::store_process::StoreProcess;
use super::{logging, report};
use crate::block::nbd::netlink::attached_as;
use crate::block::nbd::waker::EventWaker;
use crate::config::{self, Config};
use crate::engine::orders::Orders;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::view::Configuration;
use crate::host::modules::require_kernel;
use crate::host::signals::Signals;
use crate::host::{armour, handover, swap};
use crate::tier::spill::Prepare;

/// Between two attempts to listen for orders.
const UNREACHABLE: Duration = Duration::from_secs(1);

/// How a store is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// The link to the holder that started it, by number.
    pub held: Option<i32>,
}

/// What was there before this store.
pub(super) struct Found {
    pub(super) description: Description,
    pub(super) inventory: Inventory,
}

/// Reads the configuration, starts logging and runs the store; the exit code is
/// 2 for a configuration that cannot be used, 1 for any other failure.
pub fn main(options: &Options) -> ExitCode {
    super::holder::call_process(c"sluice-store");
    let (custody, found) = match meet_holder(options.held) {
        Ok(met) => met,
        Err(error) => return report(Err(error)),
    };
    let text = match &found {
        Some(found) => Ok(found.description.config.clone()),
        None => config::load::read(Path::new("/"), &options.config),
    };
    let parsed = text.and_then(|text| {
        config::load::parse(&options.config, text.clone()).map(|config| (config, text))
    });
    let (config, text) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            if found.is_some() {
                custody.goodbye(End::Distrust, 2, "the configuration in force cannot be read");
            }
            eprintln!("{error}\nNothing was changed.");
            return ExitCode::from(2);
        }
    };
    let custody = Arc::new(custody);
    let start = Start { config: &config, text, options, custody: Arc::clone(&custody) };
    if let Some(found) = found {
        return match start.take_over(found) {
            Ok(ended) => ended.say(&custody),
            Err(error) => {
                let distrust = rebuild::is_distrust(&error);
                let end = if distrust { End::Distrust } else { End::Failed };
                custody.goodbye(end, 1, &format!("{error:#}"));
                ExitCode::FAILURE
            }
        };
    }
    logging::start(config.log.level);
    match start.run() {
        Ok(ended) => ended.say(&custody),
        Err(error) => {
            // Whatever was made is undone, and nothing was ever swapped here.
            custody.forget_all();
            custody.goodbye(End::Finished, 1, "");
            report(Err(error))
        }
    }
}

/// Asks the holder, if there is one, for what it has. Something without an index
/// or without a description is of a store that never began: it is let go.
fn meet_holder(held: Option<i32>) -> Result<(Custody, Option<Found>)> {
    let Some(number) = held else { return Ok((Custody::unheld(), None)) };
    let link = handover::inherited(number)
        .with_context(|| format!("--held {number}: there is no holder"))?;
    let (custody, mut inventory) = Custody::held(link)?;
    if let (Some(text), Some(_)) = (inventory.description.take(), &inventory.index) {
        for ((role, number), file) in std::mem::take(&mut inventory.files) {
            let bytes = file_bytes(&file);
            custody.note(role, number, Source::Descriptor(file), bytes);
        }
        let description = Description::read(&text).inspect_err(|error| {
            custody.goodbye(End::Distrust, 1, &format!("{error:#}"));
        })?;
        custody.note(Role::Description, 0, Source::Descriptor(text), 0);
        return Ok((custody, Some(Found { description, inventory })));
    }
    custody.let_go(&inventory);
    Ok((custody, None))
}

fn file_bytes(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |data| data.st_size.unsigned_abs())
}

/// What every start needs.
pub(super) struct Start<'a> {
    pub(super) config: &'a Config,
    pub(super) text: String,
    options: &'a Options,
    pub(super) custody: Arc<Custody>,
}

/// A store with its keeper at work.
pub(super) struct Made {
    pub(super) store: Arc<Store>,
    pub(super) keeper: Keeper,
    /// What the configuration tells the keeper.
    pub(super) configured: Orders,
    /// What the keeper was told.
    pub(super) in_force: Orders,
    pub(super) openings: Arc<Openings>,
}

/// Why the main loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nothing is in use any more.
    Drained,
    /// Another store takes over.
    HandedOver,
}

impl Ended {
    fn say(self, custody: &Custody) -> ExitCode {
        if self == Self::Drained {
            custody.forget_all();
            custody.goodbye(End::Finished, 0, "");
        }
        ExitCode::SUCCESS
    }
}

impl Start<'_> {
    /// What the store goes by, for clients: they compare it with the file.
    pub(super) fn configuration(&self) -> Configuration {
        let path = &self.options.config;
        let file = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Configuration {
            file: file.display().to_string(),
            settings: config::in_force::of_store(self.config),
        }
    }

    fn watch_holder(&self, listening: Listening) -> Result<HolderWatch> {
        let Options { config, socket, .. } = self.options;
        HolderWatch::new(Arc::clone(&self.custody), config, socket, listening)
    }

    /// Plans and builds a store and starts its keeper, which goes on with what
    /// the one before was told.
    pub(super) fn make(
        &self,
        before: Option<&Description>,
        build: impl FnOnce(Making<'_>) -> Result<Arc<Store>>,
    ) -> Result<Made> {
        let mut plan = Plan::armed(self.config);
        if let Some(before) = before {
            plan.name_gpus(&before.gpus()?);
        }
        let told = before.and_then(|before| before.orders(plan.reserve));
        let openings = Arc::<Openings>::default();
        let bell = Arc::new(EventWaker::new()?);
        let prepare: Prepare = Arc::new(|| {
            if let Err(error) = io_thread::armour_thread() {
                tracing::warn!("a spill worker runs without real-time priority: {error:#}");
            }
        });
        let ring = Arc::clone(&bell) as Arc<dyn Wake>;
        let store = build(Making {
            plan: &mut plan,
            custody: &self.custody,
            prepare: &prepare,
            ring,
            told: told.as_ref(),
            openings: Some(&openings),
        })?;
        let configured = plan.orders();
        let keeper = Keeper::start(&store, bell, &configured, plan.lock)?;
        // What it could follow before, it can follow now; if not, the store still serves.
        let in_force = told.filter(|told| keeper.give(told).is_ok());
        let in_force = in_force.unwrap_or_else(|| configured.clone());
        Ok(Made { store, keeper, configured, in_force, openings })
    }

    /// Runs a store from nothing until it is told to stop and nobody uses its
    /// devices.
    fn run(self) -> Result<Ended> {
        let signals = Signals::block()?;
        // The holder is real-time.
        armour::set_ordinary_scheduling()?;
        io_thread::panic_quietly();
        armour_process()?;
        let mut control = ControlSocket::bind(&self.options.socket)?;
        let holder = self.watch_holder(Listening::Now)?;
        let mut store = StoreProcess::arm(&self, holder)?;
        let on = if self.config.swap.swapon { store.devices.swap_on(self.config) } else { Ok(()) };
        if let Err(error) = on.and_then(|()| store.serves(Phase::Serving)) {
            // Some devices may be on, with pages in them already.
            tracing::error!("{error:#}; what is on is switched off again");
            let ended = store.main_loop(&signals, &mut control, Some(Instant::now()))?;
            return if ended == Ended::HandedOver { Ok(ended) } else { Err(error) };
        }
        store.tell_systemd(&[NotifyState::Ready]);
        store.main_loop(&signals, &mut control, None)
    }

    /// Runs a store of what a dead one left. Nothing is logged before the kernel
    /// has its devices back: who reads the log may wait for a page.
    fn take_over(self, found: Found) -> Result<Ended> {
        let signals = Signals::block()?;
        io_thread::panic_quietly();
        // Memory is found sooner by a real-time thread, until the pages are served.
        armour::set_realtime_alone()?;
        armour_limits()?;
        let phase = found.description.phase;
        let watch = self.watch_holder(Listening::AsSoonAsItCan)?;
        let (mut store, torn) = StoreProcess::adopt(&self, found, watch)?;
        let message = store.devices.look_after();
        // What fails from here on is no reason to end: the pages are served.
        let ordinary = armour::set_ordinary_scheduling();
        let mut control = loop {
            if let Ok(control) = ControlSocket::bind(&self.options.socket) {
                break control;
            }
            std::thread::sleep(UNREACHABLE);
            store.look_after();
        };
        logging::start(self.config.log.level);
        tracing::warn!(
            "took over from a store that is dead: {} torn pages adopted, {} unreadable; {}",
            torn.adopted,
            torn.unreadable,
            message.as_deref().unwrap_or("no device")
        );
        survive(ordinary.map_err(Into::into));
        survive(verify());
        if phase == Phase::Arming && self.config.swap.swapon {
            survive(store.devices.swap_on(self.config));
        }
        let drain = phase == Phase::Draining;
        survive(store.serves(if drain { Phase::Draining } else { Phase::Serving }));
        store.tell_systemd(&[NotifyState::Ready]);
        store.main_loop(&signals, &mut control, drain.then(Instant::now))
    }
}

/// Once all threads exist, the tiers' included.
pub(super) fn verify() -> Result<()> {
    armour::verify_io_flusher_on_all_threads(Path::new("/"))?;
    armour::verify_locked_memory(Path::new("/"))?;
    Ok(())
}

fn survive(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}; still serving");
    }
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
    for (index, device) in attached_as(root, BACKEND_PREFIX)? {
        tracing::warn!(
            "/dev/nbd{index} is attached by {device}: a device of ours; if no store serves it any more, it waits in vain until it is detached (nbd-client -d /dev/nbd{index}) or, if it is swap, until a reboot"
        );
    }
    armour_limits()?;
    let locked = armour::verify_locked_memory(root)?;
    tracing::debug!("kernel {release}; {} locked", locked.locked);
    Ok(())
}

/// The part of it that needs no look at the machine.
fn armour_limits() -> Result<()> {
    let root = Path::new("/");
    armour::set_io_flusher()?;
    armour::set_oom_score_adj(root, -1000)?;
    armour::raise_nofile(DESCRIPTORS)?;
    armour::lock_all_memory(root)?;
    Ok(())
}
