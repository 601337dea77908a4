// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CUDA tier against the fake driver: what it says when it cannot start,
//! what it does with each failure, and that it gives everything back. The fake
//! counts every wrong use of the driver; there must be none.

mod conformance;
mod cuda_copying;
mod cuda_support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cuda_support::bed::{Bed, open, options, read, write};
use cuda_support::{again, alone, fake_library};
use fake_cuda::Call;
use fake_cuda::control::{Control, ROOT, VARIABLE, Word, omit_symbol};
use sluice::engine::error::{Error, Kind};
use sluice::engine::gpu::GpuSelector;
use sluice::engine::tier::{Fault, Tier};
use sluice::engine::units::{SLAB_BYTES, SlabIndex};
use sluice::tier::cuda::{CudaTier, Options};

/// What the process holds of the driver.
fn held(control: Control) -> [u64; 7] {
    [
        Word::Handles,
        Word::Mappings,
        Word::Reservations,
        Word::Registrations,
        Word::Streams,
        Word::Events,
        Word::Contexts,
    ]
    .map(|word| control.get(word))
}

/// The driver was used rightly.
#[track_caller]
fn rightly(control: Control) {
    let found = (control.get(Word::Misuses), control.get(Word::LastMisuse));
    assert_eq!(found, (0, 0), "wrong uses of the driver, and the code of the last");
}

fn refusal(result: sluice::engine::error::Result<CudaTier>) -> Error {
    match result {
        Err(error) => error,
        Ok(tier) => panic!("tier {} opened", tier.name()),
    }
}

/// A root folder whose device nodes are there and may be opened.
fn root_with_nodes() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("dev")).unwrap();
    for node in ["nvidiactl", "nvidia-uvm"] {
        File::create(root.path().join("dev").join(node)).unwrap();
    }
    root
}

#[test]
fn each_way_to_fail_at_the_start_has_its_own_error() {
    alone("each_way_to_fail_at_the_start_has_its_own_error", |control| {
        let root = root_with_nodes();
        let attempt = |words: &[(Word, u64)]| {
            for (word, value) in words {
                control.set(*word, *value);
            }
            let mut options = options(0, "0", 4);
            options.root = root.path().to_path_buf();
            let error = refusal(CudaTier::open(options));
            assert_eq!(held(control), [0; 7], "{error}");
            (error.kind(), error.to_string(), error.hint().unwrap_or_default().to_owned())
        };
        let expect = |(kind, text, hint): (Kind, String, String), wanted: (Kind, &str, &str)| {
            assert_eq!(kind, wanted.0, "{text}");
            assert!(text.contains(wanted.1), "{text}");
            assert!(hint.contains(wanted.2), "{text}: {hint}");
        };
        expect(attempt(&[(Word::Stub, 1)]), (Kind::Missing, "stub for linking", "[cuda] library"));
        expect(
            attempt(&[(Word::Stub, 0), (Word::DriverVersion, 10_020)]),
            (Kind::Missing, "CUDA 10.2 (10020); at least CUDA 11.0", "update the NVIDIA driver"),
        );
        expect(
            attempt(&[(Word::DriverVersion, 13_000), (Word::InitFailures, 1)]),
            (Kind::Io, "CUDA_ERROR_UNKNOWN (999)", "modprobe -r nvidia-uvm"),
        );
        expect(
            attempt(&[(Word::Devices, 0)]),
            (Kind::Missing, "CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi -L"),
        );
        expect(
            attempt(&[(Word::Devices, 1), (Word::NoVirtualMemory, 1)]),
            (Kind::Missing, "cannot map memory by handles", "another GPU"),
        );
        control.set(Word::NoVirtualMemory, 0);
        control.set_others(0, 1 << 30);
        expect(attempt(&[]), (Kind::NoSpace, "0 B of 1 GiB free", "nvidia-smi"));
        control.set_others(0, 0);
        rightly(control);
        expect(attempt(&[(Word::LostDevices, 1)]), (Kind::Io, "CUDA_ERROR_UNKNOWN (999)", "Xid"));
    });
}

#[test]
fn a_library_that_lacks_functions_is_named_with_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.so"), folder.path().join("two.so"));
    omit_symbol(&fake_library(), "cuMemExportToShareableHandle", &one).unwrap();
    omit_symbol(&one, "cuEventQuery", &two).unwrap();
    let mut options = options(0, "0", 1);
    options.library = Some(two);
    let error = refusal(CudaTier::open(options));
    assert_eq!(error.kind(), Kind::Missing);
    let text = error.to_string();
    assert!(text.contains("lacks cuMemExportToShareableHandle, cuEventQuery"), "{text}");
}

