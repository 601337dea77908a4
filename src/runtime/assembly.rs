// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a store together: tiers, index, slabs held ahead of need.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::capacity::{self, Room};
use super::choice::Choice;
use crate::config::TierKind;
use crate::config::schema::{Config, Durability};
use crate::engine::error::{Error, Kind};
use crate::engine::gpu::GpuSelector;
use crate::engine::index::Index;
use crate::engine::keeper::LOW_SLOTS;
use crate::engine::orders::{Orders, Targets};
use crate::engine::store::{Role, Store, TierSetup, slabs_for};
use crate::engine::tier::{Tier, Wake};
use crate::engine::units::{ByteLen, EXTENT_BYTES, SLAB_BYTES, SLOTS_PER_SLAB};
use crate::host::memory::{Lock, available_memory};
use crate::tier::ram::{Pinning, RamTier};
use crate::tier::spill::{Prepare, SpillTier};

/// Threads that read and write the spill, for all connections.
const SPILL_WORKERS: usize = 4;
/// RAM that must be left when a RAM tier has been taken.
const LEFT_OVER: ByteLen = ByteLen(64 << 20);
/// A GPU that has not answered a copy after this long has failed: copies take
/// microseconds, and a driver that recovers a channel takes a few seconds.
const GPU_DEADLINE: Duration = Duration::from_secs(10);

/// One fast tier of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastTier {
    /// The machine's own memory.
    Ram,
    /// A GPU through libcuda.
    Cuda {
        /// The driver's library; `None`: looked for.
        library: Option<PathBuf>,
        /// Which GPU.
        device: GpuSelector,
    },
    /// A GPU through Vulkan.
    Vulkan {
        /// The Vulkan loader; `None`: looked for.
        library: Option<PathBuf>,
        /// Which GPU; `None`: the first with memory of its own.
        device: Option<GpuSelector>,
    },
}

impl FastTier {
    /// A request that takes longer fails; `None`: none does.
    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Ram => None,
            Self::Cuda { .. } | Self::Vulkan { .. } => Some(GPU_DEADLINE),
        }
    }
}

/// What a store is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of all devices together, a multiple of 2 MiB; after
    /// [`Plan::build`] what was got.
    pub size: ByteLen,
    /// The least that will do where `size` is not to be had; `None`: `size`.
    pub min_size: Option<ByteLen>,
    /// What the fast tiers were asked for as.
    pub tier: TierKind,
    /// The fast tiers, in the order in which they are filled.
    pub fast: Vec<FastTier>,
    /// How many slabs each fast tier can hold that begins closed; `None`, and all
    /// of an empty list: it begins open.
    pub closed: Vec<Option<u32>>,
    /// What the choice of `auto` rests on.
    pub why: Option<String>,
    /// The most bytes of the fast tiers to hold, all together.
    pub tier_size: ByteLen,
    /// Bytes of each fast tier's memory left free for others.
    pub reserve: ByteLen,
    /// Where pages go that the fast tiers cannot hold.
    pub spill: Option<PathBuf>,
    /// Whether pages carry checksums.
    pub checksums: bool,
    /// What a write must have reached before it is answered.
    pub durability: Durability,
    /// Whether all memory must stay in RAM.
    pub lock: Lock,
}

impl Plan {
    /// The plan that a configuration file states, for a device under swap.
    #[must_use]
    pub fn armed(config: &Config) -> Self {
        let cuda = config.cuda.clone().unwrap_or_default();
        let vulkan = config.vulkan.clone().unwrap_or_default();
        let Choice { tiers, why } =
            Choice::make(config.tier.kind, &cuda, &vulkan, config.tier.size);
        Self {
            size: config.swap.size,
            min_size: config.swap.min_size,
            tier: config.tier.kind,
            fast: tiers,
            closed: Vec::new(),
            why,
            tier_size: config.tier.size,
            reserve: config.tier.reserve,
            spill: config.spill.as_ref().map(|spill| spill.path.clone()),
            checksums: config.swap.checksums,
            durability: config.swap.durability,
            lock: Lock::Required,
        }
    }

