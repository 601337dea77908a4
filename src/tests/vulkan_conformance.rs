// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold on every GPU that speaks Vulkan, real or in software; see
//! `vulkan_support`. Nothing is skipped.

mod conformance;
mod outlive;
mod vulkan_support;

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use conformance::{Bench, PAGE, conforms, op};
use sluice::engine::error::Kind;
use sluice::engine::gpu::GpuSelector;
use sluice::engine::tier::{Direction, Fault, PageOp, Tier};
use sluice::engine::units::{SLAB_BYTES, SlabIndex};
use sluice::tier::vulkan::{By, Options, VulkanTier, offers};
use vulkan_support::{device, library, open, options};

#[test]
fn the_gpu_conforms() {
    conforms(&open(2).unwrap());
}

/// Whatever moves the pages, and whether the CPU reaches them or not.
#[test]
fn every_way_into_the_gpu_conforms() {
    for mapped in [true, false] {
        for by in [By::Cpu, By::Copy, By::Gather] {
            let tier = VulkanTier::open(Options { by: Some(by), mapped, ..options(2) }).unwrap();
            conforms(&tier);
        }
    }
}

#[test]
fn slabs_survive_the_killing_of_their_process() {
    outlive::slabs_survive_their_process("slabs_survive_the_killing_of_their_process", |slabs| {
        open(slabs).unwrap()
    });
}

/// One page written by one lane is what another reads at once, over and over: no
/// store is held back, no line that was fetched before is given out again.
#[test]
fn a_page_just_written_is_what_the_next_read_sees() {
    let tier = open(1).unwrap();
    tier.take(SlabIndex(0)).unwrap();
    let (mut writer, mut reader) = (Bench::new(&tier), Bench::new(&tier));
    for round in 0..2000_u64 {
        // The same few pages again and again, neighbours among them.
        let place = (round as usize % 3) * PAGE as usize;
        writer.fill(0, PAGE, round + 1);
        let write = op(1, Direction::Write, 0, place, 0, PAGE);
        assert_eq!(writer.run(&[write])[0].result, Ok(()));
        let read = op(2, Direction::Read, 0, place, PAGE, PAGE);
        for bench in [&mut writer, &mut reader] {
            assert_eq!(bench.run(&[read])[0].result, Ok(()));
        }
        let written = writer.bytes(0, PAGE);
        assert_eq!(writer.bytes(PAGE, PAGE), written, "round {round}, the writer itself");
        assert_eq!(reader.bytes(PAGE, PAGE), written, "round {round}, another lane");
    }
}

/// A page is 64 lines, and a write of it leaves the lines of its neighbours alone,
/// though a processor gathers stores to neighbouring lines.
#[test]
fn a_write_touches_no_line_of_its_neighbours() {
    let tier = open(1).unwrap();
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    let group = |from: u32, direction, step: usize| -> Vec<PageOp> {
        (0..16).map(|n| op(n, direction, 0, n as usize * step, from + n * PAGE, PAGE)).collect()
    };
    let page = PAGE as usize;
    // Thirty-two neighbours, then every other one of them anew, in one group.
    for half in 0..2 {
        bench.fill(0, 16 * PAGE, 10 + half);
        let mut ops = group(0, Direction::Write, page);
        for op in &mut ops {
            op.offset += half as u32 * 16 * PAGE;
        }
        assert!(bench.run(&ops).iter().all(|done| done.result.is_ok()));
    }
    bench.fill(0, 16 * PAGE, 99);
    assert!(
        bench.run(&group(0, Direction::Write, 2 * page)).iter().all(|done| done.result.is_ok())
    );
    let reads: Vec<PageOp> = (0..32)
        .map(|n| op(n, Direction::Read, 0, n as usize * page, (1 << 20) + n * PAGE, PAGE))
        .collect();
    assert!(bench.run(&reads).iter().all(|done| done.result.is_ok()));
    let new = bench.bytes(0, 16 * PAGE);
    let found = bench.bytes(1 << 20, 32 * PAGE);
    bench.fill(0, 16 * PAGE, 10);
    let first = bench.bytes(0, 16 * PAGE);
    bench.fill(0, 16 * PAGE, 11);
    let old = [first, bench.bytes(0, 16 * PAGE)].concat();
    for n in 0..32 {
        let expected =
            if n % 2 == 0 { &new[n / 2 * page..][..page] } else { &old[n * page..][..page] };
        assert_eq!(&found[n * page..][..page], expected, "page {n}");
    }
}

/// Every read is of something that was written, whatever is under way beside it.
#[test]
fn random_traffic_of_many_sizes_reads_back_as_it_was_written() {
    random_traffic(&open(2).unwrap());
    for (by, mapped) in [(By::Copy, false), (By::Gather, false), (By::Gather, true)] {
        random_traffic(&VulkanTier::open(Options { by: Some(by), mapped, ..options(2) }).unwrap());
    }
}

