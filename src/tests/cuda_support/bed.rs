// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lane under test: memory, operations, what came of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::engine::error::Result;
use sluice::engine::tier::{
    Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake,
};
use sluice::engine::units::{SLAB_BYTES, SlabIndex};
use sluice::host::memory::{Arena, Lock};
use sluice::tier::cuda::{Copying, CudaTier, Options};

pub const PAGE: usize = 4096;
const PAGES: usize = 1024;
const DEPTH: usize = 64;

/// Opens a tier on the library under test.
pub fn open(number: usize, device: &str, slabs: u32) -> Result<CudaTier> {
    CudaTier::open(options(number, device, slabs))
}

pub fn options(number: usize, device: &str, slabs: u32) -> Options {
    Options {
        number,
        library: Some(super::library()),
        device: device.parse().unwrap(),
        max_slabs: slabs,
        copying: copying(),
        root: PathBuf::from("/"),
    }
}

/// The way to copy that this process is to test.
pub fn copying() -> Copying {
    match std::env::var(super::WAY).as_deref() {
        Ok("calls") => Copying::Calls,
        Ok("kernel") => Copying::Kernel,
        Err(_) => Copying::Measured,
        Ok(other) => panic!("{} = {other}", super::WAY),
    }
}

struct Deaf;
impl Wake for Deaf {
    fn wake(&self) {}
}

/// One lane and its memory: 1024 pages.
pub struct Bed {
    pub memory: Arc<Arena>,
    pub lane: Box<dyn Lane>,
}

impl Bed {
    pub fn new(tier: &dyn Tier) -> Self {
        Self::sharing(tier, Arc::new(Arena::new(PAGES * PAGE, Lock::None).unwrap()))
    }

    /// A lane over memory that other lanes use too.
    pub fn sharing(tier: &dyn Tier, memory: Arc<Arena>) -> Self {
        let setup = LaneSetup {
            memory: Arc::clone(&memory) as Arc<dyn HostMemory>,
            depth: DEPTH,
            waker: Arc::new(Deaf),
        };
        let mut lane = tier.lane(setup).unwrap();
        lane.enter();
        Self { memory, lane }
    }

    /// Fills a page of host memory.
    pub fn fill(&self, page: usize, byte: u8) {
        assert!(page < PAGES);
        for at in 0..PAGE {
            // SAFETY: inside the arena; the tests own it, devices apart.
            unsafe { self.memory.base().add(page * PAGE + at).write_volatile(byte) };
        }
    }

    /// How many bytes of a page of host memory are not `byte`.
    pub fn wrong(&self, page: usize, byte: u8) -> usize {
        assert!(page < PAGES);
        let read = |at: &usize| {
            // SAFETY: as above.
            unsafe { self.memory.base().add(page * PAGE + at).read_volatile() }
        };
        (0..PAGE).filter(|at| read(at) != byte).count()
    }

    pub fn poll(&mut self) -> Vec<Done> {
        let mut done = Vec::with_capacity(DEPTH);
        self.lane.poll(&mut done);
        done
    }

    /// Polls until nothing is pending; what was reported, by tag.
    pub fn settle(&mut self) -> Vec<Done> {
        let mut all = Vec::new();
        let limit = Instant::now() + Duration::from_secs(60);
        while self.lane.pending() > 0 {
            all.append(&mut self.poll());
            assert!(
                Instant::now() < limit,
                "{} operations were never reported",
                self.lane.pending()
            );
        }
        all.sort_by_key(|done| done.tag);
        all
    }

    /// Submits and settles; the results in the order of the operations.
    pub fn run(&mut self, ops: &[PageOp]) -> Vec<std::result::Result<(), Fault>> {
        self.lane.submit(ops);
        let done = self.settle();
        assert_eq!(done.len(), ops.len(), "each is reported once");
        ops.iter().map(|op| done.iter().find(|d| d.tag == op.tag).unwrap().result).collect()
    }

    /// Writes a page full of `byte` and reads it back; whether all of it is right.
    pub fn works(&mut self, slab: u32, page: usize, byte: u8) -> bool {
        self.fill(0, byte);
        self.fill(1, !byte);
        self.run(&[write(0, slab, page, 0)]) == [Ok(())]
            && self.run(&[read(1, slab, page, 1)]) == [Ok(())]
            && self.wrong(1, byte) == 0
    }
}

/// Writes host page `from` to page `to` of a slab.
pub fn write(tag: u32, slab: u32, to: usize, from: usize) -> PageOp {
    op(tag, Direction::Write, slab, to, from)
}

/// Reads page `from` of a slab into host page `to`.
pub fn read(tag: u32, slab: u32, from: usize, to: usize) -> PageOp {
    op(tag, Direction::Read, slab, from, to)
}

fn op(tag: u32, direction: Direction, slab: u32, page: usize, host: usize) -> PageOp {
    assert!(page < SLAB_BYTES / PAGE && host < PAGES);
    PageOp {
        tag,
        direction,
        slab: SlabIndex(slab),
        offset: (page * PAGE) as u32,
        host: (host * PAGE) as u32,
        bytes: PAGE as u32,
    }
}
