// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tier in plain memory whose lanes complete in random order, tear pages,
//! fail and hang on request.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::crash::Fuel;
use super::super::error::{Error, Kind, Result};
use super::super::tier::{Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake};
use super::super::units::{PAGE_BYTES, SLAB_BYTES, SlabIndex};

pub(super) const PAGE: u32 = PAGE_BYTES as u32;

/// Host memory as words; the checksum is a plain hash of the page.
pub(super) struct Words(pub(super) Box<[AtomicU64]>);

impl Words {
    pub(super) fn new(pages: usize) -> Arc<Self> {
        Arc::new(Self((0..pages * PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(super) fn page(&self, at: u32) -> Vec<u64> {
        let from = at as usize / 8;
        self.0[from..from + PAGE_BYTES / 8].iter().map(|w| w.load(Ordering::Relaxed)).collect()
    }

    pub(super) fn put(&self, at: u32, words: &[u64]) {
        for (cell, word) in self.0[at as usize / 8..].iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }
}

impl HostMemory for Words {
    fn base(&self) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn bytes(&self) -> usize {
        self.0.len() * 8
    }
    fn zero(&self, at: u32, bytes: u32) {
        for page in 0..bytes / PAGE {
            self.put(at + page * PAGE, &[0; PAGE_BYTES / 8]);
        }
    }
    fn crc32c(&self, at: u32, bytes: u32) -> u32 {
        assert_eq!(bytes, PAGE);
        hash(&self.page(at))
    }
    fn is_all_ones(&self, at: u32, bytes: u32) -> bool {
        assert_eq!(bytes, PAGE);
        self.page(at).iter().all(|word| *word == u64::MAX)
    }
}

pub(super) fn hash(words: &[u64]) -> u32 {
    let sum = words
        .iter()
        .fold(1u64, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    (sum >> 32) as u32
}

/// A page of data: which write it is from, and which page it belongs to.
pub(super) fn contents(page: u64, tag: u64) -> Vec<u64> {
    if tag == 0 { vec![0; PAGE_BYTES / 8] } else { vec![tag << 32 | page; PAGE_BYTES / 8] }
}

pub(super) struct Silent;
impl Wake for Silent {
    fn wake(&self) {}
}

/// A xorshift that all lanes of a test share.
#[derive(Default)]
pub(super) struct Dice(pub(super) AtomicU64);
impl Dice {
    pub(super) fn roll(&self, sides: u64) -> u64 {
        let mut x = self.0.load(Ordering::Relaxed) | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.store(x, Ordering::Relaxed);
        (x >> 33) % sides
    }
}

pub(super) type Pages = HashMap<(u32, u32), Vec<u64>>;

/// What a tier's lanes share.
#[derive(Default)]
pub(super) struct TierState {
    pub(super) pages: Mutex<Pages>,
    pub(super) held: Mutex<Vec<u32>>,
    pub(super) fuel: Arc<Fuel>,
    pub(super) dice: Arc<Dice>,
    /// 0: all well, 1: every operation fails, 2: nothing is ever answered,
    /// 3: every operation fails, and writes leave torn pages behind, 4: so they
    /// do, and the device is lost, 5: writes go nowhere and reads give ones.
    pub(super) trouble: AtomicU64,
    /// Operations that were given to it.
    pub(super) given: AtomicU64,
    /// It has no memory for another lane.
    pub(super) refuse_lanes: AtomicBool,
    /// Slabs cannot be given back.
    pub(super) refuse_release: AtomicBool,
    /// A closed device does not open.
    pub(super) refuse_open: AtomicBool,
    /// No slab may be taken yet although it is open.
    pub(super) unprepared: AtomicBool,
    /// What others could take; 0: it is shared with nobody.
    pub(super) free_bytes: AtomicU64,
    /// How often that was asked.
    pub(super) asked: AtomicU64,
    pub(super) closed: AtomicBool,
    /// Completions ring the waker, so nobody needs to poll.
    pub(super) rings: AtomicBool,
}

impl TierState {
    /// A crash may have poisoned the lock; the data is as it was.
    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct TestTier {
    pub(super) max: u32,
    pub(super) state: Arc<TierState>,
    /// The memory that lanes made from now on use; `dyn HostMemory` alone
    /// cannot be read without unsafe code.
    pub(super) memory: Mutex<Arc<Words>>,
}

pub(super) struct TestLane {
    pub(super) tier: Arc<TierState>,
    pub(super) depth: usize,
    pub(super) memory: Arc<Words>,
    pub(super) queue: Vec<PageOp>,
}

impl Tier for TestTier {
    fn name(&self) -> &'static str {
        "test"
    }
    fn max_slabs(&self) -> u32 {
        self.max
    }
    fn take(&self, slab: SlabIndex) -> Result<()> {
        self.state.closed.store(false, Ordering::Relaxed);
        self.state.held.lock().unwrap().push(slab.0);
        Ok(())
    }
    fn free_bytes(&self) -> Result<Option<u64>> {
        self.state.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Some(self.state.free_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0))
    }
    fn close(&self) -> Result<()> {
        assert!(self.state.held.lock().unwrap().is_empty(), "closed with slabs");
        self.state.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn open(&self) -> Result<()> {
        if self.state.refuse_open.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Io, "the device does not start"));
        }
        self.state.closed.store(false, Ordering::Relaxed);
        Ok(())
    }
    fn is_open(&self) -> bool {
        !self.state.closed.load(Ordering::Relaxed)
    }
    fn is_ready(&self) -> bool {
        self.is_open() && !self.state.unprepared.load(Ordering::Relaxed)
    }
    fn release(&self, slab: SlabIndex) -> Result<()> {
        if self.state.refuse_release.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Io, "the slab stays mapped"));
        }
        self.state.held.lock().unwrap().retain(|held| *held != slab.0);
        self.state.pages().retain(|(held, _), _| *held != slab.0);
        Ok(())
    }
    fn export(&self, _: SlabIndex) -> Result<OwnedFd> {
        Err(Error::new(Kind::Missing, "no descriptors here"))
    }
    fn import(&self, _: SlabIndex, _: OwnedFd) -> Result<()> {
        Err(Error::new(Kind::Missing, "no descriptors here"))
    }
    fn is_lost(&self) -> bool {
        self.state.trouble.load(Ordering::Relaxed) == 4
    }
    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        if self.state.refuse_lanes.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::NoSpace, "the device has no memory"));
        }
        Ok(Box::new(TestLane {
            tier: Arc::clone(&self.state),
            depth: setup.depth,
            memory: Arc::clone(&self.memory.lock().unwrap()),
            queue: Vec::new(),
        }))
    }
}

