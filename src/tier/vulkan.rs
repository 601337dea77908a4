// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs in the memory of any GPU whose driver speaks Vulkan, reached by the CPU
//! through a mapping of it.
//!
//! A slab is an allocation of 64 MiB that can be given out as a descriptor and,
//! where the device has memory that can be mapped, an address. The Vulkan loader
//! is looked for at run time ([`loader`]), the device is chosen by what it can do
//! ([`gpus`], [`types`]), opened with the tier, and after [`Tier::close`] again
//! with the next slab ([`device`]).
//!
//! Memory that cannot be mapped, and what the device is measured to be faster at,
//! is moved by the device itself: by its copy queue, or by a program that moves
//! many pages in one go ([`channel`], [`gather`], [`limits`], [`trial`]).
//!
//! What may be called when: `take`, `release`, `lane`, `close` and the rest of
//! [`Tier`] allocate, wait and take the tier's lock. A lane's `submit` and `poll`
//! take no lock: they find a slab's place and their own channel in atomics that
//! only change while no operation can be under way.

mod channel;
mod copy;
mod device;
mod gather;
mod gpus;
mod lane;
mod limits;
mod loader;
mod memory;
mod nodes;
mod open;
mod reach;
mod slab;
mod trial;
mod types;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::copy::Copier;
use self::device::{Device, Place};
use self::lane::{LaneCore, VulkanLane};
pub use self::limits::By;
use self::memory::DeviceMemory;
use self::open::Opened;
use self::slab::Slab;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::{GpuSelector, Offer};
use crate::engine::tier::{Lane, LaneSetup, Tier};
use crate::engine::units::{ByteLen, SLAB_BYTES, SlabIndex};

/// Which GPU to use, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// N of the tier's name `vulkan:N`.
    pub number: usize,
    /// The Vulkan loader, an absolute path; `None`: looked for where distributions
    /// put it.
    pub library: Option<PathBuf>,
    /// The GPU; `None`: the first with memory of its own. A software device is
    /// taken only when it is named.
    pub device: Option<GpuSelector>,
    /// The most slabs to hold, however large the GPU is.
    pub max_slabs: u32,
    /// What moves pages wherever it can; `None`: what is measured to be the fastest.
    pub by: Option<By>,
    /// Whether the CPU reaches memory that can be mapped; if not, the device moves
    /// everything.
    pub mapped: bool,
    /// Below which `/proc` is; `/` but for tests.
    pub root: PathBuf,
}

/// Allocations that are left to others of this process, and to the tier itself.
const SPARE_ALLOCATIONS: u32 = 64;

/// The tier; see the module.
pub struct VulkanTier {
    shared: Arc<Shared>,
}

/// What the tier and its lanes have in common.
struct Shared {
    name: String,
    /// The GPU as it was found.
    offer: Offer,
    place: Place,
    copier: Copier,
    by: Option<By>,
    /// How pages are moved, in words: a status must not wait for the lock.
    ways: String,
    /// Where each slab is.
    slabs: Box<[Slab]>,
    /// Slabs held that are mapped.
    mapped: AtomicU32,
    is_open: AtomicBool,
    /// The device refused or failed what it was given.
    lost: AtomicBool,
    state: Mutex<State>,
}

/// Undone in this order when everything ends.
struct State {
    lanes: Vec<Arc<LaneCore>>,
    held: Vec<Option<DeviceMemory>>,
    open: Option<Opened>,
}

/// Every device that the Vulkan drivers of this machine offer.
///
/// Errors: `Missing` without a loader or a driver.
pub fn offers(library: Option<&Path>) -> Result<Vec<Offer>> {
    let instance = loader::Instance::open(library)?;
    Ok(gpus::list(&instance)?.iter().map(|gpu| Offer::from(&gpu.facts)).collect())
}

/// The devices that a tier of each of `devices` would use, or without any the one
/// that is used where none is named. None is opened.
///
/// Errors: `Missing` without a loader, a driver or one of the GPUs, `Invalid` for
/// one without memory of its own.
pub fn offers_of(library: Option<&Path>, devices: &[GpuSelector]) -> Result<Vec<Offer>> {
    let instance = loader::Instance::open(library)?;
    let offer = |device| gpus::find(&instance, device).map(|gpu| Offer::from(&gpu.facts));
    if devices.is_empty() {
        return Ok(vec![offer(None)?]);
    }
    devices.iter().map(|device| offer(Some(device))).collect()
}

