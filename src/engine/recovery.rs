// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a store of an index that outlived its process.
//!
//! The index is judged before anything is changed: an index that cannot be
//! trusted is refused whole, never repaired by guessing. Free slots are
//! derived from the entries. Pages that were being written are *torn*: their
//! old or new data or a mix, until the kernel rewrites them; each gets the
//! checksum of whatever it holds, by [`Store::adopt`]. In a mirrored store the
//! two copies of a torn page may differ: its extent is then where the spill's
//! copy is, and that one counts.

use std::collections::BTreeSet;

use super::error::Result;
use super::index::{Index, Place};
use super::layout::{distrust, shown_name};
use super::store::{Store, TierSetup};
use super::units::{ExtentIndex, PAGE_BYTES, SlabIndex};

/// A page that was being written when the process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornPage {
    /// Its extent.
    pub extent: ExtentIndex,
    /// Its number within the extent.
    pub page: u32,
    /// Where to read it: tier, slab, byte within the slab. `None`: it never
    /// had a place and reads as zeros.
    pub source: Option<(usize, SlabIndex, u32)>,
}

impl Store {
    /// Takes over `index`, whose tiers are `tiers` in the same order and hold,
    /// or will be given by import, the slabs that the index names.
    ///
    /// Fails with `Protocol` if the index is not one of ours, of another
    /// version, or contradicts itself; nothing is changed then.
    pub fn recover(
        index: Index,
        tiers: Vec<TierSetup>,
        checksums: bool,
    ) -> Result<(Self, Vec<TornPage>)> {
        index.judge()?;
        judge_tiers(&index, &tiers)?;
        let mirrored = index.is_mirrored();
        let mut store = Self::new(index, tiers, checksums)?;
        if mirrored {
            store = store.with_mirror()?;
        }
        for extent in (0..store.extents()).map(ExtentIndex) {
            let Some(place) = judge_entry(&store, extent)? else { continue };
            let slots = store.tiers.get(place.tier as usize).ok_or_else(|| {
                distrust(format!(
                    "extent {} is in tier {}, which is not there",
                    extent.0, place.tier
                ))
            })?;
            if place.slab().0 >= slots.pool.max_slabs() {
                return Err(distrust(format!(
                    "extent {} is in slab {} of tier {}, which has {}",
                    extent.0,
                    place.slab().0,
                    slots.tier().name(),
                    slots.pool.max_slabs()
                )));
            }
            if let Some(copy) = store.copy_of(extent) {
                judge_copy(&store, extent, place, copy)?;
                store.tiers[copy.tier as usize].pool.open(copy.slab().0);
                store.settled(extent, copy);
                if place == copy {
                    continue;
                }
            }
            if !slots.pool.adopt(place.slab().0, place.slot.within()) {
                return Err(distrust(format!(
                    "extent {} claims slot {} of tier {}, which another extent has",
                    extent.0,
                    place.slot.0,
                    slots.tier().name()
                )));
            }
            slots.set_owner(place.slot, Some(extent));
        }
        let mut torn = Vec::new();
        for extent in (0..store.extents()).map(ExtentIndex) {
            store.settle_after_crash(extent, &mut torn);
        }
        Ok((store, torn))
    }

    /// Brings one extent to a state that requests can leave behind.
    fn settle_after_crash(&self, extent: ExtentIndex, torn: &mut Vec<TornPage>) {
        let mut place = self.index.place(extent);
        if let Some((copy, fast)) = self.copy_of(extent).zip(place)
            && copy != fast
            && self.index.open_pages(extent).next().is_some()
        {
            self.index.flip(extent, Some(copy));
            self.free(fast);
            place = Some(copy);
        }
        for page in self.index.open_pages(extent).collect::<Vec<_>>() {
            let source = place.filter(|_| self.index.is_written(extent, page)).map(|place| {
                let byte = place.slot.byte_in_slab() + page * PAGE_BYTES as u32;
                (place.tier as usize, place.slab(), byte)
            });
            torn.push(TornPage { extent, page, source });
        }
        if let Some(place) = place
            && self.index.is_vacant(extent)
        {
            self.empty(extent, place);
        }
    }

    /// Closes the journal entry of a torn page that cannot be read: it is bad
    /// until the kernel writes it again, and never a mixture of two writes.
    pub fn adopt_unreadable(&self, torn: &TornPage) {
        self.index.adopt_unreadable(torn.extent, torn.page);
    }

    /// Gives a torn page the checksum of what it holds and closes its journal
    /// entry. For a page without a source the checksum is not used.
    pub fn adopt(&self, torn: &TornPage, checksum: u32) {
        self.index.adopt(torn.extent, torn.page, checksum);
        let pin = &self.pins[torn.extent.0 as usize];
        if pin.pin() {
            pin.request_sweep();
            self.unpin(torn.extent);
        }
    }
}

/// In a mirrored store an extent in the spill is in the slot of its number.
fn judge_copy(store: &Store, extent: ExtentIndex, place: Place, copy: Place) -> Result<()> {
    if place.tier == copy.tier && place != copy {
        return Err(distrust(format!(
            "extent {} is mirrored in slot {}, not its own",
            extent.0, place.slot.0
        )));
    }
    if copy.slab().0 >= store.tiers[copy.tier as usize].pool.max_slabs() {
        return Err(distrust(format!("extent {} has no slot in the spill", extent.0)));
    }
    Ok(())
}

/// No crash leaves an entry that encodes no place, or pages without a place:
/// an extent is placed before its first page and emptied after its last.
fn judge_entry(store: &Store, extent: ExtentIndex) -> Result<Option<Place>> {
    let place = store.index.place(extent);
    let word = store.index.entry_word(extent);
    if word != place.map_or(0, Place::encode) {
        return Err(distrust(format!("extent {} is at {word:#x}, which is no place", extent.0)));
    }
    let pages = store.index.written_pages(extent);
    if place.is_none() && pages > 0 {
        return Err(distrust(format!("extent {} has {pages} pages and no place", extent.0)));
    }
    Ok(place)
}

/// An entry counts tiers, so they must be the same in the same order.
fn judge_tiers(index: &Index, tiers: &[TierSetup]) -> Result<()> {
    let said = index.facts().map(|facts| facts.tiers).unwrap_or_default();
    let named: Vec<_> = said.iter().map(|(name, _)| name.as_str()).collect();
    let given: Vec<_> = tiers.iter().map(|setup| shown_name(setup.tier.name())).collect();
    if said.is_empty() || named == given {
        return Ok(());
    }
    Err(distrust(format!("the index is of tiers {named:?}, these are {given:?}")))
}

/// The slabs that hold an extent, as tier and slab: what must be there before
/// the index can be served. Judges nothing.
#[must_use]
pub fn named_slabs(index: &Index) -> BTreeSet<(u8, SlabIndex)> {
    (0..index.extents())
        .filter_map(|extent| index.place(ExtentIndex(extent)))
        .map(|place| (place.tier, place.slab()))
        .collect()
}
