// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page store of one device: index, extent locks and tiers, shared by all
//! threads without a lock. Requests go through a [`super::session::Session`]
//! per I/O thread; one [`super::mover::Mover`] moves extents.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::counters::{Counters, Totals};
use super::error::{Error, Kind, Result};
use super::extent_set::ExtentSet;
use super::heat::Heat;
use super::index::{Index, Place};
use super::pins::{Pin, Unpinned};
use super::session::Table;
use super::slots::{PoolCount, SlotPool};
use super::tier::{HostMemory, Tier, Wake};
use super::units::{
    ByteLen, EXTENT_BYTES, ExtentIndex, PAGE_BYTES, SLOTS_PER_SLAB, SlabIndex, SlotIndex,
};

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
#[derive(Clone)]
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
    /// Operations that were given up and may still be answered.
    lost: AtomicU32,
    /// Lanes in a row that there was no memory for.
    pub(super) refusals: AtomicU32,
    /// Sessions that go on without a lane to it.
    laneless: AtomicU32,
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

    /// True if it failed for good: nothing that it holds can be read or written.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_faulty() && self.setup.tier.is_lost()
    }

    /// Operations that were given up and not answered since: what they use,
    /// host memory and slots, is kept for as long.
    #[must_use]
    pub fn lost_operations(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sessions that were made when it gave no lane: whatever they ask of it fails.
    #[must_use]
    pub fn sessions_without_lane(&self) -> u32 {
        self.laneless.load(Ordering::Relaxed)
    }

    pub(super) fn session_without_lane(&self) {
        self.laneless.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn session_without_lane_ended(&self) {
        self.laneless.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn operations_lost(&self, count: u32) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn operation_found(&self) {
        self.lost.fetch_sub(1, Ordering::Relaxed);
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
    /// How much each extent is used.
    pub(super) heat: Heat,
    /// The spill's position, when every extent has a copy there.
    mirror: Option<u8>,
    /// An extent + 1 that a request waits to see moved; 0: none.
    urgent: AtomicU32,
    /// Extents whose pins a lost session holds.
    pub(super) orphans: ExtentSet,
    /// Extents that should have left their place and could not: nobody waits for
    /// them or asks for them until they left, or their tier is trusted again.
    pub(super) staying: ExtentSet,
    lost_sessions: Mutex<Vec<Table>>,
    /// Rung when a slot was taken or given back: the keeper has a look.
    keeper: Option<Arc<dyn Wake>>,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("extents", &self.extents()).finish_non_exhaustive()
    }
}

impl Drop for Store {
    /// A tier that never answered may still use what lost sessions left.
    fn drop(&mut self) {
        let lost = self.lost_sessions.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(lost));
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
                    lost: AtomicU32::new(0),
                    refusals: AtomicU32::new(0),
                    laneless: AtomicU32::new(0),
                    setup,
                }
            })
            .collect();
        Ok(Self {
            pins: (0..extents).map(|_| Pin::default()).collect(),
            writes_begun: (0..extents).map(|_| AtomicU32::new(0)).collect(),
            heat: Heat::new(extents),
            index,
            tiers,
            checksums,
            mirror: None,
            urgent: AtomicU32::new(0),
            lost_sessions: Mutex::new(Vec::new()),
            orphans: ExtentSet::new(extents),
            staying: ExtentSet::new(extents),
            keeper: None,
            counters: Mutex::new(Vec::new()),
        })
    }

    /// Every write lands in the spill as well before it is answered: the loss of
    /// a fast tier loses no page. The extent's copy has the slot of its number.
    ///
    /// Fails with `Invalid` without a spill, or with more than one.
    pub fn with_mirror(mut self) -> Result<Self> {
        let spills: Vec<usize> =
            (0..self.tiers.len()).filter(|n| self.tiers[*n].role() == Role::Spill).collect();
        let [spill] = spills[..] else {
            return Err(Error::new(
                Kind::Invalid,
                format!("durability mirror with {} spills: it needs exactly one", spills.len()),
            )
            .with_hint("configure [spill], or set durability to writeback"));
        };
        self.mirror = Some(spill as u8);
        self.index.set_mirrored();
        Ok(self)
    }

    /// Rings `keeper` whenever slots were taken or given back.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Arc<dyn Wake>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    pub(super) fn call_keeper(&self) {
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

    /// Gives this slab back to its tier, if it is held and empty, one under
    /// quarantine included. Keeper only.
    pub fn release_slab(&self, tier: usize, slab: u32) -> Result<bool> {
        let slots = &self.tiers[tier];
        let empty = slots.pool.used_in(slab) == Some(0);
        if !empty || !(slots.pool.retire(slab) || slots.pool.retire_quarantined(slab)) {
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
        let pool = &self.tiers[tier].pool;
        for slab in (0..pool.max_slabs()).rev() {
            if !pool.is_quarantined(slab) && self.release_slab(tier, slab)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`Store::release_empty_slab`], for one that was quarantined.
    pub fn release_spent_slab(&self, tier: usize) -> Result<bool> {
        let pool = &self.tiers[tier].pool;
        for slab in (0..pool.max_slabs()).rev() {
            if pool.is_quarantined(slab) && self.release_slab(tier, slab)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Where an extent is.
    #[must_use]
    pub fn place(&self, extent: ExtentIndex) -> Option<Place> {
        self.index.place(extent)
    }

    /// True if every extent has a copy in the spill.
    #[must_use]
    pub fn is_mirrored(&self) -> bool {
        self.mirror.is_some()
    }

    /// The place of the copy that the spill always has of an extent, in a
    /// mirrored store.
    pub(super) fn copy_of(&self, extent: ExtentIndex) -> Option<Place> {
        self.mirror.map(|tier| Place { tier, slot: SlotIndex(extent.0) })
    }

    /// A free slot for the extent in the first tier that has one, and whether a
    /// faster tier had to be passed over. `None`: no slot anywhere at this moment.
    ///
    /// Faulty tiers get no pages, unless the spill is one of them: a disk that
    /// failed once may well take the page, and one that does not says so, while
    /// a write that waits for a slot that cannot come waits for ever. For the
    /// same reason a slab under quarantine takes the page that has no other place.
    pub(super) fn alloc(&self, extent: ExtentIndex) -> Option<(Place, bool)> {
        self.call_keeper();
        if let Some(copy) = self.copy_of(extent) {
            let fast = |slots: &TierSlots| slots.role() == Role::Fast && !slots.is_faulty();
            return self.alloc_where(fast, SlotPool::alloc).or(Some((copy, true)));
        }
        let last = if self.has_spill() { Role::Spill } else { Role::Fast };
        let of_last = |slots: &TierSlots| slots.role() == last;
        self.alloc_where(|slots| !slots.is_faulty(), SlotPool::alloc)
            .or_else(|| {
                let gone = self.tiers.iter().all(|t| t.role() != last || t.is_faulty());
                gone.then(|| self.alloc_where(of_last, SlotPool::alloc)).flatten()
            })
            .or_else(|| self.alloc_where(of_last, SlotPool::alloc_quarantined))
    }

    fn alloc_where(
        &self,
        usable: impl Fn(&TierSlots) -> bool,
        alloc: impl Fn(&SlotPool) -> Option<(u32, u32)>,
    ) -> Option<(Place, bool)> {
        let mut passed = false;
        for (n, slots) in self.tiers.iter().enumerate() {
            if !usable(slots) {
                continue;
            }
            if let Some((slab, within)) = alloc(&slots.pool) {
                let slot = SlotIndex::new(SlabIndex(slab), within);
                return Some((Place { tier: n as u8, slot }, passed));
            }
            passed = true;
        }
        None
    }

    /// True if pages should leave this place before anything is written: its
    /// fast tier failed, and there is another that could take them.
    pub(super) fn must_leave(&self, place: Place) -> bool {
        let slots = &self.tiers[place.tier as usize];
        slots.is_faulty() && slots.role() == Role::Fast && (self.has_spill() || self.fast_is_well())
    }

    /// True if nothing that is there can be read or written by anybody any more.
    pub(super) fn is_lost(&self, place: Place) -> bool {
        self.tiers[place.tier as usize].is_lost()
    }

    fn fast_is_well(&self) -> bool {
        self.tiers.iter().any(|slots| slots.role() == Role::Fast && !slots.is_faulty())
    }

    /// Asks the keeper to move this extent before any other. Not one that stays:
    /// the keeper tries again by itself.
    pub(super) fn urge(&self, extent: ExtentIndex) {
        let asked =
            self.urgent.compare_exchange(0, extent.0 + 1, Ordering::Relaxed, Ordering::Relaxed);
        if asked.is_ok() {
            self.call_keeper();
        }
    }

    /// Notes that the extent could not be moved out of `from`, for requests that
    /// wait for that.
    pub(super) fn stays(&self, extent: ExtentIndex, from: Place) {
        if self.must_leave(from) {
            self.staying.insert(extent);
        }
    }

    /// The extent that is asked for, once.
    pub(super) fn take_urgent(&self) -> Option<ExtentIndex> {
        self.urgent.swap(0, Ordering::Relaxed).checked_sub(1).map(ExtentIndex)
    }

    /// Takes what a session left behind that ended with operations under way.
    pub(super) fn bequeath(&self, table: Table) {
        self.lost_sessions.lock().unwrap_or_else(PoisonError::into_inner).push(table);
        self.call_keeper();
    }

    /// Brings what lost sessions left in the tiers to an end, as far as the
    /// tiers answer: then their pages are free again. How many are left. Keeper
    /// only; `now` is its clock.
    pub(super) fn tend_lost_sessions(&self, now: Duration) -> usize {
        let mut lost = self.lost_sessions.lock().unwrap_or_else(PoisonError::into_inner);
        lost.retain_mut(|table| !table.wind_up(self, now));
        lost.len()
    }

    /// Trusts a tier again after a person looked at it: pages go there, and its
    /// empty slabs give slots; a slab under quarantine with pages in it only
    /// once these have left. How many slabs are in use again.
    ///
    /// `Busy` while operations that it never answered are outstanding: they may
    /// still write where pages would go; and while a session has no lane to it,
    /// which could read nothing that comes back. `Io` if it is lost to this process.
    pub fn readmit(&self, tier: usize) -> Result<u32> {
        let slots = &self.tiers[tier];
        if slots.is_lost() {
            let text = format!("tier {}: its device is lost to this process", slots.tier().name());
            return Err(Error::new(Kind::Io, text).with_hint("restart the store"));
        }
        let lost = slots.lost_operations();
        if lost > 0 {
            return Err(Error::new(
                Kind::Busy,
                format!("tier {}: {lost} operations were never answered", slots.tier().name()),
            )
            .with_hint("drain it and close its device, or start the store anew"));
        }
        let laneless = slots.sessions_without_lane();
        if laneless > 0 {
            return Err(Error::new(
                Kind::Busy,
                format!("tier {}: {laneless} connections have no lane to it", slots.tier().name()),
            )
            .with_hint("once its device has memory for them and works, try again"));
        }
        let mut slabs = 0;
        for slab in 0..slots.pool.max_slabs() {
            slabs += u32::from(slots.pool.pardon(slab) || slots.pool.reopen(slab));
        }
        slots.faulty.store(false, Ordering::Relaxed);
        self.staying.clear();
        self.call_keeper();
        Ok(slabs)
    }

    /// Gives a slot back to its tier. The copy in a mirror goes with its extent only.
    pub(super) fn free(&self, place: Place) {
        if self.mirror == Some(place.tier) {
            return;
        }
        let slots = &self.tiers[place.tier as usize];
        slots.set_owner(place.slot, None);
        slots.pool.free(place.slab().0, place.slot.within());
        self.call_keeper();
    }

    /// Enters a place that an extent was given just now. The caller holds a pin.
    pub(super) fn settled(&self, extent: ExtentIndex, place: Place) {
        self.tiers[place.tier as usize].set_owner(place.slot, Some(extent));
        if let Some(copy) = self.copy_of(extent) {
            let slots = &self.tiers[copy.tier as usize];
            slots.pool.claim(copy.slab().0, copy.slot.within());
            slots.set_owner(copy.slot, Some(extent));
        }
    }

    /// Empties an extent that has no pages. The caller owns it.
    pub(super) fn empty(&self, extent: ExtentIndex, place: Place) {
        self.index.flip(extent, None);
        self.staying.remove(extent);
        self.free(place);
        if let Some(copy) = self.copy_of(extent) {
            let slots = &self.tiers[copy.tier as usize];
            slots.set_owner(copy.slot, None);
            slots.pool.free(copy.slab().0, copy.slot.within());
        }
    }

    /// Changes an extent's place. The caller owns the extent.
    pub(super) fn flip(&self, extent: ExtentIndex, place: Option<Place>) {
        debug_assert!(self.pins[extent.0 as usize].is_owned(), "only an owner moves {extent:?}");
        self.index.flip(extent, place);
        self.staying.remove(extent);
    }

    /// Gives a pin back, and sweeps the extent if that falls to this caller.
    pub(super) fn unpin(&self, extent: ExtentIndex) {
        let pin = &self.pins[extent.0 as usize];
        if pin.unpin() == Unpinned::Sweep {
            if self.index.is_vacant(extent)
                && let Some(place) = self.index.place(extent)
            {
                self.empty(extent, place);
            }
            pin.end_sweep();
        }
    }

    /// Notes that a tier failed: no new pages go there. True the first time.
    pub(super) fn fault(&self, tier: u8) -> bool {
        !self.tiers[tier as usize].faulty.swap(true, Ordering::Relaxed)
    }

    /// Whether a page that was read from there, into `host`, and is not what was
    /// written says only that the device cannot be reached: where the bus is down,
    /// stores into mapped memory go nowhere and loads give ones, without an error.
    pub(super) fn is_unreachable(
        &self,
        place: Option<Place>,
        memory: &dyn HostMemory,
        host: u32,
    ) -> bool {
        let is_fast = |place: Place| self.tiers[place.tier as usize].role() == Role::Fast;
        place.is_some_and(is_fast) && memory.is_all_ones(host, PAGE_BYTES as u32)
    }

    /// A new set of counters that [`Store::totals`] includes.
    pub(super) fn counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::new(self.tiers.len()));
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
        let locks = self.pins.len() * 8 + slots;
        self.index.memory_bytes() + self.heat.memory_bytes() + locks as u64
    }
}
