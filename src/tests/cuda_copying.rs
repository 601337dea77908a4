// SPDX-License-Identifier: MIT OR Apache-2.0
//! By which calls pages are copied, and what happens where one is missing.

use fake_cuda::Call;
use fake_cuda::control::{Control, Word};
use sluice::engine::error::Kind;
use sluice::engine::tier::{PageOp, Tier};
use sluice::engine::units::SlabIndex;
use sluice::tier::cuda::{Copying, CudaTier};

use crate::cuda_support::alone;
use crate::cuda_support::bed::{Bed, PAGE, copying, open, options, read, write};
use crate::{held, refusal, rightly};

fn launches(control: Control, act: impl FnOnce()) -> u64 {
    let before = control.get(Word::Launches);
    act();
    control.get(Word::Launches) - before
}

fn pages(op: PageOp, pages: usize) -> PageOp {
    PageOp { bytes: (pages * PAGE) as u32, ..op }
}

#[test]
fn small_operations_are_one_launch_and_large_ones_a_call_each() {
    alone("cuda_copying::small_operations_are_one_launch_and_large_ones_a_call_each", |control| {
        let by_kernel = u64::from(copying() == Copying::Kernel);
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        for page in 0..64 {
            bed.fill(page, page as u8 + 1);
        }
        // Both directions together, each page apart from its neighbours.
        let there: Vec<_> = (0..32).map(|n| write(n, 0, n as usize * 3, n as usize)).collect();
        let calls = launches(control, || assert_eq!(bed.run(&there), [Ok(()); 32]));
        assert_eq!(calls, by_kernel);
        let mixed: Vec<_> = (0..64)
            .map(|n| match n {
                0..32 => read(n, 0, n as usize * 3, 100 + n as usize),
                _ => write(n, 0, n as usize * 3, n as usize),
            })
            .collect();
        let calls = launches(control, || assert_eq!(bed.run(&mixed), [Ok(()); 64]));
        assert_eq!(calls, by_kernel);
        assert!((0..32).all(|n| bed.wrong(100 + n, n as u8 + 1) == 0));
        // 15 pages are small, 16 are large; eight times 15 fit into a launch.
        let runs: Vec<_> = (0..17).map(|n| pages(write(n, 0, n as usize * 16, 0), 15)).collect();
        let calls = launches(control, || assert_eq!(bed.run(&runs), [Ok(()); 17]));
        assert_eq!(calls, 3 * by_kernel);
        let large = [pages(write(0, 0, 512, 0), 16), pages(write(1, 0, 544, 16), 32)];
        assert_eq!(launches(control, || assert_eq!(bed.run(&large), [Ok(()); 2])), 0);
        let back = [pages(read(0, 0, 512, 200), 16), pages(read(1, 0, 544, 216), 32)];
        let both = [back[0], back[1], pages(read(2, 0, 16 * 16, 300), 15)];
        let calls = launches(control, || assert_eq!(bed.run(&both), [Ok(()); 3]));
        assert_eq!(calls, by_kernel);
        assert!((0..48).all(|n| bed.wrong(200 + n, n as u8 + 1) == 0));
        assert!((0..15).all(|n| bed.wrong(300 + n, n as u8 + 1) == 0));
        drop((bed, tier));
        assert_eq!((held(control), control.get(Word::Modules)), ([0; 7], 0));
        rightly(control);
    });
}

#[test]
fn events_tell_where_a_stream_cannot_write_words() {
    alone("cuda_copying::events_tell_where_a_stream_cannot_write_words", |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        control.set(Word::CallFails, Call::StreamWriteValue32 as u64);
        control.set(Word::CallFailCode, 801);
        control.set(Word::CallFailAt, 1);
        let mut bed = Bed::new(&tier);
        assert_ne!(control.get(Word::Events), 0);
        control.set(Word::NotReadyAnswers, 3);
        assert!((0..100).all(|round| bed.works(0, round, round as u8)));
        // More groups than there are events.
        for n in 0..64 {
            bed.lane.submit(&[pages(write(n, 0, n as usize * 16, 0), 1 + 15 * (n as usize % 2))]);
        }
        assert!(bed.settle().iter().all(|done| done.result.is_ok()));
        drop((bed, tier));
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_driver_that_cannot_translate_the_kernel_copies_by_calls() {
    alone("cuda_copying::a_driver_that_cannot_translate_the_kernel_copies_by_calls", |control| {
        let fail = || {
            control.set(Word::CallFails, Call::ModuleLoadData as u64);
            control.set(Word::CallFailCode, 221);
            control.set(Word::CallFailAt, 1);
        };
        fail();
        let measured =
            || sluice::tier::cuda::Options { copying: Copying::Measured, ..options(0, "0", 1) };
        let tier = CudaTier::open(measured()).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        let ops: Vec<_> = (0..64).map(|n| write(n, 0, n as usize, n as usize)).collect();
        let calls = launches(control, || assert_eq!(bed.run(&ops), [Ok(()); 64]));
        assert_eq!(calls, 0);
        drop((bed, tier));
        fail();
        let kernel = sluice::tier::cuda::Options { copying: Copying::Kernel, ..measured() };
        let error = refusal(CudaTier::open(kernel));
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)"), "{error}");
        assert!(error.hint().unwrap().contains("libnvidia-ptxjitcompiler"));
        assert_eq!((held(control), control.get(Word::Modules)), ([0; 7], 0));
        rightly(control);
    });
}

#[test]
fn a_batch_that_never_ends_is_never_reported() {
    alone("cuda_copying::a_batch_that_never_ends_is_never_reported", |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::HangEventAt, 2);
        let ops: Vec<_> = (0..8).map(|n| write(n, 0, n as usize, n as usize)).collect();
        assert_eq!(bed.run(&ops), [Ok(()); 8]);
        bed.lane.submit(&ops);
        let since = std::time::Instant::now();
        while since.elapsed().as_millis() < 5 {
            assert!(bed.poll().is_empty());
        }
        assert_eq!(bed.lane.pending(), 8);
        // Another lane's stream goes on.
        assert!(Bed::new(&tier).works(0, 100, 3));
    });
}

#[test]
fn work_that_a_device_forgot_is_a_failure_not_a_success() {
    alone("cuda_copying::work_that_a_device_forgot_is_a_failure_not_a_success", |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::StalledDevices, 1);
        let ops: Vec<_> = (0..4).map(|n| write(n, 0, n as usize, n as usize)).collect();
        bed.lane.submit(&ops);
        // Lost and back again between two looks: its streams are idle.
        control.set(Word::LostDevices, 1);
        assert!(tier.free_bytes().is_err());
        control.set(Word::LostDevices, 0);
        control.set(Word::StalledDevices, 0);
        let done = bed.settle();
        assert!(done.len() == 4 && done.iter().all(|done| done.result.is_err()), "{done:?}");
    });
}
