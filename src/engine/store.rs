// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page store of one device: index, extent locks and tiers, shared by all
//! threads without a lock. Requests go through a [`super::session::Session`]
//! per I/O thread; one [`super::mover::Mover`] moves extents.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::counters::{Counters, Totals};
use super::error::{Error, Kind, Result};
use super::index::{Index, Place};
use super::pins::{Pin, Unpinned};
use super::slots::{PoolCount, SlotPool};
use super::tier::{Tier, Wake};
use super::units::{ByteLen, EXTENT_BYTES, ExtentIndex, SLOTS_PER_SLAB, SlabIndex, SlotIndex};

/// What a tier is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Holds pages by choice: GPU memory, RAM.
    Fast,
    /// Holds what the fast tiers cannot: a partition or file, always large
    /// enough for the whole device.
    Spill,
}

/// A tier as the store uses it. The store tries tiers in the order given.
pub struct TierSetup {
    /// The adapter.
    pub tier: Arc<dyn Tier>,
    /// What it is for.
    pub role: Role,
    /// A request not answered by the tier in this time fails; `None`: wait for
    /// ever (a disk's own error handling decides).
    pub deadline: Option<Duration>,
}

/// A tier with its slots.
pub struct TierSlots {
    pub(super) setup: TierSetup,
    pub(super) pool: SlotPool,
    /// Owner extent + 1 of each slot in use, 0 if free. Volatile; for the mover.
    owners: Box<[AtomicU32]>,
    /// Set by the first failure: no new pages go here.
    faulty: AtomicBool,
}

impl TierSlots {
    /// The adapter.
    #[must_use]
    pub fn tier(&self) -> &Arc<dyn Tier> {
        &self.setup.tier
    }

    /// What the tier is for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.setup.role
    }

    /// The tier's slots, for the keeper.
    #[must_use]
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// Slab and slot counts.
    #[must_use]
    pub fn count(&self) -> PoolCount {
        self.pool.count()
    }

    /// True after the first failure.
    #[must_use]
    pub fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    /// The extent that uses a slot.
    pub(super) fn owner(&self, slot: SlotIndex) -> Option<ExtentIndex> {
        self.owners[slot.0 as usize].load(Ordering::Relaxed).checked_sub(1).map(ExtentIndex)
    }

    pub(super) fn set_owner(&self, slot: SlotIndex, extent: Option<ExtentIndex>) {
        self.owners[slot.0 as usize].store(extent.map_or(0, |e| e.0 + 1), Ordering::Relaxed);
    }
}

/// The page store.
pub struct Store {
    pub(super) index: Index,
    pub(super) pins: Box<[Pin]>,
    /// Writes begun per extent: tells a torn read from a corrupt one.
    pub(super) writes_begun: Box<[AtomicU32]>,
    pub(super) tiers: Vec<TierSlots>,
    pub(super) checksums: bool,
    /// Rung when a slot was taken or given back: the keeper has a look.
    keeper: Option<Arc<dyn Wake>>,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("extents", &self.extents()).finish_non_exhaustive()
    }
}

/// Slabs that hold `extents` extents.
#[must_use]
pub fn slabs_for(extents: u32) -> u32 {
    extents.div_ceil(SLOTS_PER_SLAB as u32)
}