fn random_traffic(tier: &VulkanTier) {
    const PAGES: usize = 256;
    for slab in 0..2 {
        tier.take(SlabIndex(slab)).unwrap();
    }
    let mut bench = Bench::new(tier);
    let mut known: HashMap<(u32, usize), Vec<u8>> = HashMap::new();
    let mut random = 12_345_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (random >> 33) % limit
    };
    let page = PAGE as usize;
    for round in 0..400 {
        // Writes of one to sixteen pages, each to a part of its own.
        let count = 1 + below(8) as usize;
        let mut ops = Vec::new();
        for n in 0..count {
            let pages = 1 + below(16) as usize;
            let slab = below(2) as u32;
            let at = n * (PAGES / 8) + below(16) as usize;
            let host = (n * 16) as u32 * PAGE;
            bench.fill(host, pages as u32 * PAGE, round * 100 + n as u64);
            ops.push(op(n as u32, Direction::Write, slab, at * page, host, pages as u32 * PAGE));
            let bytes = bench.bytes(host, pages as u32 * PAGE);
            for (k, content) in bytes.chunks(page).enumerate() {
                known.insert((slab, at + k), content.to_vec());
            }
        }
        assert!(bench.run(&ops).iter().all(|done| done.result.is_ok()));
        let mut reads = Vec::new();
        let mut expected = Vec::new();
        for n in 0..32_u32 {
            let (slab, at) = (below(2) as u32, below(PAGES as u64) as usize);
            if let Some(content) = known.get(&(slab, at)) {
                let host = (1 << 20) + n * PAGE;
                reads.push(op(n, Direction::Read, slab, at * page, host, PAGE));
                expected.push((host, content));
            }
        }
        assert!(bench.run(&reads).iter().all(|done| done.result.is_ok()));
        for (host, content) in expected {
            assert_eq!(&bench.bytes(host, PAGE), content, "round {round}");
        }
    }
}

#[test]
fn what_is_not_held_is_a_fault_and_what_cannot_be_is_an_error() {
    let tier = open(2).unwrap();
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    for slab in [1, 7] {
        let result = bench.run(&[op(1, Direction::Write, slab, 0, 0, PAGE)])[0].result;
        assert_eq!(result, Err(Fault::NotHeld));
    }
    assert_eq!(tier.take(SlabIndex(0)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(tier.take(SlabIndex(2)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(tier.release(SlabIndex(1)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(tier.export(SlabIndex(1)).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(tier.close().unwrap_err().kind(), Kind::Busy);
    let free = tier.free_bytes().unwrap().unwrap();
    assert!(free >= SLAB_BYTES as u64, "{free} bytes free");
}

#[test]
fn a_descriptor_is_of_one_slab_that_both_tiers_see() {
    let (first, second) = (open(1).unwrap(), open(1).unwrap());
    first.take(SlabIndex(0)).unwrap();
    let memory: OwnedFd = first.export(SlabIndex(0)).unwrap();
    second.import(SlabIndex(0), memory).unwrap();
    let (mut here, mut there) = (Bench::new(&first), Bench::new(&second));
    here.fill(0, PAGE, 5);
    assert_eq!(here.run(&[op(1, Direction::Write, 0, 4096, 0, PAGE)])[0].result, Ok(()));
    assert_eq!(there.run(&[op(1, Direction::Read, 0, 4096, 0, PAGE)])[0].result, Ok(()));
    assert_eq!(here.bytes(0, PAGE), there.bytes(0, PAGE));
    // The memory lives as long as one of them has it.
    drop(here);
    first.release(SlabIndex(0)).unwrap();
    assert_eq!(there.run(&[op(1, Direction::Read, 0, 4096, PAGE, PAGE)])[0].result, Ok(()));
    assert_eq!(there.bytes(0, PAGE), there.bytes(PAGE, PAGE));
}

/// A descriptor does not say whether its memory was mapped.
#[test]
fn a_slab_that_was_mapped_can_be_taken_over_unmapped_and_the_other_way_round() {
    for mapped in [true, false] {
        let first = VulkanTier::open(Options { mapped, ..options(1) }).unwrap();
        let second = VulkanTier::open(Options { mapped: !mapped, ..options(1) }).unwrap();
        first.take(SlabIndex(0)).unwrap();
        let (mut here, mut there) = (Bench::new(&first), Bench::new(&second));
        for n in 0..8 {
            here.fill(n * PAGE, PAGE, u64::from(n) + 9);
        }
        let ops = |direction| -> Vec<PageOp> {
            (0..8).map(|n| op(n, direction, 0, n as usize * (8 << 20), n * PAGE, PAGE)).collect()
        };
        assert!(here.run(&ops(Direction::Write)).iter().all(|done| done.result.is_ok()));
        second.import(SlabIndex(0), first.export(SlabIndex(0)).unwrap()).unwrap();
        assert!(there.run(&ops(Direction::Read)).iter().all(|done| done.result.is_ok()));
        assert_eq!(here.bytes(0, 8 * PAGE), there.bytes(0, 8 * PAGE), "mapped first: {mapped}");
    }
}

#[test]
fn a_gpu_is_found_by_every_name_it_has_and_by_no_other() {
    let offers = offers(library().as_deref()).unwrap();
    let tier = open(1).unwrap();
    let description = &tier.offer().description;
    assert!(offers.iter().any(|offer| &offer.description == description), "{offers:?}");
    let uuid = description.split(['(', ')', ',', ' ']).find(|word| word.starts_with("GPU-"));
    let uuid: GpuSelector = uuid.unwrap().parse().unwrap();
    let named = VulkanTier::open(Options { device: Some(uuid), ..options(1) }).unwrap();
    assert_eq!(&named.offer().description, description);
    for absent in ["99", "GPU-00000000-0000-0000-0000-000000000001", "00ff:1f:1f.0"] {
        let device = Some(absent.parse().unwrap());
        let Err(error) = VulkanTier::open(Options { device, ..options(1) }) else {
            panic!("there is a GPU {absent}");
        };
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains(absent) && error.to_string().contains("GPU-"));
    }
}

#[test]
fn a_software_device_is_taken_only_by_name() {
    let unnamed = VulkanTier::open(Options { device: None, ..options(1) });
    match unnamed {
        Ok(tier) => assert!(!tier.offer().software, "{:?}", tier.offer()),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Missing);
            assert!(error.to_string().contains("memory of its own"), "{error}");
        }
    }
    let named = VulkanTier::open(Options { device: Some(device()), ..options(1) });
    assert!(named.is_ok());
}
