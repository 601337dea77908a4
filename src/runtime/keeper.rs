// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's thread: carries out what `engine::keeper` decides, so that no
//! I/O thread ever asks for memory, and moves extents when a sparse slab is to
//! be emptied. Sleeps until slots were taken or given back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::io_thread::STACK_BYTES;
use crate::block::nbd::waker::EventWaker;
use crate::engine::keeper::{Facts, Step, next, sparsest};
use crate::engine::mover::{Mover, Progress};
use crate::engine::slots::SlotPool;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::{ByteLen, EXTENT_BYTES, SLOTS_PER_SLAB, SlabIndex, SlotIndex};
use crate::host::memory::{Arena, Lock, available_memory};

/// The fast tier's position in the store's list.
const FAST: usize = 0;
/// How often it looks without being woken: the reserve may have changed.
const LOOK: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Between two looks at a move or a busy extent.
const PAUSE: Duration = Duration::from_micros(100);
/// How long one extent may take to move before the move is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// After memory was refused, before it is asked for again.
const REFUSED: Duration = Duration::from_secs(1);

/// What the keeper is told.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// Slabs of the fast tier it may hold.
    pub target_slabs: u32,
    /// Bytes of the tier's memory left to others.
    pub reserve: ByteLen,
    /// Whether its buffer is locked.
    pub lock: Lock,
}

/// The running thread.
pub struct Keeper {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Arc<EventWaker>,
}

impl Keeper {
    /// Starts it. `waker` is what the store rings.
    pub fn start(store: &Arc<Store>, waker: Arc<EventWaker>, orders: Orders) -> Result<Self> {
        let memory = Arc::new(Arena::new(EXTENT_BYTES, orders.lock)?);
        let ring = Arc::clone(&waker) as Arc<dyn Wake>;
        let mover = Mover::new(Arc::clone(store), memory, &ring)?;
        let stop = Arc::<AtomicBool>::default();
        let work = Work {
            store: Arc::clone(store),
            mover,
            orders,
            stop: Arc::clone(&stop),
            waker: Arc::clone(&waker),
        };
        let thread = std::thread::Builder::new()
            .name("sluice-keeper".into())
            .stack_size(STACK_BYTES)
            .spawn(move || work.run())
            .context("cannot start the keeper's thread")?;
        Ok(Self { thread: Some(thread), stop, waker })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    store: Arc<Store>,
    mover: Mover,
    orders: Orders,
    stop: Arc<AtomicBool>,
    waker: Arc<EventWaker>,
}

impl Work {
    fn run(mut self) {
        while !self.stopped() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(error) => {
                    tracing::warn!("tier {}: {error:#}", self.store.tiers()[FAST].tier().name());
                    std::thread::sleep(REFUSED);
                }
            }
        }
        if !self.mover.is_quiet() {
            // A tier still has the buffer; it must outlive this thread.
            std::mem::forget(self.mover);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self) {
        let mut fds = [PollFd::new(&*self.waker, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&LOOK));
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.waker, &mut count);
    }

    /// One step; false: nothing to do.
    fn step(&mut self) -> Result<bool> {
        let slots = &self.store.tiers()[FAST];
        let facts = Facts {
            count: slots.count(),
            target_slabs: self.orders.target_slabs,
            has_spill: self.store.has_spill(),
            available_bytes: available_memory(Path::new("/")).ok().map(|bytes| bytes.0),
            reserve_bytes: self.orders.reserve.0,
        };
        Ok(match next(&facts, || sparsest(slots.pool())) {
            Step::Rest => false,
            Step::Take => self.store.take_slab(FAST)?,
            Step::Release => self.store.release_empty_slab(FAST)?,
            Step::Empty(slab) => self.empty(slab)?,
        })
    }

    /// Moves every extent out of a slab into others of the same tier and gives
    /// the slab back. False: an extent stayed, and so does the slab.
    fn empty(&mut self, slab: u32) -> Result<bool> {
        let store = Arc::clone(&self.store);
        let pool: &SlotPool = store.tiers()[FAST].pool();
        pool.close(slab);
        for within in 0..SLOTS_PER_SLAB as u32 {
            if self.mover.start(FAST, SlotIndex::new(SlabIndex(slab), within), FAST) {
                self.finish_move(slab);
            }
        }
        if store.release_slab(FAST, slab)? {
            return Ok(true);
        }
        pool.reopen(slab);
        // Moving rang our own bell; without a pause this would be tried at once.
        std::thread::sleep(REFUSED);
        Ok(false)
    }

    fn finish_move(&mut self, slab: u32) {
        let begun = Instant::now();
        loop {
            let progress = match self.mover.advance() {
                Progress::Busy if begun.elapsed() > PATIENCE || self.stopped() => {
                    self.mover.give_up()
                }
                progress => progress,
            };
            match progress {
                Progress::Busy => std::thread::sleep(PAUSE),
                Progress::Abandoned(extent, reason) => {
                    tracing::debug!("extent {} stays in slab {slab}: {reason:?}", extent.0);
                    return;
                }
                Progress::Idle | Progress::Moved(_) => return,
            }
        }
    }
}
