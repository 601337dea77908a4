// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine relies on in every tier, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice::engine::tier::{Direction, Done, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake};
use sluice::engine::units::{EXTENT_BYTES, SLAB_BYTES, SlabIndex};
use sluice::host::memory::{Arena, Lock};

/// Bytes of the smallest operation.
pub const PAGE: u32 = 4096;
const DEPTH: usize = 64;

#[derive(Default)]
struct Bell(AtomicU64);
impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Bench {
    pub memory: Arc<Arena>,
    bell: Arc<Bell>,
    pub lane: Box<dyn Lane>,
}

impl Bench {
    pub fn new(tier: &dyn Tier) -> Self {
        let memory = Arc::new(Arena::new(4 << 20, Lock::None).unwrap());
        let bell = Arc::<Bell>::default();
        let setup = LaneSetup {
            memory: memory.clone(),
            depth: DEPTH,
            waker: bell.clone() as Arc<dyn Wake>,
        };
        let mut lane = tier.lane(setup).unwrap();
        lane.enter();
        Self { memory, bell, lane }
    }

    pub fn bytes(&self, at: u32, bytes: u32) -> Vec<u8> {
        assert!(at + bytes <= 4 << 20);
        // SAFETY: inside the arena, and no operation on the range is open.
        unsafe {
            std::slice::from_raw_parts(self.memory.base().add(at as usize), bytes as usize).to_vec()
        }
    }

    pub fn fill(&self, at: u32, bytes: u32, seed: u64) {
        let mut x = seed | 1;
        for n in 0..bytes / 8 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // SAFETY: inside the arena, aligned, and no operation on the range is open.
            unsafe {
                self.memory.base().add((at + n * 8) as usize).cast::<u64>().write_unaligned(x);
            }
        }
    }

    /// Submits and polls until all are reported; each exactly once.
    pub fn run(&mut self, ops: &[PageOp]) -> Vec<Done> {
        self.lane.submit(ops);
        assert_eq!(self.lane.pending(), ops.len());
        let mut all = Vec::new();
        let mut done = Vec::with_capacity(3);
        let limit = Instant::now() + Duration::from_secs(60);
        while self.lane.pending() > 0 {
            self.lane.poll(&mut done);
            assert!(done.len() <= 3, "poll went beyond the capacity it was given");
            all.append(&mut done);
            assert!(Instant::now() < limit, "operations were never reported");
        }
        let mut tags: Vec<u32> = all.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        let mut wanted: Vec<u32> = ops.iter().map(|op| op.tag).collect();
        wanted.sort_unstable();
        assert_eq!(tags, wanted);
        all
    }
}

pub fn op(
    tag: u32,
    direction: Direction,
    slab: u32,
    offset: usize,
    host: u32,
    bytes: u32,
) -> PageOp {
    PageOp { tag, direction, slab: SlabIndex(slab), offset: offset as u32, host, bytes }
}

/// Everything below, on one tier with at least two slabs.
pub fn conforms(tier: &dyn Tier) {
    assert!(tier.max_slabs() >= 2);
    assert!(!tier.name().is_empty());
    tier.take(SlabIndex(0)).unwrap();
    tier.take(SlabIndex(1)).unwrap();
    keeps_pages_apart(tier);
    moves_whole_extents(tier);
    serves_lanes_side_by_side(tier);
    takes_a_released_slab_again(tier);
    opens_again_after_it_was_closed(tier);
}

/// Last: it gives every slab back.
fn opens_again_after_it_was_closed(tier: &dyn Tier) {
    for slab in [0, 1] {
        tier.release(SlabIndex(slab)).unwrap();
    }
    assert!(tier.is_open());
    tier.close().unwrap();
    // A spill has no device that could be closed.
    assert_eq!(tier.is_open(), tier.name() == "spill");
    tier.open().unwrap();
    assert!(tier.is_open() && tier.is_ready());
    tier.open().unwrap();
    tier.close().unwrap();
    tier.take(SlabIndex(0)).unwrap();
    assert!(tier.is_open());
    let mut bench = Bench::new(tier);
    assert_eq!(bench.run(&[op(1, Direction::Write, 0, 0, 0, PAGE)])[0].result, Ok(()));
}

