// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs in the memory of an NVIDIA GPU, through the driver's own library.
//!
//! A slab is a driver handle of 64 MiB with an address and an exportable
//! descriptor; a lane is a stream. The library is looked for at run time
//! ([`library`]), the device and its context are opened with the tier and after
//! [`Tier::close`] again with the next slab ([`device`]).
//!
//! What may be called when: `take`, `release`, `lane`, `close` and the rest of
//! [`Tier`] allocate, wait and take the tier's lock, which is free again while a
//! new lane is tried. A lane's `submit` and
//! `poll` take no lock: they find a slab's address and their own stream in
//! atomics that only change while no operation can be under way.

mod device;
mod host_memory;
mod kernel;
mod lane;
mod library;
mod memory;
mod nodes;
mod queue;
mod scratch;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::device::{Context, Device, Place};
use self::kernel::Kernel;
use self::lane::CudaLane;
use self::memory::DeviceMemory;
use self::queue::LaneCore;
use self::scratch::Scratch;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::tier::{Lane, LaneSetup, Tier};
use crate::engine::units::{ByteLen, SLAB_BYTES, SlabIndex};

/// How single pages are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// By one launch from as many pages on as that was measured to be faster.
    #[default]
    Measured,
    /// By a call of the driver each.
    Calls,
    /// By one launch, however few they are.
    Kernel,
}

/// Which GPU to use, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// N of the tier's name `cuda:N`.
    pub number: usize,
    /// The driver's library, an absolute path; `None`: looked for where
    /// distributions put it.
    pub library: Option<PathBuf>,
    /// The GPU.
    pub device: GpuSelector,
    /// The most slabs to hold, however large the GPU is.
    pub max_slabs: u32,
    /// How single pages are copied.
    pub copying: Copying,
    /// Below which `/dev` and `/proc` are; `/` but for tests.
    pub root: PathBuf,
}

/// The tier; see the module.
pub struct CudaTier {
    shared: Arc<Shared>,
}

/// What the tier and its lanes have in common.
struct Shared {
    name: String,
    /// The GPU in words.
    description: String,
    place: Place,
    copying: Copying,
    /// Device address of each held slab, 0 if it is not held.
    addresses: Box<[AtomicU64]>,
    is_open: AtomicBool,
    /// A lane found that the context is dead, and none was made in it since.
    lost: AtomicBool,
    state: Mutex<State>,
}

/// Undone in this order when everything ends.
struct State {
    lanes: Vec<Arc<LaneCore>>,
    held: Vec<Option<DeviceMemory>>,
    open: Option<Open>,
}

#[derive(Clone)]
struct Open {
    scratch: Arc<Scratch>,
    /// `None`: the driver cannot translate it, or it is not wanted.
    kernel: Option<Arc<Kernel>>,
    context: Arc<Context>,
}

/// What is open, for a lane that is tried: it is not closed meanwhile. The lock is
/// free, so that a call of the driver that hangs holds up nobody who needs none.
struct KeptOpen<'a> {
    lane: &'a LaneCore,
    open: Option<Open>,
}

impl std::ops::Deref for KeptOpen<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
        self.open.as_ref().expect("there until it is dropped")
    }
}

impl Drop for KeptOpen<'_> {
    fn drop(&mut self) {
        // First: whoever closes the device drops the last of it.
        self.open = None;
        self.lane.let_go();
    }
}

impl State {
    /// `None`: the device is closed.
    fn kept_open<'a>(&self, lane: &'a LaneCore) -> Option<KeptOpen<'a>> {
        let open = self.open.clone()?;
        lane.hold();
        Some(KeptOpen { lane, open: Some(open) })
    }
}

impl Open {
    fn new(place: &Place, copying: Copying) -> Result<Self> {
        let context = Arc::new(Context::open(Device::open(place)?)?);
        let granule = memory::granularity(&context)?;
        if !SLAB_BYTES.is_multiple_of(granule) {
            let (granule, slab) = (ByteLen(granule as u64), ByteLen(SLAB_BYTES as u64));
            let facts = &context.device.facts;
            return Err(Error::new(
                Kind::Missing,
                format!("GPU {facts} gives out memory by {granule}; a slab is {slab}"),
            )
            .with_hint("choose another GPU under [cuda] devices"));
        }
        let kernel = match copying {
            Copying::Calls => None,
            Copying::Kernel => Some(Kernel::load(&context)?),
            Copying::Measured => match Kernel::load(&context) {
                Err(error) if error.kind() == Kind::Missing => {
                    tracing::warn!("pages are copied one by one, which is slow: {error}");
                    if let Some(hint) = error.hint() {
                        tracing::warn!("{hint}");
                    }
                    None
                }
                loaded => Some(loaded?),
            },
        };
        let scratch = Arc::new(Scratch::new(&context, copying)?);
        Ok(Self { scratch, kernel: kernel.map(Arc::new), context })
    }
}

