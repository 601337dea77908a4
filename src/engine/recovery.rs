// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a store of an index that outlived its process.
//!
//! The index is judged before anything is changed: an index that cannot be
//! trusted is refused whole, never repaired by guessing. Free slots are
//! derived from the entries. Pages that were being written are *torn*: their
//! old or new data or a mix, until the kernel rewrites them; each gets the
//! checksum of whatever it holds, by [`Store::adopt`].

use super::error::{Error, Kind, Result};
use super::index::{Index, MAGIC, Place, VERSION};
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
        judge_header(&index)?;
        let store = Self::new(index, tiers, checksums)?;
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
        let place = self.index.place(extent);
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
            self.index.flip(extent, None);
            self.free(place);
        }
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

fn judge_header(index: &Index) -> Result<()> {
    let (magic, version, extents) = index.header();
    if magic != MAGIC {
        return Err(distrust(format!("the index begins with {magic:#x}, not {MAGIC:#x}")));
    }
    if version != VERSION {
        return Err(distrust(format!(
            "the index has layout {version}, this program reads {VERSION}"
        )));
    }
    if extents != u64::from(index.extents()) {
        return Err(distrust(format!(
            "the index says {extents} extents in memory for {}",
            index.extents()
        )));
    }
    Ok(())
}

fn distrust(what: String) -> Error {
    Error::new(Kind::Protocol, what)
        .with_hint("the pages stay where they are; recover with the version that wrote the index")
}