fn keeps_pages_apart(tier: &dyn Tier) {
    let mut bench = Bench::new(tier);
    // First and last page of a slab, of an extent, and neighbours.
    let last = SLAB_BYTES - 4096;
    let places = [
        (0, 0),
        (0, 4096),
        (0, EXTENT_BYTES - 4096),
        (0, EXTENT_BYTES),
        (0, last),
        (1, 0),
        (1, last),
    ];
    let writes: Vec<PageOp> = places
        .iter()
        .enumerate()
        .map(|(n, (slab, offset))| {
            bench.fill(n as u32 * PAGE, PAGE, n as u64 + 1);
            op(n as u32, Direction::Write, *slab, *offset, n as u32 * PAGE, PAGE)
        })
        .collect();
    assert!(bench.run(&writes).iter().all(|done| done.result.is_ok()));
    let reads: Vec<PageOp> = writes
        .iter()
        .map(|write| PageOp { direction: Direction::Read, host: write.host + (1 << 20), ..*write })
        .collect();
    assert!(bench.run(&reads).iter().all(|done| done.result.is_ok()));
    for read in &reads {
        assert_eq!(bench.bytes(read.host, PAGE), bench.bytes(read.host - (1 << 20), PAGE));
    }
}

fn moves_whole_extents(tier: &dyn Tier) {
    let mut bench = Bench::new(tier);
    let bytes = EXTENT_BYTES as u32;
    bench.fill(0, bytes, 77);
    let there = op(1, Direction::Write, 1, 3 * EXTENT_BYTES, 0, bytes);
    assert_eq!(bench.run(&[there])[0].result, Ok(()));
    let back = op(2, Direction::Read, 1, 3 * EXTENT_BYTES, bytes, bytes);
    assert_eq!(bench.run(&[back])[0].result, Ok(()));
    assert_eq!(bench.bytes(0, bytes), bench.bytes(bytes, bytes));
    // The neighbours were not touched: slab 1 page 0 still holds seed 6.
    bench.fill(0, PAGE, 6);
    let read = op(3, Direction::Read, 1, 0, PAGE, PAGE);
    assert_eq!(bench.run(&[read])[0].result, Ok(()));
    assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE));
}

fn serves_lanes_side_by_side(tier: &dyn Tier) {
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            scope.spawn(move || {
                let mut bench = Bench::new(tier);
                for round in 0..20u32 {
                    let group = |direction, host: u32| -> Vec<PageOp> {
                        (0..16)
                            .map(|n| {
                                let offset = (thread * 16 + n) as usize * 4096 + 8 * EXTENT_BYTES;
                                op(n, direction, n % 2, offset, host + n * PAGE, PAGE)
                            })
                            .collect()
                    };
                    bench.fill(0, 16 * PAGE, u64::from(thread * 1000 + round));
                    let writes = bench.run(&group(Direction::Write, 0));
                    assert!(writes.iter().all(|done| done.result.is_ok()));
                    let reads = bench.run(&group(Direction::Read, 1 << 20));
                    assert!(reads.iter().all(|done| done.result.is_ok()));
                    assert_eq!(bench.bytes(0, 16 * PAGE), bench.bytes(1 << 20, 16 * PAGE));
                }
                if !bench.lane.needs_polling() {
                    assert!(bench.bell.0.load(Ordering::Relaxed) > 0, "the waker was never rung");
                }
            });
        }
    });
}

fn takes_a_released_slab_again(tier: &dyn Tier) {
    tier.release(SlabIndex(1)).unwrap();
    tier.take(SlabIndex(1)).unwrap();
    let mut bench = Bench::new(tier);
    bench.fill(0, PAGE, 5);
    let there = op(1, Direction::Write, 1, 4096, 0, PAGE);
    let back = op(2, Direction::Read, 1, 4096, PAGE, PAGE);
    assert_eq!(bench.run(&[there])[0].result, Ok(()));
    assert_eq!(bench.run(&[back])[0].result, Ok(()));
    assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE));
}
