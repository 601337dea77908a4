// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tier whose slabs outlive the process: it hands each one over when it is
//! taken, before anybody can use it, and takes it back when it is released.
//! Opened while the store serves, it gives no slab before the threads are
//! prepared for it ([`Openings`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::custody::{Custody, Source, locked_bytes};
use super::message::{Role, slab_number};
use super::openings::Openings;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::tier::{Lane, LaneSetup, Tier};
use crate::engine::units::SlabIndex;
use crate::runtime::start::verify;

/// See the module.
pub struct KeptTier {
    inner: Arc<dyn Tier>,
    number: usize,
    custody: Arc<Custody>,
    openings: Option<Arc<Openings>>,
    can_be_locked: bool,
}

impl KeptTier {
    /// `number` is the tier's position in the store's list; `can_be_locked`: its
    /// descriptors are of memory that can be mapped and locked. Without `openings`
    /// no thread needs to be prepared for a device.
    pub fn new(
        inner: Arc<dyn Tier>,
        number: usize,
        custody: Arc<Custody>,
        openings: Option<Arc<Openings>>,
        can_be_locked: bool,
    ) -> Self {
        Self { inner, number, custody, openings, can_be_locked }
    }

    fn name_of(&self, slab: SlabIndex) -> Result<u32> {
        slab_number(self.number, slab.0).ok_or_else(|| {
            Error::new(
                Kind::NoSpace,
                format!("slab {} of tier {} has no number to be kept by", slab.0, self.name()),
            )
        })
    }

    fn source(&self, slab: SlabIndex) -> Source {
        Source::Slab(Arc::clone(&self.inner), slab)
    }
}

impl Tier for KeptTier {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn about(&self) -> String {
        self.inner.about()
    }

    fn max_slabs(&self) -> u32 {
        self.inner.max_slabs()
    }

    fn take(&self, slab: SlabIndex) -> Result<()> {
        let number = self.name_of(slab)?;
        self.inner.take(slab)?;
        let bytes = locked_bytes(self.can_be_locked);
        self.custody.keep(Role::Slab, number, self.source(slab), bytes).map_err(|cause| {
            // Nobody uses it yet; a failure to release it is the smaller trouble.
            let _ = self.inner.release(slab);
            Error::new(
                Kind::NoSpace,
                format!("slab {} of tier {} cannot be kept: {cause:#}", slab.0, self.name()),
            )
        })
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        self.custody.forget(Role::Slab, self.name_of(slab)?);
        self.inner.release(slab)
    }

    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        self.inner.export(slab)
    }

    /// Takes a slab over that the holder has already.
    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        let number = self.name_of(slab)?;
        self.inner.import(slab, memory)?;
        let bytes = locked_bytes(self.can_be_locked);
        self.custody.note(Role::Slab, number, self.source(slab), bytes);
        Ok(())
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        self.inner.lane(setup)
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.inner.free_bytes()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }

    /// What held for the process when it was armed holds for the library and the
    /// threads that came with the device, too; else it is closed again.
    fn open(&self) -> Result<()> {
        if self.inner.is_open() {
            return Ok(());
        }
        self.inner.open()?;
        if let Err(error) = verify() {
            self.inner.close()?;
            return Err(Error::new(
                Kind::Denied,
                format!("tier {} is closed again: {error:#}", self.name()),
            )
            .with_hint("restart the store"));
        }
        if let Some(openings) = &self.openings {
            openings.note();
        }
        tracing::info!("tier {} is open again", self.name());
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    fn is_ready(&self) -> bool {
        let prepared = |openings: &Arc<Openings>| openings.unprepared().is_none();
        self.inner.is_ready() && self.openings.as_ref().is_none_or(prepared)
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn lingers(&self) -> Option<String> {
        self.inner.lingers()
    }

    fn device(&self) -> Option<GpuSelector> {
        self.inner.device()
    }
}