impl VulkanTier {
    /// Starts the drivers, opens the GPU and tries it out. Costs a fraction of a
    /// second and some 50 MiB of the GPU's memory.
    ///
    /// Errors: `Missing` without a loader, a driver, the GPU, or memory in it that
    /// will do; `Invalid` for a GPU without memory of its own; `NoSpace` when its
    /// memory is full; `Checksum` for one that does not give back what it was given.
    pub fn open(options: Options) -> Result<Self> {
        let Options { number, library, device, max_slabs, by, mapped, root } = options;
        let copier = Copier::new().ok_or_else(|| {
            let processor = std::env::consts::ARCH;
            Error::new(Kind::Missing, format!("tier vulkan has no copy routines for {processor}"))
                .with_hint("use tier cuda")
        })?;
        let mut place = Place { library, device, mapped, root };
        let open = Opened::new(&place, copier, by)?;
        let facts = open.device.facts();
        // Numbers can change while it is closed; it must be the same GPU again.
        place.device = Some(GpuSelector::Uuid(facts.uuid));
        let most = (open.device.types.total().0 / SLAB_BYTES as u64)
            .min(u64::from(facts.max_allocations.saturating_sub(SPARE_ALLOCATIONS)));
        let slabs = most.min(u64::from(max_slabs)) as usize;
        let shared = Shared {
            name: format!("vulkan:{number}"),
            offer: Offer::from(facts),
            place,
            copier,
            by,
            ways: format!("the CPU by {}; {}", copier.name(), open.limits),
            slabs: (0..slabs).map(|_| Slab::default()).collect(),
            mapped: AtomicU32::new(0),
            is_open: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            state: Mutex::new(State {
                lanes: Vec::new(),
                held: (0..slabs).map(|_| None).collect(),
                open: Some(open),
            }),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The GPU as it was found. Its description is equal for two tiers on one GPU.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.shared.offer
    }

    /// How pages are moved, in words, as it was measured when the tier was opened.
    #[must_use]
    pub fn ways(&self) -> &str {
        &self.shared.ways
    }

    /// Bytes of the slabs held that the CPU reaches.
    #[must_use]
    pub fn mapped_bytes(&self) -> ByteLen {
        ByteLen(u64::from(self.shared.mapped.load(Ordering::Relaxed)) * SLAB_BYTES as u64)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slab(&self, slab: SlabIndex) -> Option<&Slab> {
        self.slabs.get(slab.0 as usize)
    }

    fn what(&self, slab: SlabIndex) -> String {
        format!("tier {} slab {}", self.name, slab.0)
    }

    fn not_held(&self, slab: SlabIndex) -> Error {
        Error::new(Kind::Invalid, format!("{} is not held", self.what(slab)))
    }

    /// Makes `memory` the slab, opening the device first if it is closed.
    fn put(
        &self,
        slab: SlabIndex,
        memory: impl FnOnce(&Arc<Device>, String) -> Result<DeviceMemory>,
    ) -> Result<()> {
        let mut state = self.lock();
        let at = slab.0 as usize;
        let what = self.what(slab);
        match state.held.get(at) {
            Some(None) => {}
            Some(Some(_)) => {
                return Err(Error::new(Kind::Invalid, format!("{what} is held already")));
            }
            None => {
                let slabs = self.slabs.len();
                return Err(Error::new(Kind::Invalid, format!("{what}: there are {slabs}")));
            }
        }
        if state.open.is_none() {
            self.reopen(&mut state)?;
        }
        let Some(open) = &state.open else { unreachable!("opened above") };
        let memory = memory(&open.device, what)?;
        if !memory.base().is_null() {
            self.mapped.fetch_add(1, Ordering::Relaxed);
        }
        self.slabs[at].show(&memory);
        state.held[at] = Some(memory);
        Ok(())
    }

    /// Opens the device and all lanes, or none of it.
    fn reopen(&self, state: &mut State) -> Result<()> {
        let open = Opened::new(&self.place, self.copier, self.by)?;
        for (done, lane) in state.lanes.iter().enumerate() {
            if let Err(error) = open.equip(lane) {
                state.lanes[..done].iter().for_each(|lane| lane.close());
                return Err(error);
            }
        }
        state.open = Some(open);
        self.lost.store(false, Ordering::Release);
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs a lane's channel on the calling thread, which is the lane's before its
    /// first operation; a closed device has none.
    fn warm(&self, lane: &LaneCore) -> Result<()> {
        self.lock().open.as_ref().map_or(Ok(()), |open| open.warm(lane))
    }

    /// A lane ended.
    fn forget(&self, lane: &Arc<LaneCore>) {
        let mut state = self.lock();
        state.lanes.retain(|known| !Arc::ptr_eq(known, lane));
        lane.close();
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// From now on the device is given nothing.
    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A device that never answered may still work on its slabs.
        if state.lanes.iter().any(|lane| lane.is_busy()) {
            state.held.drain(..).for_each(std::mem::forget);
            std::mem::forget(state.open.take());
        }
    }
}

impl Tier for VulkanTier {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn about(&self) -> String {
        let Offer { description, driver, .. } = &self.shared.offer;
        let mapped = self.mapped_bytes();
        format!(
            "GPU {description} by {driver}; {mapped} of it mapped; pages move by {}",
            self.ways()
        )
    }

    fn max_slabs(&self) -> u32 {
        self.shared.slabs.len() as u32
    }

    fn take(&self, slab: SlabIndex) -> Result<()> {
        self.shared.put(slab, |device, what| DeviceMemory::take(device, what, SLAB_BYTES))
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        let mut state = self.shared.lock();
        let memory = state
            .held
            .get_mut(slab.0 as usize)
            .and_then(Option::take)
            .ok_or_else(|| self.shared.not_held(slab))?;
        self.shared.slabs[slab.0 as usize].hide();
        if !memory.base().is_null() {
            self.shared.mapped.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Errors: `Missing` where the driver cannot give memory out; pages in it
    /// would be lost with this process.
    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        match self.shared.lock().held.get(slab.0 as usize) {
            Some(Some(memory)) => memory.export(),
            _ => Err(self.shared.not_held(slab)),
        }
    }

    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        self.shared
            .put(slab, |device, what| DeviceMemory::import(device, what, SLAB_BYTES, &memory))
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        let core = Arc::new(LaneCore::new(&setup));
        let mut state = self.shared.lock();
        if let Some(open) = &state.open {
            open.equip(&core)?;
        }
        state.lanes.push(Arc::clone(&core));
        drop(state);
        let (shared, copier) = (Arc::clone(&self.shared), self.shared.copier);
        Ok(Box::new(VulkanLane::new(shared, core, copier, setup.depth)))
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        let state = self.shared.lock();
        let Some(Opened { device, .. }) = &state.open else { return Ok(None) };
        // A driver that does not tell what others use: all that is not ours.
        let ours = state.held.iter().flatten().count() as u64 * SLAB_BYTES as u64;
        Ok(Some(device.free_bytes().unwrap_or_else(|| device.types.total().0.saturating_sub(ours))))
    }

    /// Errors: `Busy` while a slab is held or the device works for a lane, and
    /// nothing was closed; `Io` when all was given back and yet the GPU cannot
    /// sleep, because the driver keeps device nodes open, which it names.
    fn close(&self) -> Result<()> {
        let mut state = self.shared.lock();
        let name = &self.shared.name;
        let held = state.held.iter().flatten().count();
        if held > 0 {
            return Err(Error::new(Kind::Busy, format!("tier {name} holds {held} slabs"))
                .with_hint("move their pages away first"));
        }
        if state.lanes.iter().any(|lane| lane.is_busy()) {
            let text = format!("tier {name} has operations that the GPU never finished");
            return Err(
                Error::new(Kind::Busy, text).with_hint("reset the GPU, or restart the store")
            );
        }
        self.shared.is_open.store(false, Ordering::Release);
        state.lanes.iter().for_each(|lane| lane.close());
        drop(state.open.take());
        // The nodes of the control device belong to every open GPU of the process.
        if Device::any_open() {
            return Ok(());
        }
        let nodes = nodes::open_nodes(&self.shared.place.root)?;
        if nodes.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Io,
            format!("tier {name} is closed, but the driver keeps {} open", nodes.join(", ")),
        )
        .with_hint("to let the GPU sleep, stop the store"))
    }

    fn open(&self) -> Result<()> {
        let mut state = self.shared.lock();
        if state.open.is_some() { Ok(()) } else { self.shared.reopen(&mut state) }
    }

    fn is_open(&self) -> bool {
        self.shared.is_open.load(Ordering::Acquire)
    }
}
