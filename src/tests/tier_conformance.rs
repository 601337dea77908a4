// SPDX-License-Identifier: MIT OR Apache-2.0
//! One suite for every tier: what the engine relies on, and nothing else.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice::engine::error::Kind;
use sluice::engine::tier::{
    Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake,
};
use sluice::engine::units::{EXTENT_BYTES, SLAB_BYTES, SlabIndex};
use sluice::host::memory::{Arena, Lock};
use sluice::tier::fault::{FaultTier, Faults};
use sluice::tier::ram::{Pinning, RamTier};
use sluice::tier::spill::{HEADER_BYTES, Prepare, SpillTier};

const PAGE: u32 = 4096;
const DEPTH: usize = 64;

#[derive(Default)]
struct Bell(AtomicU64);
impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bench {
    memory: Arc<Arena>,
    bell: Arc<Bell>,
    lane: Box<dyn Lane>,
}

impl Bench {
    fn new(tier: &dyn Tier) -> Self {
        let memory = Arc::new(Arena::new(4 << 20, Lock::None).unwrap());
        let bell = Arc::<Bell>::default();
        let setup = LaneSetup {
            memory: memory.clone(),
            depth: DEPTH,
            waker: bell.clone() as Arc<dyn Wake>,
        };
        let lane = tier.lane(setup).unwrap();
        Self { memory, bell, lane }
    }

    fn bytes(&self, at: u32, bytes: u32) -> Vec<u8> {
        assert!(at + bytes <= 4 << 20);
        // SAFETY: inside the arena, and no operation on the range is open.
        unsafe {
            std::slice::from_raw_parts(self.memory.base().add(at as usize), bytes as usize).to_vec()
        }
    }

