// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a wrong use meets.

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use fake_cuda::control::Word;

use crate::card::{Card, PAGE, SLAB, alone, held, ok, on, without_allocating};

#[test]
fn a_right_use_moves_pages_gives_all_back_and_allocates_nothing_on_the_way() {
    alone(
        "strictness::a_right_use_moves_pages_gives_all_back_and_allocates_nothing_on_the_way",
        |control| {
            let mut card = Card::new(0);
            card.fill(0, 7);
            without_allocating(|| {
                for round in 0..3000 {
                    ok(card.put(0, round % 100));
                    ok(card.record());
                    ok(card.get(round % 100, 1));
                    ok(card.record());
                    while card.query() != 0 {}
                }
                ok(card.put(0, 9));
                ok(card.finish());
            });
            assert_eq!(card.wrong(1, 7), 0);
            assert_eq!(held(control), [1; 7]);
            card.close();
            assert_eq!(held(control), [0; 7]);
            assert_eq!(control.get(Word::CopiesQueued), control.get(Word::CopiesDone));
            assert_eq!(control.get(Word::Misuses), 0);
        },
    );
}

#[test]
fn a_copy_happens_when_it_is_asked_about_and_not_before() {
    alone("strictness::a_copy_happens_when_it_is_asked_about_and_not_before", |control| {
        control.set(Word::NotReadyAnswers, 2);
        let mut card = Card::new(0);
        card.fill(0, 1);
        ok(card.put(0, 0));
        ok(card.record());
        // The buffer is used again too early: what arrives is wrong.
        card.fill(0, 2);
        assert_eq!([card.query(), card.query(), card.query()], [600, 600, 0]);
        card.fill(1, 9);
        ok(card.get(0, 1));
        ok(card.record());
        assert_eq!([card.query(), card.query()], [600, 600]);
        assert_eq!(card.wrong(1, 9), 0, "it was read too early");
        ok(card.query());
        assert_eq!(card.wrong(1, 2), 0);
        ok(card.query());
        // A question about the whole stream counts for itself.
        ok(card.put(0, 1));
        let asked = [(); 4].map(|()| fake_cuda::cuStreamQuery(card.stream));
        assert_eq!(asked, [600, 600, 0, 0]);
        card.close();
    });
}

