// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a store together: tiers, index, slabs held ahead of need.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::config::TierKind;
use crate::config::schema::Config;
use crate::engine::error::{Error, Kind};
use crate::engine::index::Index;
use crate::engine::keeper::LOW_SLOTS;
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

/// What a store is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of all devices together, a multiple of 2 MiB.
    pub size: ByteLen,
    /// The fast tier's kind.
    pub tier: TierKind,
    /// The most bytes of the fast tier to hold.
    pub tier_size: ByteLen,
    /// Bytes of the fast tier's memory left free for others.
    pub reserve: ByteLen,
    /// Where pages go that the fast tier cannot hold.
    pub spill: Option<PathBuf>,
    /// Whether pages carry checksums.
    pub checksums: bool,
    /// Whether all memory must stay in RAM.
    pub lock: Lock,
}

impl Plan {
    /// The plan that a configuration file states, for a device under swap.
    #[must_use]
    pub fn armed(config: &Config) -> Self {
        Self {
            size: config.swap.size,
            tier: config.tier.kind,
            tier_size: config.tier.size,
            reserve: config.tier.reserve,
            spill: config.spill.as_ref().map(|spill| spill.path.clone()),
            checksums: config.swap.checksums,
            lock: Lock::Required,
        }
    }

    fn extents(&self) -> u32 {
        (self.size.0 / EXTENT_BYTES as u64) as u32
    }

    /// Slabs of the fast tier that may be held.
    #[must_use]
    pub fn fast_slabs(&self) -> u32 {
        let asked = self.tier_size.0.div_ceil(SLAB_BYTES as u64) as u32;
        asked.min(slabs_for(self.extents()))
    }

    /// Builds the store. With a spill, slabs of the fast tier are taken ahead
    /// of need by the keeper; without one, all are held when this returns.
    pub fn build(&self, prepare_worker: &Prepare, keeper: Arc<dyn Wake>) -> Result<Arc<Store>> {
        let mut tiers =
            vec![TierSetup { tier: self.fast_tier()?, role: Role::Fast, deadline: None }];
        if let Some(path) = &self.spill {
            let spill = SpillTier::open(path, SPILL_WORKERS, prepare_worker)?;
            tiers.push(TierSetup { tier: Arc::new(spill), role: Role::Spill, deadline: None });
        }
        let index = Index::new(self.extents());
        let store = Store::new(index, tiers, self.checksums)?.with_keeper(keeper);
        let first = if store.has_spill() {
            store.hold_slabs(1, slabs_for(self.extents()))?;
            (LOW_SLOTS.div_ceil(SLOTS_PER_SLAB as u32)).min(self.fast_slabs())
        } else {
            slabs_for(self.extents())
        };
        self.check_memory(first)?;
        let held = format!("{}", ByteLen(u64::from(first) * SLAB_BYTES as u64));
        store
            .hold_slabs(0, first)
            .with_context(|| format!("{} of tier {} could not be held", held, self.tier.name()))?;
        Ok(Arc::new(store))
    }

    /// Refuses to take what the machine has not: memory that is locked and not
    /// there is found by the kernel at the cost of other programs.
    fn check_memory(&self, slabs: u32) -> Result<()> {
        if self.tier != TierKind::Ram {
            return Ok(());
        }
        let held = ByteLen(u64::from(slabs) * SLAB_BYTES as u64);
        let needed = (held.0 + LEFT_OVER.0).saturating_add(self.reserve.0);
        let available = available_memory(Path::new("/"))?;
        if available.0 < needed {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "{available} of RAM are available; {held} for slabs, {} of reserve and {LEFT_OVER} to work with are needed",
                    self.reserve
                ),
            )
            .with_hint("make the device smaller, or give it a spill and a smaller tier")
            .into());
        }
        Ok(())
    }

    fn fast_tier(&self) -> Result<Arc<dyn Tier>> {
        let pinning = match self.lock {
            Lock::Required => Pinning::Locked,
            Lock::None => Pinning::Pageable,
        };
        match self.tier {
            TierKind::Ram => Ok(Arc::new(RamTier::new(self.fast_slabs(), pinning))),
            other => Err(Error::new(
                Kind::Missing,
                format!("tier {} is not built into this version", other.name()),
            )
            .with_hint("use tier ram")
            .into()),
        }
    }
}