#[test]
fn a_device_that_returns_wrong_data_or_an_error_when_tried_is_refused() {
    const NAME: &str = "a_device_that_returns_wrong_data_or_an_error_when_tried_is_refused";
    alone(NAME, |control| {
        let tier = open(0, "0", 1).unwrap();
        drop(tier);
        control.set(Word::CorruptEvery, 1);
        let tier = open(0, "0", 1).unwrap();
        let setup = || Bed::new(&tier);
        // What is tried is a lane: its thread must not get one that lies.
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(setup)).err();
        let text = refused.and_then(|text| text.downcast::<String>().ok()).unwrap();
        assert!(text.contains("is not what was written"), "{text}");
        control.set(Word::CorruptEvery, 0);
        drop(tier);
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn each_of_two_gpus_conforms_with_late_answers_too() {
    alone("each_of_two_gpus_conforms_with_late_answers_too", |control| {
        control.set(Word::Devices, 2);
        let tiers = [open(0, "1", 2).unwrap(), open(1, "0", 2).unwrap()];
        for late in [0, 3] {
            control.set(Word::NotReadyAnswers, late);
            for tier in &tiers {
                conformance::conforms(tier);
                tier.release(SlabIndex(0)).unwrap();
            }
        }
        drop(tiers);
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_gpu_is_chosen_by_number_uuid_or_address() {
    alone("a_gpu_is_chosen_by_number_uuid_or_address", |control| {
        control.set(Word::Devices, 3);
        for (name, device) in [
            ("2", 2),
            ("GPU-fa4ecada-0000-4000-8000-000000000001", 1),
            ("0000:0c:00.0", 2),
            ("0000:0B:00.0", 1),
        ] {
            let tier = open(0, name, 1).unwrap();
            let text = tier.description().to_owned();
            assert!(text.contains(&format!("Fake GPU {device}")), "{name}: {text}");
        }
        let error = refusal(open(0, "3", 1));
        assert_eq!(error.kind(), Kind::Missing);
        let text = error.to_string();
        assert!((0..3).all(|n| text.contains(&format!("Fake GPU {n}"))), "{text}");
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_slab_that_cannot_be_made_leaves_nothing_behind() {
    alone("a_slab_that_cannot_be_made_leaves_nothing_behind", |control| {
        let tier = open(0, "0", 3).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let before = held(control);
        control.set(Word::CallFailCode, 801);
        for call in [Call::MemCreate, Call::MemAddressReserve, Call::MemMap, Call::MemSetAccess] {
            control.set(Word::CallFails, call as u64);
            control.set(Word::CallFailAt, 1);
            let error = tier.take(SlabIndex(1)).unwrap_err();
            assert!(error.to_string().contains("(801)"), "{call:?}: {error}");
            assert_eq!(held(control), before, "{call:?}");
        }
        // Room for itself and nothing more; then the arithmetic is told.
        let free = tier.free_bytes().unwrap().unwrap();
        control.set_others(0, free - SLAB_BYTES as u64);
        tier.take(SlabIndex(1)).unwrap();
        let error = tier.take(SlabIndex(2)).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        let text = error.to_string();
        assert!(text.contains("64 MiB asked") && text.contains("0 B of 1 GiB free"), "{text}");
        assert_eq!(tier.free_bytes().unwrap(), Some(0));
        drop(tier);
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn completion_is_not_claimed_before_the_data_are_there() {
    alone("completion_is_not_claimed_before_the_data_are_there", |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::NotReadyAnswers, 5);
        for round in 0..200 {
            assert!(bed.works(0, round % 7, round as u8), "round {round}");
        }
        bed.lane.submit(&[write(1, 0, 0, 0), read(2, 0, 0, 3)]);
        assert!(bed.poll().is_empty());
        assert_eq!(bed.lane.pending(), 2);
        assert_eq!(bed.settle().len(), 2);
        drop((bed, tier));
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_refused_copy_fails_what_is_under_way_and_the_lane_goes_on() {
    const NAME: &str = "a_refused_copy_fails_what_is_under_way_and_the_lane_goes_on";
    alone(NAME, |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::CopyFailAt, 3);
        control.set(Word::CopyFailCode, 46);
        let ops: Vec<_> = (0..6).map(|n| write(n, 0, n as usize, n as usize)).collect();
        assert_eq!(bed.run(&ops), [Err(Fault::Device(46)); 6]);
        // The call was refused, the stream is well: the lane goes on.
        assert_eq!(bed.run(&ops[..2]), [Ok(()); 2]);
        let mut other = Bed::new(&tier);
        assert!(other.works(0, 9, 1));
        drop((bed, other, tier));
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_failure_is_not_reported_while_the_device_may_still_write() {
    alone("a_failure_is_not_reported_while_the_device_may_still_write", |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        assert!(bed.works(0, 0, 7));
        control.set(Word::StalledDevices, 1);
        bed.fill(5, 1);
        bed.lane.submit(&[read(1, 0, 0, 5)]);
        control.set(Word::CopyFailAt, 1);
        bed.lane.submit(&[read(2, 0, 0, 6)]);
        for _ in 0..50 {
            assert!(bed.poll().is_empty(), "the first read is still under way");
        }
        assert!(matches!(tier.close(), Err(error) if error.kind() == Kind::Busy));
        control.set(Word::StalledDevices, 0);
        let done = bed.settle();
        assert!(done.iter().all(|done| done.result.is_err()) && done.len() == 2, "{done:?}");
        assert_eq!(bed.wrong(5, 7), 0, "by now it has been written");
        rightly(control);
    });
}

#[test]
fn a_failure_at_completion_is_the_lanes_and_the_other_gpu_goes_on() {
    const NAME: &str = "a_failure_at_completion_is_the_lanes_and_the_other_gpu_goes_on";
    alone(NAME, |control| {
        control.set(Word::Devices, 2);
        let tiers = [open(0, "0", 1).unwrap(), open(1, "1", 1).unwrap()];
        for tier in &tiers {
            tier.take(SlabIndex(0)).unwrap();
        }
        // One I/O thread's memory, a lane into each.
        let mut first = Bed::new(&tiers[0]);
        let mut second = Bed::sharing(&tiers[1], Arc::clone(&first.memory));
        assert!(first.works(0, 0, 3) && second.works(0, 0, 4));
        control.set(Word::FaultDevices, 1);
        control.set(Word::AsyncFailAt, 2);
        let ops = [read(1, 0, 0, 10), read(2, 0, 0, 11), read(3, 0, 0, 12)];
        assert_eq!(first.run(&ops), [Err(Fault::Device(719)); 3]);
        assert_eq!(first.run(&ops[..1]), [Err(Fault::Device(719))]);
        for round in 0..50 {
            assert!(second.works(0, round, round as u8));
        }
        assert_eq!(second.run(&[read(7, 0, 0, 20)]), [Ok(())]);
        // The lost one takes and gives nothing, and says why.
        for error in [tiers[0].take(SlabIndex(0)), tiers[0].release(SlabIndex(0))] {
            error.unwrap_err();
        }
        tiers[1].release(SlabIndex(0)).unwrap();
        tiers[1].take(SlabIndex(0)).unwrap();
        assert!(second.works(0, 1, 9));
        rightly(control);
    });
}

#[test]
fn a_lost_device_fails_everything_once_and_serves_again_when_it_is_back() {
    const NAME: &str = "a_lost_device_fails_everything_once_and_serves_again_when_it_is_back";
    alone(NAME, |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::StalledDevices, 1);
        bed.lane.submit(&[write(1, 0, 0, 0), write(2, 0, 1, 1)]);
        control.set(Word::LostDevices, 1);
        control.set(Word::LostCode, 719);
        let done = bed.settle();
        let results: Vec<_> = done.iter().map(|done| (done.tag, done.result)).collect();
        assert_eq!(results, [(1, Err(Fault::Device(719))), (2, Err(Fault::Device(719)))]);
        assert_eq!(bed.run(&[write(3, 0, 0, 0)]), [Err(Fault::Device(719))]);
        assert!(tier.free_bytes().is_err());
        control.set(Word::LostDevices, 0);
        control.set(Word::StalledDevices, 0);
        tier.release(SlabIndex(0)).unwrap();
        tier.close().unwrap();
        tier.take(SlabIndex(0)).unwrap();
        assert!(bed.works(0, 0, 5), "the same lane, on a device opened anew");
        rightly(control);
    });
}

#[test]
fn a_call_that_hangs_while_a_lane_is_tried_holds_up_no_other_lane() {
    const NAME: &str = "a_call_that_hangs_while_a_lane_is_tried_holds_up_no_other_lane";
    alone(NAME, |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut first = Bed::new(&tier);
        assert!(first.works(0, 0, 1));
        control.set(Word::HangCopyAt, 1);
        // Never joined: this process ends with its test.
        std::thread::spawn(move || first.lane.enter());
        while control.get(Word::HangCopyAt) != 0 {
            std::thread::yield_now();
        }
        let mut second = Bed::new(&tier);
        assert!(second.works(0, 1, 2));
        assert!(tier.free_bytes().unwrap().is_some());
        // It may still come back and go on.
        assert!(matches!(tier.close(), Err(error) if error.kind() == Kind::Busy));
        drop(second);
        tier.release(SlabIndex(0)).unwrap();
        let error = tier.close().unwrap_err();
        assert!(error.to_string().contains("never finished"), "{error}");
        assert!(tier.is_open());
    });
}

#[test]
fn a_tier_is_lost_once_its_context_is_dead_and_not_by_a_call_that_is_refused() {
    const NAME: &str = "a_tier_is_lost_once_its_context_is_dead_and_not_by_a_call_that_is_refused";
    alone(NAME, |control| {
        let tier = open(0, "0", 1).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        control.set(Word::CopyFailAt, 1);
        bed.run(&[write(1, 0, 0, 0)]).iter().for_each(|result| assert!(result.is_err()));
        assert!(!tier.is_lost(), "another copy may be taken");
        control.set(Word::AsyncFailAt, 1);
        bed.run(&[write(2, 0, 0, 0)]).iter().for_each(|result| assert!(result.is_err()));
        assert!(tier.is_lost());
        rightly(control);
    });
}

#[test]
fn a_closed_gpu_costs_nothing_and_opens_with_the_next_slab() {
    alone("a_closed_gpu_costs_nothing_and_opens_with_the_next_slab", |control| {
        let tier = open(0, "0", 2).unwrap();
        tier.take(SlabIndex(0)).unwrap();
        let mut bed = Bed::new(&tier);
        for round in 0..3 {
            assert!(bed.works(0, 0, round));
            assert!(matches!(tier.close(), Err(error) if error.kind() == Kind::Busy));
            assert!(tier.is_open());
            tier.release(SlabIndex(0)).unwrap();
            tier.close().unwrap();
            assert!(!tier.is_open());
            assert_eq!(held(control), [0; 7], "round {round}");
            assert_eq!(tier.free_bytes().unwrap(), None, "a closed device is not asked");
            assert_eq!(bed.run(&[write(1, 0, 0, 0)]), [Err(Fault::NotHeld)]);
            // A driver that does not start leaves it closed.
            control.set(Word::InitFailures, 1);
            tier.take(SlabIndex(0)).unwrap_err();
            assert!(!tier.is_open());
            assert_eq!(held(control), [0; 7]);
            tier.take(SlabIndex(0)).unwrap();
        }
        assert!(bed.works(0, 0, 9));
        drop((bed, tier));
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn closing_one_gpu_leaves_the_memory_it_shares_with_the_other() {
    alone("closing_one_gpu_leaves_the_memory_it_shares_with_the_other", |control| {
        control.set(Word::Devices, 2);
        let tiers = [open(0, "0", 1).unwrap(), open(1, "1", 1).unwrap()];
        for tier in &tiers {
            tier.take(SlabIndex(0)).unwrap();
        }
        let mut first = Bed::new(&tiers[0]);
        let mut second = Bed::sharing(&tiers[1], Arc::clone(&first.memory));
        for round in 0..3 {
            tiers[0].release(SlabIndex(0)).unwrap();
            // The shared memory was registered through this GPU's context.
            let error = tiers[0].close().unwrap_err();
            assert!(error.to_string().contains("registered through it"), "{error}");
            assert!(!tiers[0].is_open());
            assert!(second.works(0, 0, round), "round {round}");
            tiers[0].take(SlabIndex(0)).unwrap();
            assert!(first.works(0, 0, round) && second.works(0, 1, round));
            // The other way round nothing is in the way.
            tiers[1].release(SlabIndex(0)).unwrap();
            tiers[1].close().unwrap();
            assert!(first.works(0, 2, round));
            tiers[1].take(SlabIndex(0)).unwrap();
        }
        // With no user of it left, closing closes.
        drop(second);
        tiers[0].release(SlabIndex(0)).unwrap();
        tiers[0].close().unwrap();
        drop(first);
        drop(tiers);
        assert_eq!(held(control), [0; 7]);
        rightly(control);
    });
}

#[test]
fn a_slab_goes_from_tier_to_tier_by_its_descriptor_and_nothing_else_does() {
    const NAME: &str = "a_slab_goes_from_tier_to_tier_by_its_descriptor_and_nothing_else_does";
    alone(NAME, |control| {
        let tier = open(0, "0", 2).unwrap();
        tier.take(SlabIndex(1)).unwrap();
        let mut bed = Bed::new(&tier);
        assert!(bed.works(1, 1234, 77));
        let descriptor = tier.export(SlabIndex(1)).unwrap();
        drop((bed, tier));
        assert_eq!(held(control), [0; 7]);
        let tier = open(0, "0", 2).unwrap();
        tier.import(SlabIndex(0), descriptor).unwrap();
        let mut bed = Bed::new(&tier);
        assert_eq!(bed.run(&[read(1, 0, 1234, 4)]), [Ok(())]);
        assert_eq!(bed.wrong(4, 77), 0);
        rightly(control);
        for path in ["/dev/null", "/proc/self/exe"] {
            let stranger = File::open(Path::new(path)).unwrap();
            let error = tier.import(SlabIndex(1), stranger.into()).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
        }
        assert!(tier.take(SlabIndex(1)).is_ok());
    });
}

/// What this process has open below `root/dev`, by name.
fn nodes_of(root: &Path) -> Vec<String> {
    let dev = root.join("dev");
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let names = targets.filter_map(|node| Some(node.strip_prefix(&dev).ok()?.to_path_buf()));
    let mut names: Vec<String> = names.map(|name| name.display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn the_driver_keeps_its_nodes_after_a_close_and_a_tier_that_starts_closed_has_none() {
    const TEST: &str =
        "the_driver_keeps_its_nodes_after_a_close_and_a_tier_that_starts_closed_has_none";
    let Some(root) = std::env::var_os(ROOT).map(PathBuf::from) else {
        let root = root_with_nodes();
        std::os::unix::fs::symlink("/proc", root.path().join("proc")).unwrap();
        let control = root.path().join("control");
        Control::create(&control).unwrap().set(Word::KeepsNodes, 1);
        let mut alone = Command::new(std::env::current_exe().unwrap());
        return again(TEST, alone.env(VARIABLE, &control).env(ROOT, root.path()));
    };
    let control = Control::open(&root.join("control")).unwrap();
    let card = Options { root: root.clone(), ..options(0, "0", 2) };
    let tier = CudaTier::closed(card.clone());
    assert_eq!((tier.name(), tier.max_slabs(), tier.is_open()), ("cuda:0", 2, false));
    assert_eq!((tier.free_bytes().unwrap(), tier.lingers(), tier.device()), (None, None, None));
    // Its lanes are made before it was ever opened.
    let mut bed = Bed::new(&tier);
    assert_eq!(bed.run(&[write(1, 0, 0, 0)]), [Err(Fault::NotHeld)]);
    assert!(nodes_of(&root).is_empty(), "{:?}", nodes_of(&root));
    control.set(Word::InitFailures, 1);
    tier.open().unwrap_err();
    assert!(!tier.is_open());
    tier.open().unwrap();
    assert!(tier.is_open() && tier.is_ready());
    assert!(tier.free_bytes().unwrap().is_some());
    assert_eq!(tier.lingers(), None, "it is open");
    tier.take(SlabIndex(0)).unwrap();
    assert!(bed.works(0, 0, 3));
    tier.release(SlabIndex(0)).unwrap();
    tier.close().unwrap();
    // Only the end of this process lets go of them.
    assert_eq!(nodes_of(&root), ["nvidia-uvm", "nvidiactl"]);
    let said = tier.lingers().unwrap();
    assert!(said.contains("dev/nvidia-uvm") && said.contains("dev/nvidiactl"), "{said}");
    // With another GPU of the process open, none is the closed one's own.
    let other = CudaTier::open(card).unwrap();
    assert_eq!(tier.lingers(), None);
    assert!(matches!(other.device(), Some(GpuSelector::Uuid(_))));
    drop((bed, tier, other));
    assert_eq!(held(control), [0; 7]);
    rightly(control);
}