/// Tells the driver to load its code when it starts, not when it is first
/// needed, which may be at a moment without free memory. Call before the first
/// tier is opened. False: this process has other threads already, so that its
/// environment must not be changed any more, and the variable is not set.
#[must_use]
pub fn load_eagerly() -> bool {
    const VARIABLE: &str = "CUDA_MODULE_LOADING";
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "EAGER") {
        return true;
    }
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if alone {
        // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(VARIABLE, "EAGER") };
    }
    alone
}

impl CudaTier {
    /// Starts the driver, opens the GPU and tries it out. Costs hundreds of
    /// milliseconds and, on a large GPU, half a gigabyte of its memory.
    ///
    /// Errors: `Missing` without a library, a device node or the GPU, `Denied`
    /// for a node that may not be opened, `Invalid` for a GPU without memory of
    /// its own, `NoSpace` when its memory is full, `Checksum` for one that does
    /// not give back what it was given.
    pub fn open(options: Options) -> Result<Self> {
        let Options { number, library, device, max_slabs, copying, root } = options;
        let mut place = Place { library, device, root };
        let open = Open::new(&place, copying)?;
        let facts = &open.context.device.facts;
        if let Some(uuid) = facts.uuid {
            // Numbers can change while it is closed; it must be the same GPU again.
            place.device = GpuSelector::Uuid(uuid);
        }
        let slabs = (facts.total.0 / SLAB_BYTES as u64).min(u64::from(max_slabs)) as u32;
        Ok(Self::of(number, facts.to_string(), (place, copying), slabs, Some(open)))
    }

    /// A tier whose GPU is not opened and whose library is not even loaded, until
    /// [`Tier::open`] or the first slab. It can hold as many slabs as the options
    /// say, which must be what it could hold when it was open, and the device
    /// should be named by its UUID.
    #[must_use]
    pub fn closed(options: Options) -> Self {
        let Options { number, library, device, max_slabs, copying, root } = options;
        let place = Place { library, device, root };
        Self::of(number, format!("{device}, closed"), (place, copying), max_slabs, None)
    }

    fn of(
        number: usize,
        description: String,
        (place, copying): (Place, Copying),
        slabs: u32,
        open: Option<Open>,
    ) -> Self {
        let shared = Shared {
            name: format!("cuda:{number}"),
            description,
            place,
            copying,
            addresses: (0..slabs).map(|_| AtomicU64::new(0)).collect(),
            is_open: AtomicBool::new(open.is_some()),
            lost: AtomicBool::new(false),
            state: Mutex::new(State {
                lanes: Vec::new(),
                held: (0..slabs).map(|_| None).collect(),
                open,
            }),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The GPU in words: number, model, UUID, PCI address, memory. Equal for
    /// two tiers on one GPU.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.shared.description
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device address of a slab; 0: not held.
    fn address(&self, slab: SlabIndex) -> u64 {
        self.addresses.get(slab.0 as usize).map_or(0, |address| address.load(Ordering::Acquire))
    }

    fn what(&self, slab: SlabIndex) -> String {
        format!("tier {} slab {}", self.name, slab.0)
    }

    /// Makes `memory` the slab, opening the device first if it is closed.
    fn put(
        &self,
        slab: SlabIndex,
        memory: impl FnOnce(&Arc<Context>, String) -> Result<DeviceMemory>,
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
                let slabs = self.addresses.len();
                return Err(Error::new(Kind::Invalid, format!("{what}: there are {slabs}")));
            }
        }
        if state.open.is_none() {
            self.reopen(&mut state)?;
        }
        let Some(open) = &state.open else { unreachable!("opened above") };
        let memory = memory(&open.context, what)?;
        self.addresses[at].store(memory.address(), Ordering::Release);
        state.held[at] = Some(memory);
        Ok(())
    }