/// Words in half a page.
const HALF: usize = PAGE_BYTES / 16;

impl TestLane {
    fn copy(&self, direction: Direction, key: (u32, u32), at: u32, from: usize) {
        let words = self.memory.page(at);
        let half = from..from + HALF;
        if direction == Direction::Write {
            self.tier.fuel.burn();
        }
        let mut pages = self.tier.pages();
        // Memory that was never written holds anything but zeros.
        let page = pages.entry(key).or_insert_with(|| vec![7; PAGE_BYTES / 8]);
        match direction {
            Direction::Read => self.memory.put(at + from as u32 * 8, &page[half]),
            Direction::Write => page[half.clone()].copy_from_slice(&words[half]),
        }
    }
}

impl Lane for TestLane {
    fn submit(&mut self, ops: &[PageOp]) {
        for op in ops {
            assert!(self.tier.held.lock().unwrap().contains(&op.slab.0), "slab is held");
            assert!((op.offset + op.bytes) as usize <= SLAB_BYTES);
        }
        self.tier.given.fetch_add(ops.len() as u64, Ordering::Relaxed);
        self.queue.extend_from_slice(ops);
        assert!(self.queue.len() <= self.depth, "within the lane's depth");
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let trouble = self.tier.trouble.load(Ordering::Relaxed);
        let mut n = 0;
        while n < self.queue.len() {
            if trouble == 2 || self.tier.dice.roll(3) == 0 {
                n += 1;
                continue;
            }
            let op = self.queue.swap_remove(n);
            if matches!(trouble, 1 | 3 | 4) {
                for page in 0..op.bytes / PAGE {
                    if trouble != 1 && op.direction == Direction::Write {
                        let key = (op.slab.0, op.offset / PAGE + page);
                        self.copy(op.direction, key, op.host + page * PAGE, HALF);
                    }
                }
                done.push(Done { tag: op.tag, result: Err(Fault::Device(5)) });
                continue;
            }
            for page in 0..op.bytes / PAGE {
                if trouble == 5 {
                    if op.direction == Direction::Read {
                        self.memory.put(op.host + page * PAGE, &[u64::MAX; PAGE_BYTES / 8]);
                    }
                    continue;
                }
                let key = (op.slab.0, op.offset / PAGE + page);
                // In two halves, so that a crash or another thread can tear a page.
                for half in [0, HALF] {
                    self.copy(op.direction, key, op.host + page * PAGE, half);
                }
            }
            done.push(Done { tag: op.tag, result: Ok(()) });
        }
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }

    fn needs_polling(&self) -> bool {
        !self.tier.rings.load(Ordering::Relaxed)
    }
}