    /// Extents of all devices together.
    #[must_use]
    pub fn extents(&self) -> u32 {
        (self.size.0 / EXTENT_BYTES as u64) as u32
    }

    /// Slabs of the fast tiers that may be held, all together.
    #[must_use]
    pub fn fast_slabs(&self) -> u32 {
        let asked = self.tier_size.0.div_ceil(SLAB_BYTES as u64) as u32;
        asked.min(slabs_for(self.extents()))
    }

    /// What the keeper is told at the start.
    #[must_use]
    pub fn orders(&self) -> Orders {
        let bytes = u64::from(self.fast_slabs()) * SLAB_BYTES as u64;
        Orders { targets: Targets::Total(ByteLen(bytes)), reserve: self.reserve, close: false }
    }

    /// Makes this the plan of a store that has `extents`, which may be fewer than
    /// were asked for. `Err`: it cannot be one of this plan.
    pub fn resume(&mut self, extents: u32) -> Result<(), String> {
        let size = ByteLen(u64::from(extents) * EXTENT_BYTES as u64);
        let least = self.min_size.unwrap_or(self.size);
        if size > self.size || size < least {
            return Err(format!(
                "the index is of {size}, the configuration in force of {least} to {}",
                self.size
            ));
        }
        self.size = size;
        Ok(())
    }

    /// Names the GPU of each fast tier, where it is known better than by the
    /// configuration.
    pub fn name_gpus(&mut self, gpus: &[Option<GpuSelector>]) {
        for (planned, gpu) in self.fast.iter_mut().zip(gpus) {
            if let (FastTier::Cuda { device, .. }, Some(gpu)) = (planned, gpu) {
                *device = *gpu;
            }
        }
    }

    /// Whether a fast tier's slabs are memory that another process can map and
    /// lock.
    #[must_use]
    pub fn slabs_can_be_locked(&self, tier: usize) -> bool {
        self.fast.get(tier) == Some(&FastTier::Ram)
    }

    /// Builds the store in this process's own memory; see [`Plan::fill`].
    pub fn build(&mut self, prepare_worker: &Prepare, keeper: Arc<dyn Wake>) -> Result<Arc<Store>> {
        let tiers = self.tiers(prepare_worker, None)?;
        let store = self.fill(&tiers, |extents| Ok(Index::new(extents)))?;
        Ok(Arc::new(store.with_keeper(keeper)))
    }

    /// The tiers, fastest first, none of whose slabs is held. A spill that is
    /// open already is used in place of opening its path.
    pub fn tiers(
        &self,
        prepare_worker: &Prepare,
        spill: Option<OwnedFd>,
    ) -> Result<Vec<TierSetup>> {
        let mut tiers = self.open_fast_tiers()?;
        if let Some(path) = &self.spill {
            let spill = match spill {
                Some(open) => SpillTier::adopt(open, path, SPILL_WORKERS, prepare_worker)?,
                None => SpillTier::open(path, SPILL_WORKERS, prepare_worker)?,
            };
            tiers.push(TierSetup { tier: Arc::new(spill), role: Role::Spill, deadline: None });
        }
        Ok(tiers)
    }

    /// A store of `tiers` that holds what must be held before the first request,
    /// over an index of so many extents from `index`. With a spill, slabs of the
    /// fast tiers are taken ahead of need by the keeper; without one, all are
    /// held when this returns, and `self.size` is what could be: `index` is asked
    /// again for fewer extents.
    pub fn fill(
        &mut self,
        tiers: &[TierSetup],
        index: impl FnMut(u32) -> Result<Index>,
    ) -> Result<Store> {
        if self.spill.is_some() {
            self.fill_elastic(tiers, index)
        } else {
            self.fill_whole(tiers, index)
        }
    }

    fn store(&self, tiers: &[TierSetup], index: Index) -> Result<Store> {
        let store = Store::new(index, tiers.to_vec(), self.checksums)?;
        Ok(match self.durability {
            Durability::Writeback => store,
            Durability::Mirror => store.with_mirror()?,
        })
    }