    /// Opens the device and all lanes, or none of it.
    fn reopen(&self, state: &mut State) -> Result<()> {
        let open = Open::new(&self.place, self.copying)?;
        for (done, lane) in state.lanes.iter().enumerate() {
            if let Err(error) = lane.open(&open) {
                state.lanes[..done].iter().for_each(|lane| lane.close());
                return Err(error);
            }
        }
        state.open = Some(open);
        self.lost.store(false, Ordering::Release);
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    /// Tries a lane's stream on the calling thread; a closed device has none.
    /// Also tells which context it was tried in, 0 for none.
    fn warm(&self, lane: &LaneCore) -> (u64, Result<()>) {
        let open = self.lock().kept_open(lane);
        open.map_or((0, Ok(())), |open| (open.context.id, lane.warm(&open.scratch)))
    }

    /// The context is dead.
    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// A lane ended.
    fn forget(&self, lane: &Arc<LaneCore>) {
        let mut state = self.lock();
        state.lanes.retain(|known| !Arc::ptr_eq(known, lane));
        lane.close();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A device that never answered may still work on its slabs.
        if state.lanes.iter().any(|lane| lane.is_busy()) {
            state.held.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Tier for CudaTier {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn max_slabs(&self) -> u32 {
        self.shared.addresses.len() as u32
    }

    fn take(&self, slab: SlabIndex) -> Result<()> {
        self.shared.put(slab, |context, what| DeviceMemory::take(context, what, SLAB_BYTES))
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        let mut state = self.shared.lock();
        let Some(memory) = state.held.get_mut(slab.0 as usize).and_then(Option::take) else {
            return Err(Error::new(
                Kind::Invalid,
                format!("{} is not held", self.shared.what(slab)),
            ));
        };
        self.shared.addresses[slab.0 as usize].store(0, Ordering::Release);
        memory.give_back()
    }

    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        let state = self.shared.lock();
        match state.held.get(slab.0 as usize) {
            Some(Some(memory)) => memory.export(),
            _ => Err(Error::new(Kind::Invalid, format!("{} is not held", self.shared.what(slab)))),
        }
    }

    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        self.shared
            .put(slab, |context, what| DeviceMemory::import(context, what, SLAB_BYTES, &memory))
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        let core = Arc::new(LaneCore::new(&setup));
        let open = {
            let mut state = self.shared.lock();
            // From here on it is closed and opened with the device.
            state.lanes.push(Arc::clone(&core));
            state.kept_open(&core)
        };
        let opened = open.map(|open| core.open(&open));
        match opened {
            None => {}
            Some(Ok(())) => self.shared.lost.store(false, Ordering::Release),
            Some(Err(error)) => {
                self.shared.forget(&core);
                return Err(error);
            }
        }
        Ok(Box::new(CudaLane::new(Arc::clone(&self.shared), core)))
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        match &self.shared.lock().open {
            Some(open) => open.context.memory().map(|(free, _)| Some(free)),
            None => Ok(None),
        }
    }

    /// Errors: `Busy` while a slab is held or the device works for a lane, and
    /// nothing was closed; `Io` when all was given back and yet the GPU cannot
    /// sleep, because another GPU needs this context.
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
        let Some(open) = state.open.take() else { return Ok(()) };
        let key = open.context.key();
        drop(open);
        if !Context::is_live(key) {
            return Ok(());
        }
        let text = format!(
            "tier {name} gave all its memory back, but the driver keeps its GPU open: I/O memory \
             that other GPUs use is registered through it"
        );
        Err(Error::new(Kind::Io, text).with_hint("close the other GPUs too"))
    }

    fn open(&self) -> Result<()> {
        let mut state = self.shared.lock();
        if state.open.is_some() { Ok(()) } else { self.shared.reopen(&mut state) }
    }

    fn is_open(&self) -> bool {
        self.shared.is_open.load(Ordering::Acquire)
    }

    fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Acquire)
    }

    /// The driver keeps its device nodes, and a thread, from its first start to
    /// the end of the process, whatever was released and unloaded since. The
    /// nodes belong to every open GPU of the process, so none lingers before
    /// the last is closed.
    fn lingers(&self) -> Option<String> {
        if self.is_open() || !Context::all_are_released() {
            return None;
        }
        let nodes = nodes::open_nodes(&self.shared.place.root).unwrap_or_else(|error| {
            tracing::warn!("tier {}: {error}", self.shared.name);
            Vec::new()
        });
        (!nodes.is_empty()).then(|| nodes.join(", "))
    }

    fn device(&self) -> Option<GpuSelector> {
        Some(self.shared.place.device).filter(|device| matches!(device, GpuSelector::Uuid(_)))
    }
}