#[test]
fn a_copy_to_nobodys_address_loses_the_device_for_good() {
    alone("strictness::a_copy_to_nobodys_address_loses_the_device_for_good", |control| {
        let card = Card::new(0);
        // The last page is inside, the one after it is not.
        ok(card.put(0, SLAB / PAGE - 1));
        ok(card.finish());
        ok(card.put(0, SLAB / PAGE));
        ok(card.record());
        assert_eq!(card.query(), 700);
        let (mut free, mut total) = (0, 0);
        // SAFETY: places of ours.
        let asked = unsafe { fake_cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        assert_eq!([asked, card.put(0, 0), card.query(), card.finish(), card.record()], [700; 5]);
        assert_eq!(fake_cuda::cuMemUnmap(card.address, SLAB), 700);
        assert!(control.get(Word::Misuses) > 0);
        // Even a new context of the same process.
        fake_cuda::cuDevicePrimaryCtxRelease_v2(0);
        let mut context = 0;
        // SAFETY: a place of ours.
        assert_eq!(unsafe { fake_cuda::cuDevicePrimaryCtxRetain(&raw mut context, 0) }, 700);
    });
}

#[test]
fn a_copy_without_access_or_to_memory_unmapped_meanwhile_is_illegal() {
    alone(
        "strictness::a_copy_without_access_or_to_memory_unmapped_meanwhile_is_illegal",
        |control| {
            control.set(Word::Devices, 3);
            let card = Card::new(0);
            ok(card.access(0));
            ok(card.put(0, 0));
            assert_eq!(card.finish(), 700);
            // The other devices are as they were.
            let card = Card::new(1);
            ok(card.put(0, 0));
            ok(fake_cuda::cuMemUnmap(card.address, SLAB));
            assert_eq!(card.finish(), 700);
            let card = Card::new(2);
            ok(card.put(0, 0));
            ok(fake_cuda::cuMemHostUnregister(card.page(0)));
            assert_eq!(card.finish(), 700);
        },
    );
}

#[test]
fn one_devices_memory_is_not_the_others() {
    alone("strictness::one_devices_memory_is_not_the_others", |control| {
        control.set(Word::Devices, 2);
        let first = Card::new(0);
        let second = Card::new(1);
        // The second's context is current; the first's stream and slab are not its.
        assert_eq!(first.put(0, 0), 400);
        assert_eq!(fake_cuda::cuEventRecord(second.event, first.stream), 400);
        ok(fake_cuda::cuCtxSetCurrent(first.context));
        ok(first.put(0, 0));
        ok(first.finish());
        // SAFETY: registered memory of ours.
        let crossed = unsafe {
            fake_cuda::cuMemcpyHtoDAsync_v2(second.address, first.page(0), PAGE, first.stream)
        };
        ok(crossed);
        assert_eq!(first.finish(), 700);
    });
}

#[test]
fn host_memory_must_be_registered_and_the_context_current() {
    alone("strictness::host_memory_must_be_registered_and_the_context_current", |control| {
        let card = Card::new(0);
        let stranger = Box::new([0_u8; PAGE]);
        let from = stranger.as_ptr().cast::<c_void>();
        // SAFETY: memory of ours.
        let copied =
            unsafe { fake_cuda::cuMemcpyHtoDAsync_v2(card.address, from, PAGE, card.stream) };
        assert_eq!(copied, 1);
        // SAFETY: the last page and one more.
        let beyond = unsafe {
            fake_cuda::cuMemcpyHtoDAsync_v2(card.address, card.page(7), 2 * PAGE, card.stream)
        };
        assert_eq!(beyond, 1);
        assert_eq!(fake_cuda::cuMemHostRegister_v2(card.page(3), PAGE, 0), 712);
        assert_eq!(fake_cuda::cuMemHostUnregister(card.page(3)), 713);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(fake_cuda::cuEventQuery(card.event), 201);
                assert_eq!(fake_cuda::cuEventRecord(card.event, card.stream), 201);
                ok(fake_cuda::cuCtxSetCurrent(card.context));
                ok(fake_cuda::cuEventRecord(card.event, card.stream));
            });
        });
        assert_eq!(control.get(Word::Misuses), 6);
        // What a context made ends with it.
        ok(fake_cuda::cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(card.put(0, 0), 201);
        let mut context = 0;
        // SAFETY: a place of ours.
        ok(unsafe { fake_cuda::cuDevicePrimaryCtxRetain(&raw mut context, 0) });
        assert_ne!(context, card.context);
        ok(fake_cuda::cuCtxSetCurrent(context));
        assert_eq!(fake_cuda::cuStreamQuery(card.stream), 400);
        assert_eq!(fake_cuda::cuEventQuery(card.event), 400);
        assert_eq!(fake_cuda::cuMemHostUnregister(card.page(0)), 713);
    });
}

#[test]
fn a_registration_is_for_one_context_unless_it_is_portable() {
    alone("strictness::a_registration_is_for_one_context_unless_it_is_portable", |control| {
        control.set(Word::Devices, 2);
        let first = Card::new(0);
        let second = Card::new(1);
        let copy = || {
            // SAFETY: memory of ours; whether the device may reach it is the question.
            unsafe {
                fake_cuda::cuMemcpyHtoDAsync_v2(second.address, first.page(0), PAGE, second.stream)
            }
        };
        // The first was registered as portable; made anew, it is not.
        ok(copy());
        ok(second.finish());
        ok(fake_cuda::cuCtxSetCurrent(first.context));
        ok(fake_cuda::cuMemHostUnregister(first.page(0)));
        ok(fake_cuda::cuMemHostRegister_v2(first.page(0), PAGE, 2));
        ok(first.put(0, 0));
        ok(first.finish());
        ok(fake_cuda::cuCtxSetCurrent(second.context));
        assert_eq!(copy(), 1);
    });
}