    /// A store that can do without fast tiers: a first slab of them, if there
    /// is room for one.
    fn fill_elastic(
        &self,
        tiers: &[TierSetup],
        mut index: impl FnMut(u32) -> Result<Index>,
    ) -> Result<Store> {
        let store = self.store(tiers, index(self.extents())?)?;
        store.hold_slabs(self.fast.len(), slabs_for(self.extents()))?;
        let first = LOW_SLOTS.div_ceil(SLOTS_PER_SLAB as u32).min(self.fast_slabs());
        let room = &self.rooms(tiers)?[0];
        if self.fast[0] == FastTier::Ram {
            let size = ByteLen(u64::from(first) * SLAB_BYTES as u64);
            capacity::fit(size, None, std::slice::from_ref(room))?;
            store.hold_slabs(0, first)?;
        } else if room.slabs() < first {
            tracing::warn!(
                "tier {} has no room above the reserve now; the spill is used",
                room.tier
            );
        } else if let Err(error) = store.hold_slabs(0, first) {
            if error.kind() != Kind::NoSpace {
                return Err(error.into());
            }
            tracing::warn!("{error}; the spill is used");
        }
        Ok(store)
    }

    /// A store that holds everything in its fast tiers, as large as it may and
    /// can be.
    fn fill_whole(
        &mut self,
        tiers: &[TierSetup],
        mut index: impl FnMut(u32) -> Result<Index>,
    ) -> Result<Store> {
        let asked = self.size;
        let least = self.min_size.unwrap_or(asked);
        loop {
            let rooms = self.rooms(tiers)?;
            self.size =
                capacity::fit(self.size, self.min_size.filter(|_| self.size > least), &rooms)?;
            let store = self.store(tiers, index(self.extents())?)?;
            match hold(&store, &capacity::spread(slabs_for(self.extents()), &rooms)) {
                Ok(()) => {
                    if self.size < asked {
                        tracing::warn!("{asked} were asked for; the store has {}", self.size);
                    }
                    return Ok(store);
                }
                // What a driver calls free is not always to be had.
                Err(error) if error.kind() == Kind::NoSpace && self.size > least => {
                    tracing::info!("{error}; trying a smaller size than {}", self.size);
                    for tier in 0..tiers.len() {
                        while store.release_empty_slab(tier)? {}
                    }
                    self.size = capacity::step_down(self.size, least);
                }
                Err(error) => {
                    let size = self.size;
                    return Err(error).with_context(|| {
                        format!("{size} of tier {} could not be held", self.tier.name())
                    });
                }
            }
        }
    }

    /// What each fast tier could hold now.
    fn rooms(&self, tiers: &[TierSetup]) -> Result<Vec<Room>> {
        let room = |(setup, planned): (&TierSetup, &FastTier)| {
            let tier = &setup.tier;
            // Memory that is locked and not there is found by the kernel at the
            // cost of other programs.
            let work = if *planned == FastTier::Ram { LEFT_OVER.0 } else { 0 };
            Ok(Room {
                tier: tier.name().to_owned(),
                max_slabs: tier.max_slabs(),
                free: tier.free_bytes()?,
                kept: self.reserve.0.saturating_add(work),
            })
        };
        tiers.iter().zip(&self.fast).map(room).collect()
    }

    fn open_fast_tiers(&self) -> Result<Vec<TierSetup>> {
        let mut gpus = Vec::new();
        let tiers: Result<Vec<_>> = self
            .fast
            .iter()
            .enumerate()
            .map(|(number, planned)| {
                let tier = match planned {
                    FastTier::Ram => self.ram(),
                    FastTier::Cuda { library, device } => {
                        self.cuda(number, library.clone(), *device, &mut gpus)?
                    }
                    FastTier::Vulkan { library, device } => {
                        self.vulkan(number, library.clone(), *device, &mut gpus)?
                    }
                };
                Ok(TierSetup { tier, role: Role::Fast, deadline: planned.deadline() })
            })
            .collect();
        match &self.why {
            Some(why) => {
                let tiers = tiers.with_context(|| {
                    format!("tier auto found no GPU memory to use; it tried {why}")
                })?;
                tracing::info!("tier auto is {why}");
                Ok(tiers)
            }
            None => tiers,
        }
    }