impl Store {
    /// A store over `index` with `tiers` in order of preference, no slab held.
    ///
    /// Fails with `Invalid` when the tiers together could not hold the whole
    /// device: capacity never lies. With a spill, the spill alone must; without
    /// one, the fast tiers must.
    pub fn new(index: Index, tiers: Vec<TierSetup>, checksums: bool) -> Result<Self> {
        let extents = index.extents();
        let needed = slabs_for(extents);
        let able = |role| -> u32 {
            tiers.iter().filter(|t| t.role == role).map(|t| t.tier.max_slabs()).sum()
        };
        let has_spill = tiers.iter().any(|t| t.role == Role::Spill);
        let (what, have) = if has_spill {
            ("the spill", able(Role::Spill))
        } else {
            ("the fast tiers without a spill", able(Role::Fast))
        };
        if have < needed {
            let bytes = |slabs: u32| ByteLen(u64::from(slabs) * super::units::SLAB_BYTES as u64);
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "a device of {} needs {}, but {what} can hold {}",
                    ByteLen(u64::from(extents) * EXTENT_BYTES as u64),
                    bytes(needed),
                    bytes(have)
                ),
            )
            .with_hint("make the device smaller or the spill larger"));
        }
        let tiers = tiers
            .into_iter()
            .map(|setup| {
                // A large disk needs no table beyond what the device can fill,
                // with as much again to move extents into.
                let slabs = setup.tier.max_slabs().min(needed.saturating_mul(2) + 1);
                TierSlots {
                    pool: SlotPool::new(slabs),
                    owners: (0..slabs as usize * SLOTS_PER_SLAB)
                        .map(|_| AtomicU32::new(0))
                        .collect(),
                    faulty: AtomicBool::new(false),
                    setup,
                }
            })
            .collect();
        Ok(Self {
            pins: (0..extents).map(|_| Pin::default()).collect(),
            writes_begun: (0..extents).map(|_| AtomicU32::new(0)).collect(),
            index,
            tiers,
            checksums,
            keeper: None,
            counters: Mutex::new(Vec::new()),
        })
    }

    /// Rings `keeper` whenever slots were taken or given back.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Arc<dyn Wake>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    fn call_keeper(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.wake();
        }
    }

    /// Extents of the device.
    #[must_use]
    pub fn extents(&self) -> u32 {
        self.index.extents()
    }

    /// Bytes of the device.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        u64::from(self.extents()) * EXTENT_BYTES as u64
    }

    /// The tiers in order of preference.
    #[must_use]
    pub fn tiers(&self) -> &[TierSlots] {
        &self.tiers
    }

    /// True if a tier of role spill backs the device.
    #[must_use]
    pub fn has_spill(&self) -> bool {
        self.tiers.iter().any(|t| t.role() == Role::Spill)
    }

    /// Takes a slab of a tier and gives its slots out. Blocks and allocates:
    /// keeper and start-up only. False: the tier holds all it can.
    pub fn take_slab(&self, tier: usize) -> Result<bool> {
        let slots = &self.tiers[tier];
        let Some(slab) = slots.pool.first_absent() else { return Ok(false) };
        slots.tier().take(SlabIndex(slab))?;
        slots.pool.open(slab);
        Ok(true)
    }

    /// Takes slabs until the tier holds `slabs`.
    pub fn hold_slabs(&self, tier: usize, slabs: u32) -> Result<()> {
        while self.tiers[tier].count().held < slabs {
            if !self.take_slab(tier)? {
                return Err(Error::new(
                    Kind::NoSpace,
                    format!(
                        "tier {} can hold {} slabs of 64 MiB, {slabs} were asked for",
                        self.tiers[tier].tier().name(),
                        self.tiers[tier].pool.max_slabs()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Gives this slab back to its tier, if it is held and empty. Keeper only.
    pub fn release_slab(&self, tier: usize, slab: u32) -> Result<bool> {
        let slots = &self.tiers[tier];
        if slots.pool.used_in(slab) != Some(0) || !slots.pool.retire(slab) {
            return Ok(false);
        }
        let released = slots.tier().release(SlabIndex(slab));
        if released.is_err() {
            slots.pool.condemn(slab);
        }
        released.map(|()| true)
    }

    /// Gives one empty slab of the tier back to it, the highest first.
    /// False: none is empty. A slab that the tier fails to release counts as
    /// held and quarantined from then on. Keeper only.
    pub fn release_empty_slab(&self, tier: usize) -> Result<bool> {
        for slab in (0..self.tiers[tier].pool.max_slabs()).rev() {
            if self.release_slab(tier, slab)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A free slot in the first tier that has one, and whether a faster tier
    /// had to be passed over. `None`: no slot anywhere at this moment.
    ///
    /// Faulty tiers get no pages, unless the spill is one of them: a disk that
    /// failed once may well take the page, and one that does not says so, while
    /// a write that waits for a slot that cannot come waits for ever.
    pub(super) fn alloc(&self) -> Option<(Place, bool)> {
        let last = if self.has_spill() { Role::Spill } else { Role::Fast };
        self.alloc_where(|slots| !slots.is_faulty()).or_else(|| {
            let gone = self.tiers.iter().all(|t| t.role() != last || t.is_faulty());
            gone.then(|| self.alloc_where(|slots| slots.role() == last)).flatten()
        })
    }

    fn alloc_where(&self, usable: impl Fn(&TierSlots) -> bool) -> Option<(Place, bool)> {
        let mut passed = false;
        self.call_keeper();
        for (n, slots) in self.tiers.iter().enumerate() {
            if !usable(slots) {
                continue;
            }
            if let Some((slab, within)) = slots.pool.alloc() {
                let slot = SlotIndex::new(SlabIndex(slab), within);
                return Some((Place { tier: n as u8, slot }, passed));
            }
            passed = true;
        }
        None
    }

    /// Gives a slot back to its tier.
    pub(super) fn free(&self, place: Place) {
        let slots = &self.tiers[place.tier as usize];
        slots.set_owner(place.slot, None);
        slots.pool.free(place.slab().0, place.slot.within());
        self.call_keeper();
    }

    /// Changes an extent's place. The caller owns the extent.
    pub(super) fn flip(&self, extent: ExtentIndex, place: Option<Place>) {
        debug_assert!(self.pins[extent.0 as usize].is_owned(), "only an owner moves {extent:?}");
        self.index.flip(extent, place);
    }

    /// Gives a pin back, and sweeps the extent if that falls to this caller.
    pub(super) fn unpin(&self, extent: ExtentIndex) {
        let pin = &self.pins[extent.0 as usize];
        if pin.unpin() == Unpinned::Sweep {
            if self.index.is_vacant(extent)
                && let Some(place) = self.index.place(extent)
            {
                self.flip(extent, None);
                self.free(place);
            }
            pin.end_sweep();
        }
    }

    /// Notes that a tier failed: no new pages go there. True the first time.
    pub(super) fn fault(&self, tier: u8) -> bool {
        !self.tiers[tier as usize].faulty.swap(true, Ordering::Relaxed)
    }

    /// A new set of counters that [`Store::totals`] includes.
    pub(super) fn counters(&self) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }

    /// The sum over all threads that ever served this store.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for counters in self.counters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            totals.add(counters);
        }
        totals
    }

    /// Pages written and not trimmed. More than the kernel considers live: it
    /// trims whole 2 MiB clusters only. Walks the index.
    #[must_use]
    pub fn written_pages(&self) -> u64 {
        (0..self.extents())
            .map(|extent| u64::from(self.index.written_pages(ExtentIndex(extent))))
            .sum()
    }

    /// Bytes of memory that index and locks take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let slots: usize = self.tiers.iter().map(|t| t.owners.len() * 4).sum();
        self.index.memory_bytes() + (self.pins.len() * 8 + slots) as u64
    }
}
