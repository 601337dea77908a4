// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tier that misbehaves on request: it wraps any other and makes operations
//! fail, come late, or never come back. For tests of everything above tiers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::tier::{Done, Fault, Lane, LaneSetup, PageOp, Tier};
use crate::engine::units::SlabIndex;

/// What goes wrong, set at any time from any thread. All zero: nothing does.
#[derive(Debug, Default)]
pub struct Faults {
    /// Every n-th operation fails (1: all).
    pub fail_every: AtomicU64,
    /// The error number it fails with.
    pub errno: AtomicI32,
    /// Every n-th operation is never reported.
    pub hang_every: AtomicU64,
    /// Polls that report nothing before each that does.
    pub delay_polls: AtomicU32,
    /// Slabs that can still be taken before `take` fails; 0 means no limit,
    /// n means n - 1 more.
    pub takes_left: AtomicU32,
    count: AtomicU64,
}

/// See the module.
pub struct FaultTier<T> {
    inner: T,
    faults: Arc<Faults>,
}

impl<T: Tier> FaultTier<T> {
    /// Wraps `inner`; `faults` steers.
    pub fn new(inner: T, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl<T: Tier> Tier for FaultTier<T> {
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
        let left = self.faults.takes_left.load(Ordering::Relaxed);
        if left == 1 {
            return Err(Error::new(Kind::NoSpace, format!("slab {}: injected refusal", slab.0)));
        }
        self.inner.take(slab)?;
        if left > 1 {
            self.faults.takes_left.store(left - 1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        self.inner.release(slab)
    }

    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        self.inner.export(slab)
    }

    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        self.inner.import(slab, memory)
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.inner.free_bytes()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }

    fn open(&self) -> Result<()> {
        self.inner.open()
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
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

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        let depth = setup.depth;
        Ok(Box::new(FaultLane {
            inner: self.inner.lane(setup)?,
            faults: Arc::clone(&self.faults),
            failed: Vec::with_capacity(depth),
            good: Vec::with_capacity(depth),
            hung: 0,
            polls: 0,
        }))
    }
}

struct FaultLane {
    inner: Box<dyn Lane>,
    faults: Arc<Faults>,
    failed: Vec<Done>,
    good: Vec<PageOp>,
    hung: usize,
    polls: u32,
}

impl Lane for FaultLane {
    fn enter(&mut self) {
        self.inner.enter();
    }

    fn submit(&mut self, ops: &[PageOp]) {
        let hits = |every: &AtomicU64, n: u64| {
            let every = every.load(Ordering::Relaxed);
            every != 0 && n.is_multiple_of(every)
        };
        self.good.clear();
        for op in ops {
            let n = self.faults.count.fetch_add(1, Ordering::Relaxed) + 1;
            if hits(&self.faults.hang_every, n) {
                self.hung += 1;
            } else if hits(&self.faults.fail_every, n) {
                let errno = self.faults.errno.load(Ordering::Relaxed);
                self.failed.push(Done { tag: op.tag, result: Err(Fault::Device(errno)) });
            } else {
                self.good.push(*op);
            }
        }
        self.inner.submit(&self.good);
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        if self.polls < self.faults.delay_polls.load(Ordering::Relaxed) {
            self.polls += 1;
            return;
        }
        self.polls = 0;
        let room = done.capacity() - done.len();
        done.extend(self.failed.drain(..room.min(self.failed.len())));
        self.inner.poll(done);
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.failed.len() + self.hung
    }

    fn needs_polling(&self) -> bool {
        true
    }
}
