// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite on the GPU tier, and what it does beyond the suite, with the
//! driver library that `SLUICE_TEST_CUDA_LIBRARY` names, a GPU's own, or else
//! with the fake one. It never skips.
//!
//! A driver is one for the whole process, so the tests take turns.

mod conformance;
mod cuda_support;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conformance::{Bench, PAGE, conforms, op};
use sluice::config::TierKind;
use sluice::config::schema::Durability;
use sluice::engine::error::Kind;
use sluice::engine::gpu::GpuSelector;
use sluice::engine::tier::{Direction, Fault, Tier, Wake};
use sluice::engine::units::{ByteLen, SLAB_BYTES, SlabIndex};
use sluice::host::memory::Lock;
use sluice::runtime::assembly::{FastTier, Plan};
use sluice::tier::cuda::{Copying, CudaTier, Options};
use sluice::tier::spill::Prepare;

/// Held by each test while it runs; one that failed is no reason for others to.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(slabs: u32) -> Options {
    Options {
        number: 0,
        library: Some(cuda_support::library()),
        device: GpuSelector::Index(0),
        max_slabs: slabs,
        copying: Copying::Measured,
        root: PathBuf::from("/"),
    }
}

fn tier(slabs: u32) -> CudaTier {
    CudaTier::open(options(slabs)).unwrap()
}

#[test]
fn cuda_conforms() {
    let _turn = turn();
    for copying in [Copying::Measured, Copying::Calls, Copying::Kernel] {
        let tier = CudaTier::open(Options { copying, ..options(2) }).unwrap();
        assert_eq!(tier.name(), "cuda:0");
        conforms(&tier);
    }
}

#[test]
fn an_operation_on_a_slab_not_held_is_a_fault() {
    let _turn = turn();
    let tier = tier(2);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    for slab in [1, 7] {
        let result = bench.run(&[op(1, Direction::Write, slab, 0, 0, PAGE)])[0].result;
        assert_eq!(result, Err(Fault::NotHeld));
    }
    // The lane is none the worse for it.
    assert_eq!(bench.run(&[op(2, Direction::Write, 0, 0, 0, PAGE)])[0].result, Ok(()));
}

#[test]
fn a_slab_is_held_once_and_given_back_once() {
    let _turn = turn();
    let tier = tier(2);
    tier.take(SlabIndex(0)).unwrap();
    for error in [
        tier.take(SlabIndex(0)).unwrap_err(),
        tier.take(SlabIndex(2)).unwrap_err(),
        tier.release(SlabIndex(1)).unwrap_err(),
        tier.export(SlabIndex(1)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        assert!(error.to_string().starts_with("tier cuda:0 slab "), "{error}");
    }
    tier.release(SlabIndex(0)).unwrap();
    assert_eq!(tier.release(SlabIndex(0)).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_slab_outlives_its_tier_behind_its_descriptor() {
    let _turn = turn();
    let first = tier(1);
    first.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&first);
    bench.fill(0, PAGE, 42);
    let write = op(1, Direction::Write, 0, SLAB_BYTES - 4096, 0, PAGE);
    assert_eq!(bench.run(&[write])[0].result, Ok(()));
    let memory = first.export(SlabIndex(0)).unwrap();
    let expected = bench.bytes(0, PAGE);
    drop((bench, first));
    let heir = tier(4);
    heir.import(SlabIndex(3), memory).unwrap();
    let mut bench = Bench::new(&heir);
    let read = op(1, Direction::Read, 3, SLAB_BYTES - 4096, 0, PAGE);
    assert_eq!(bench.run(&[read])[0].result, Ok(()));
    assert_eq!(bench.bytes(0, PAGE), expected);
    // Something that is not a slab is refused.
    let error = heir.import(SlabIndex(0), File::open("/dev/null").unwrap().into()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[test]
fn free_memory_falls_with_each_slab_and_comes_back() {
    let _turn = turn();
    let tier = tier(3);
    let free = || tier.free_bytes().unwrap().expect("an open GPU tells");
    let before = free();
    for slab in 0..3 {
        tier.take(SlabIndex(slab)).unwrap();
    }
    assert!(free() <= before - 3 * SLAB_BYTES as u64);
    for slab in 0..3 {
        tier.release(SlabIndex(slab)).unwrap();
    }
    assert!(free() > before - SLAB_BYTES as u64);
}

#[test]
fn a_closed_device_opens_with_the_next_slab_and_lanes_go_on() {
    let _turn = turn();
    let tier = tier(2);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    assert_eq!(bench.run(&[op(1, Direction::Write, 0, 0, 0, PAGE)])[0].result, Ok(()));
    let error = tier.close().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert!(tier.is_open());
    for _ in 0..2 {
        tier.release(SlabIndex(0)).unwrap();
        tier.close().unwrap();
        assert!(!tier.is_open());
        assert_eq!(tier.free_bytes().unwrap(), None, "a closed device is not woken to ask");
        let result = bench.run(&[op(2, Direction::Write, 0, 0, 0, PAGE)])[0].result;
        assert_eq!(result, Err(Fault::NotHeld));
        let mut younger = Bench::new(&tier);
        tier.take(SlabIndex(0)).unwrap();
        assert!(tier.is_open());
        for bench in [&mut bench, &mut younger] {
            bench.fill(0, PAGE, 9);
            let there = op(3, Direction::Write, 0, 8192, 0, PAGE);
            let back = op(4, Direction::Read, 0, 8192, PAGE, PAGE);
            assert_eq!(bench.run(&[there])[0].result, Ok(()));
            assert_eq!(bench.run(&[back])[0].result, Ok(()));
            assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE));
        }
    }
}

#[test]
fn a_tier_that_starts_closed_is_the_same_once_it_is_opened() {
    let _turn = turn();
    let tier = CudaTier::closed(options(2));
    assert_eq!((tier.max_slabs(), tier.is_open(), tier.free_bytes().unwrap()), (2, false, None));
    let mut bench = Bench::new(&tier);
    tier.open().unwrap();
    assert!(tier.is_open() && tier.is_ready() && tier.free_bytes().unwrap().is_some());
    tier.take(SlabIndex(1)).unwrap();
    bench.fill(0, PAGE, 9);
    assert_eq!(bench.run(&[op(1, Direction::Write, 1, 8192, 0, PAGE)])[0].result, Ok(()));
    assert_eq!(bench.run(&[op(2, Direction::Read, 1, 8192, PAGE, PAGE)])[0].result, Ok(()));
    assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE));
}