    fn ram(&self) -> Arc<dyn Tier> {
        let pinning = match self.lock {
            Lock::Required => Pinning::Locked,
            Lock::None => Pinning::Pageable,
        };
        let free = || available_memory(Path::new("/")).map(|bytes| bytes.0);
        Arc::new(RamTier::new(self.fast_slabs(), pinning, Box::new(free)))
    }

    #[cfg(feature = "vulkan")]
    fn vulkan(
        &self,
        number: usize,
        library: Option<PathBuf>,
        device: Option<GpuSelector>,
        gpus: &mut Vec<String>,
    ) -> Result<Arc<dyn Tier>> {
        use crate::tier::vulkan::{Options, VulkanTier};
        let root = PathBuf::from("/");
        let max_slabs = self.fast_slabs();
        let (by, mapped) = (None, true);
        let tier =
            VulkanTier::open(Options { number, library, device, max_slabs, by, mapped, root })?;
        let offer = tier.offer();
        let (name, gpu) = (tier.name(), &offer.description);
        tracing::info!("tier {name} is GPU {gpu}, by {}", offer.driver);
        tracing::info!("tier {name} moves pages: {}", tier.ways());
        if offer.software {
            tracing::warn!("tier {name} is a program on the CPU: its memory is the machine's own");
        } else if !offer.stays {
            tracing::warn!("tier {name}: this driver may move pages to RAM when the GPU is full");
        }
        if gpus.contains(gpu) {
            let text = format!("tier {name} is GPU {gpu}, which is listed already");
            return Err(Error::new(Kind::Invalid, text)
                .with_hint("name each GPU once under [vulkan] devices")
                .into());
        }
        gpus.push(gpu.clone());
        Ok(Arc::new(tier))
    }

    #[cfg(not(feature = "vulkan"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn vulkan(
        &self,
        _: usize,
        _: Option<PathBuf>,
        _: Option<GpuSelector>,
        _: &mut Vec<String>,
    ) -> Result<Arc<dyn Tier>> {
        Err(Error::new(Kind::Missing, "this program was built without vulkan")
            .with_hint("build it with the feature vulkan, or use tier cuda or ram")
            .into())
    }

    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        number: usize,
        library: Option<PathBuf>,
        device: GpuSelector,
        gpus: &mut Vec<String>,
    ) -> Result<Arc<dyn Tier>> {
        use crate::tier::cuda::{Copying, CudaTier, Options, load_eagerly};
        if !load_eagerly() {
            tracing::warn!("CUDA_MODULE_LOADING=EAGER is not set and cannot be set any more");
        }
        let (root, copying) = (PathBuf::from("/"), Copying::Measured);
        if let Some(max_slabs) = self.closed.get(number).copied().flatten() {
            tracing::info!("tier cuda:{number} stays closed");
            let options = Options { number, library, device, max_slabs, copying, root };
            return Ok(Arc::new(CudaTier::closed(options)));
        }
        let max_slabs = self.fast_slabs();
        let tier = CudaTier::open(Options { number, library, device, max_slabs, copying, root })?;
        let gpu = tier.description().to_owned();
        tracing::info!("tier {} is GPU {gpu}", tier.name());
        if gpus.contains(&gpu) {
            return Err(Error::new(
                Kind::Invalid,
                format!("{device} is GPU {gpu}, which is listed already"),
            )
            .with_hint("name each GPU once under [cuda] devices")
            .into());
        }
        gpus.push(gpu);
        Ok(Arc::new(tier))
    }

    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn cuda(
        &self,
        _: usize,
        _: Option<PathBuf>,
        device: GpuSelector,
        _: &mut Vec<String>,
    ) -> Result<Arc<dyn Tier>> {
        Err(Error::new(Kind::Missing, format!("GPU {device}: this program was built without cuda"))
            .with_hint("build it with the feature cuda, or use tier ram")
            .into())
    }
}

/// Takes so many slabs of each tier.
fn hold(store: &Store, slabs: &[u32]) -> Result<(), Error> {
    slabs.iter().enumerate().try_for_each(|(tier, slabs)| store.hold_slabs(tier, *slabs))
}