    fn fill(&self, at: u32, bytes: u32, seed: u64) {
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
    fn run(&mut self, ops: &[PageOp]) -> Vec<Done> {
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

fn op(tag: u32, direction: Direction, slab: u32, offset: usize, host: u32, bytes: u32) -> PageOp {
    PageOp { tag, direction, slab: SlabIndex(slab), offset: offset as u32, host, bytes }
}

/// Everything below, on one tier with at least two slabs.
fn conforms(tier: &dyn Tier) {
    assert!(tier.max_slabs() >= 2);
    assert!(!tier.name().is_empty());
    tier.take(SlabIndex(0)).unwrap();
    tier.take(SlabIndex(1)).unwrap();
    keeps_pages_apart(tier);
    moves_whole_extents(tier);
    serves_lanes_side_by_side(tier);
    takes_a_released_slab_again(tier);
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

fn no_preparation() -> Prepare {
    Arc::new(|| {})
}

/// A fully written file on a disk filesystem, under the build folder.
fn written_file(name: &str, bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join(name);
    let mut file = File::create(&path).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeros).unwrap();
    }
    file.sync_all().unwrap();
    (folder, path)
}

fn spill_bytes(slabs: u64) -> u64 {
    HEADER_BYTES + slabs * SLAB_BYTES as u64
}

#[test]
fn ram_conforms() {
    conforms(&RamTier::new(2, Pinning::Pageable));
}

#[test]
fn locked_ram_conforms() {
    conforms(&RamTier::new(2, Pinning::Locked));
}

#[test]
fn spill_on_a_file_conforms() {
    let (_folder, path) = written_file("spill", spill_bytes(2));
    conforms(&SpillTier::open(&path, 3, &no_preparation()).unwrap());
}

#[test]
fn a_tier_with_late_answers_conforms() {
    let faults = Arc::<Faults>::default();
    faults.delay_polls.store(3, Ordering::Relaxed);
    conforms(&FaultTier::new(RamTier::new(2, Pinning::Pageable), faults));
}

#[test]
fn a_failing_tier_reports_every_failure_once() {
    let faults = Arc::<Faults>::default();
    let tier = FaultTier::new(RamTier::new(1, Pinning::Pageable), Arc::clone(&faults));
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    faults.fail_every.store(3, Ordering::Relaxed);
    faults.errno.store(5, Ordering::Relaxed);
    let ops: Vec<PageOp> = (0..9).map(|n| op(n, Direction::Read, 0, 0, n * PAGE, PAGE)).collect();
    let failed = bench.run(&ops).iter().filter(|d| d.result == Err(Fault::Device(5))).count();
    assert_eq!(failed, 3);
    faults.fail_every.store(0, Ordering::Relaxed);
    faults.hang_every.store(1, Ordering::Relaxed);
    bench.lane.submit(&ops[..2]);
    let mut done = Vec::with_capacity(8);
    for _ in 0..100 {
        bench.lane.poll(&mut done);
    }
    assert!(done.is_empty());
    assert_eq!(bench.lane.pending(), 2);
}

#[test]
fn an_operation_on_a_slab_not_held_is_a_fault() {
    let tier = RamTier::new(2, Pinning::Pageable);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    let result = bench.run(&[op(1, Direction::Write, 1, 0, 0, PAGE)])[0].result;
    assert_eq!(result, Err(Fault::NotHeld));
}

#[test]
fn a_ram_slab_outlives_its_tier_behind_its_descriptor() {
    let tier = RamTier::new(1, Pinning::Pageable);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    bench.fill(0, PAGE, 42);
    bench.run(&[op(1, Direction::Write, 0, 8192, 0, PAGE)]);
    let memory = tier.export(SlabIndex(0)).unwrap();
    let expected = bench.bytes(0, PAGE);
    drop((bench, tier));
    let heir = RamTier::new(4, Pinning::Pageable);
    heir.import(SlabIndex(3), memory).unwrap();
    let mut bench = Bench::new(&heir);
    bench.run(&[op(1, Direction::Read, 3, 8192, 0, PAGE)]);
    assert_eq!(bench.bytes(0, PAGE), expected);
    // Something that is not a slab is refused.
    let error = heir.import(SlabIndex(0), File::open("/dev/null").unwrap().into()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

fn refusal(path: &Path) -> (Kind, String) {
    let Err(error) = SpillTier::open(path, 1, &no_preparation()) else {
        panic!("{} was accepted as a spill", path.display());
    };
    assert!(error.to_string().contains(&path.display().to_string()), "{error} names the path");
    (error.kind(), format!("{error}; {}", error.hint().unwrap_or_default()))
}

#[test]
fn a_spill_that_could_fail_later_is_refused_now() {
    let (folder, good) = written_file("good", spill_bytes(1));
    assert_eq!(refusal(&folder.path().join("absent")).0, Kind::Missing);

    let hole = folder.path().join("hole");
    File::create(&hole).unwrap().set_len(spill_bytes(1)).unwrap();
    let (kind, text) = refusal(&hole);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("a hole") && text.contains("dd if=/dev/zero"), "{text}");

    let unwritten = folder.path().join("unwritten");
    let file = File::create(&unwritten).unwrap();
    // SAFETY: a plain system call on our own descriptor.
    let reserved = unsafe {
        libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, spill_bytes(1) as libc::off_t)
    };
    assert_eq!(reserved, 0);
    let (kind, text) = refusal(&unwritten);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("not written"), "{text}");

    let (_keep, small) = written_file("small", spill_bytes(1) - (1 << 20));
    assert_eq!(refusal(&small).0, Kind::NoSpace);

    let (_keep2, foreign) = written_file("foreign", spill_bytes(1));
    let mut file = File::options().write(true).open(&foreign).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(1080)).unwrap();
    file.write_all(&[0x53, 0xef]).unwrap();
    let (kind, text) = refusal(&foreign);
    assert_eq!(kind, Kind::Busy);
    assert!(text.contains("byte 1080") && text.contains("wipefs"), "{text}");

    let (kind, text) = refusal(Path::new("/dev/null"));
    assert_eq!(kind, Kind::Invalid, "{text}");

    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("spill");
    File::create(&path).unwrap().set_len(spill_bytes(1)).unwrap();
    assert_eq!(refusal(&path).0, Kind::Invalid);

    let first = SpillTier::open(&good, 1, &no_preparation()).unwrap();
    assert_eq!(refusal(&good).0, Kind::Busy);
    drop(first);
    // Ours from before, whatever it holds now.
    SpillTier::open(&good, 1, &no_preparation()).unwrap();
}