#[test]
fn a_lane_may_move_to_another_thread() {
    let _turn = turn();
    let tier = tier(1);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| {
            bench.lane.enter();
            bench.run(&[op(1, Direction::Read, 0, 0, 0, PAGE)])[0].result
        });
        assert_eq!(moved.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_thread_that_used_the_device_may_outlive_it() {
    let _turn = turn();
    let tier = tier(1);
    tier.take(SlabIndex(0)).unwrap();
    let (used, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut bench = Bench::new(&tier);
            let first = bench.run(&[op(1, Direction::Write, 0, 0, 0, PAGE)])[0].result;
            used.wait();
            // Closed here, the library included.
            wait.wait();
            let last = bench.run(&[op(2, Direction::Write, 0, 0, 0, PAGE)])[0].result;
            (first, last)
        });
        used.wait();
        let released = tier.release(SlabIndex(0));
        let closed = tier.close();
        wait.wait();
        assert!(released.is_ok() && closed.is_ok(), "{released:?}");
        assert_eq!(thread.join().unwrap(), (Ok(()), Err(Fault::NotHeld)));
    });
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    assert_eq!(bench.run(&[op(1, Direction::Read, 0, 0, 0, PAGE)])[0].result, Ok(()));
}

#[test]
fn more_groups_than_events_are_all_reported() {
    let _turn = turn();
    let tier = tier(1);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    bench.fill(0, 64 * PAGE, 3);
    // One group for each of as many operations as the lane may have open.
    for n in 0..64 {
        bench.lane.submit(&[op(n, Direction::Write, 0, n as usize * 4096, n * PAGE, PAGE)]);
    }
    assert_eq!(bench.lane.pending(), 64);
    let mut tags = Vec::new();
    let mut done = Vec::with_capacity(5);
    while bench.lane.pending() > 0 {
        bench.lane.poll(&mut done);
        tags.extend(done.drain(..).map(|done| {
            assert_eq!(done.result, Ok(()));
            done.tag
        }));
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..64).collect::<Vec<_>>());
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let _turn = turn();
    for name in ["77", "GPU-00000000-0000-0000-0000-000000000001", "ffff:ff:1f.0"] {
        let device = name.parse().unwrap();
        let Err(error) = CudaTier::open(Options { device, ..options(1) }) else {
            panic!("{name} was found");
        };
        assert_eq!(error.kind(), Kind::Missing, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("no GPU {name} here; the driver has 0 (")), "{text}");
    }
}

/// The steps in which a store's size falls.
const STEP: u64 = 512 << 20;

#[test]
fn a_store_without_a_spill_is_as_large_as_there_is_room_for() {
    let _turn = turn();
    let free = tier(1).free_bytes().unwrap().expect("an open GPU tells");
    // Room for one step and a half.
    let left = STEP + STEP / 2;
    let mut plan = Plan {
        size: ByteLen(3 * STEP),
        min_size: Some(ByteLen(STEP)),
        tier: TierKind::Cuda,
        fast: vec![FastTier::Cuda {
            library: Some(cuda_support::library()),
            device: GpuSelector::Index(0),
        }],
        closed: Vec::new(),
        why: None,
        tier_size: ByteLen(3 * STEP),
        reserve: ByteLen(free - left),
        spill: None,
        checksums: true,
        durability: Durability::Writeback,
        lock: Lock::None,
    };
    let no_preparation: Prepare = Arc::new(|| {});
    let build = |plan: &mut Plan| plan.build(&no_preparation, Arc::<Bell>::default());
    let store = build(&mut plan).unwrap();
    assert_eq!(plan.size, ByteLen(STEP));
    assert_eq!(store.device_bytes(), STEP);
    assert_eq!(store.tiers()[0].count().held, 8);
    drop(store);
    plan.size = ByteLen(3 * STEP);
    plan.reserve = ByteLen(free - STEP / 2);
    let error = build(&mut plan).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.starts_with("1.5 GiB or at least 512 MiB of swap cannot be held: "), "{text}");
    assert!(text.contains("are kept for others"), "{text}");
}

#[derive(Default)]
struct Bell;

impl Wake for Bell {
    fn wake(&self) {}
}