#[test]
fn memory_is_given_back_in_order_or_not_at_all() {
    alone("strictness::memory_is_given_back_in_order_or_not_at_all", |_| {
        let card = Card::new(0);
        assert_eq!(fake_cuda::cuMemAddressFree(card.address, SLAB), 1, "something is mapped");
        assert_eq!(fake_cuda::cuMemUnmap(card.address, SLAB / 2), 1, "half a mapping");
        assert_eq!(fake_cuda::cuMemMap(card.address, SLAB, 0, card.handle, 0), 1, "occupied");
        // Released and still mapped: it lives as long.
        ok(fake_cuda::cuMemRelease(card.handle));
        assert_eq!(fake_cuda::cuMemRelease(card.handle), 1);
        ok(card.put(0, 0));
        ok(card.finish());
        let (mut before, mut after, mut total) = (0, 0, 0);
        // SAFETY: places of ours.
        ok(unsafe { fake_cuda::cuMemGetInfo_v2(&raw mut before, &raw mut total) });
        ok(fake_cuda::cuMemUnmap(card.address, SLAB));
        // SAFETY: the same.
        ok(unsafe { fake_cuda::cuMemGetInfo_v2(&raw mut after, &raw mut total) });
        assert_eq!(after, before + SLAB);
        assert_eq!(fake_cuda::cuMemUnmap(card.address, SLAB), 1);
        ok(fake_cuda::cuMemAddressFree(card.address, SLAB));
        assert_eq!(fake_cuda::cuMemMap(card.address, SLAB, 0, card.handle, 0), 1);
        let (mut handle, properties) = (0, on(0));
        // SAFETY: places of ours.
        let odd =
            unsafe { fake_cuda::cuMemCreate(&raw mut handle, 4096, &raw const properties, 0) };
        assert_eq!(odd, 1, "no whole granules");
    });
}

#[test]
fn a_descriptor_keeps_the_contents_when_its_exporter_is_killed() {
    const EXPORTER: &str = "FAKE_CUDA_EXPORTER";
    const NAME: &str = "strictness::a_descriptor_keeps_the_contents_when_its_exporter_is_killed";
    alone(NAME, |_| {
        if std::env::var_os(EXPORTER).is_some() {
            let mut card = Card::new(0);
            card.fill(0, 42);
            ok(card.put(0, 77));
            ok(card.finish());
            let mut descriptor = -1;
            // SAFETY: a place of ours.
            ok(unsafe {
                fake_cuda::cuMemExportToShareableHandle(&raw mut descriptor, card.handle, 1, 0)
            });
            println!("\nexported {descriptor}");
            std::io::stdout().flush().unwrap();
            loop {
                std::thread::park();
            }
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(EXPORTER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let descriptor: i32 = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("exported ").map(|n| n.parse().unwrap()))
            .unwrap();
        let taken = std::fs::File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/fd/{descriptor}", child.id()))
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        let mut card = Card::new(0);
        let import = |descriptor: i32| {
            let (mut handle, shape) = (0, descriptor as isize as *mut c_void);
            // SAFETY: a place of ours; the descriptor is looked at, not taken.
            let code =
                unsafe { fake_cuda::cuMemImportFromShareableHandle(&raw mut handle, shape, 1) };
            (code, handle)
        };
        let (code, handle) = import(taken.as_raw_fd());
        ok(code);
        drop(taken);
        ok(fake_cuda::cuMemUnmap(card.address, SLAB));
        ok(fake_cuda::cuMemMap(card.address, SLAB, 0, handle, 0));
        ok(card.access(3));
        card.fill(0, 1);
        ok(card.get(77, 0));
        ok(card.finish());
        assert_eq!(card.wrong(0, 42), 0);
        assert_eq!(import(std::fs::File::open("/dev/null").unwrap().as_raw_fd()).0, 1);
    });
}
