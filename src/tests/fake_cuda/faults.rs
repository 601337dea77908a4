// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each fault on demand, while a program runs.

use std::ffi::CString;

use fake_cuda::Call;
use fake_cuda::control::{MAX_DEVICES, Word, omit_symbol};

use crate::card::{Card, SLAB, alone, library, ok, on};

fn create(device: i32, bytes: usize) -> u32 {
    let (mut handle, properties) = (0, on(device));
    // SAFETY: places of ours.
    unsafe { fake_cuda::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) }
}

fn number(ask: impl Fn(*mut i32) -> u32) -> (u32, i32) {
    let mut found = -1;
    let code = ask(&raw mut found);
    (code, found)
}

#[test]
fn start_up_fails_as_told() {
    alone("faults::start_up_fails_as_told", |control| {
        // SAFETY: places of ours, here and below.
        let count = || number(|place| unsafe { fake_cuda::cuDeviceGetCount(place) });
        assert_eq!(count().0, 3, "not initialised");
        control.set(Word::InitFailures, 2);
        control.set(Word::InitCode, 802);
        assert_eq!([fake_cuda::cuInit(0), fake_cuda::cuInit(0)], [802; 2]);
        control.set(Word::Devices, 0);
        assert_eq!(fake_cuda::cuInit(0), 100);
        control.set(Word::Devices, 5);
        control.set(Word::Stub, 1);
        assert_eq!([fake_cuda::cuInit(0), count().0], [34; 2]);
        control.set(Word::Stub, 0);
        ok(fake_cuda::cuInit(0));
        assert_eq!(count(), (0, 5));
        control.set(Word::DriverVersion, 11_040);
        // SAFETY: as above.
        let version = number(|place| unsafe { fake_cuda::cuDriverGetVersion(place) });
        assert_eq!(version, (0, 11_040));
        // SAFETY: as above.
        let get = |device| number(|place| unsafe { fake_cuda::cuDeviceGet(place, device) });
        assert_eq!([get(4), get(5), get(-1)], [(0, 4), (101, -1), (101, -1)]);
        control.set(Word::NoVirtualMemory, 1);
        // SAFETY: as above.
        let vmm = number(|place| unsafe { fake_cuda::cuDeviceGetAttribute(place, 102, 0) });
        assert_eq!((vmm, create(0, SLAB)), ((0, 0), 801));
    });
}

#[test]
fn devices_are_known_by_uuid_address_and_name() {
    alone("faults::devices_are_known_by_uuid_address_and_name", |control| {
        control.set(Word::Devices, MAX_DEVICES as u64);
        ok(fake_cuda::cuInit(0));
        let mut uuid = [0; 16];
        let mut text = [0_i8; 16];
        // SAFETY: places of ours with the room stated.
        unsafe {
            ok(fake_cuda::cuDeviceGetUuid_v2(&raw mut uuid, 7));
            assert_eq!((uuid[0], uuid[15]), (0xfa, 7));
            ok(fake_cuda::cuDeviceGetPCIBusId(text.as_mut_ptr(), 16, 1));
            let id = std::ffi::CStr::from_ptr(text.as_ptr());
            assert_eq!(id.to_str(), Ok("0000:0B:00.0"));
            ok(fake_cuda::cuDeviceGetName(text.as_mut_ptr(), 5, 1));
            assert_eq!(std::ffi::CStr::from_ptr(text.as_ptr()).to_str(), Ok("Fake"));
            let mut name = std::ptr::null();
            ok(fake_cuda::cuGetErrorName(719, &raw mut name));
            let name = std::ffi::CStr::from_ptr(name);
            assert_eq!(name.to_str(), Ok("CUDA_ERROR_LAUNCH_FAILED"));
            assert_eq!(fake_cuda::cuGetErrorString(12345, &raw mut *Box::new(std::ptr::null())), 1);
        }
    });
}

#[test]
fn others_take_memory_while_the_program_runs() {
    alone("faults::others_take_memory_while_the_program_runs", |control| {
        control.set(Word::Devices, 2);
        control.set(Word::DeviceBytes, 256 << 20);
        let card = Card::new(1);
        let free = || {
            let (mut free, mut total) = (0, 0);
            // SAFETY: places of ours.
            ok(unsafe { fake_cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
            assert_eq!(total, 256 << 20);
            free >> 20
        };
        assert_eq!(free(), 192);
        control.set_others(1, 150 << 20);
        assert_eq!(free(), 42);
        assert_eq!((create(1, SLAB), create(0, SLAB)), (2, 0));
        control.set_others(1, 1 << 40);
        assert_eq!(free(), 0);
        control.set_others(1, 0);
        ok(create(1, SLAB));
        card.close();
    });
}

#[test]
fn a_copy_call_fails_and_the_device_goes_on() {
    alone("faults::a_copy_call_fails_and_the_device_goes_on", |control| {
        let mut card = Card::new(0);
        control.set(Word::CopyFailAt, 2);
        control.set(Word::CopyFailCode, 46);
        control.set(Word::FaultDirection, 2);
        card.fill(0, 5);
        assert_eq!([card.put(0, 0), card.put(0, 1), card.get(0, 1), card.get(1, 2)], [0, 0, 0, 46]);
        assert_eq!([card.get(1, 3), card.finish()], [0; 2]);
        assert_eq!((card.wrong(1, 5), card.wrong(2, 0), card.wrong(3, 5)), (0, 0, 0));
        card.close();
    });
}

#[test]
fn a_failure_at_completion_loses_the_device_and_no_other() {
    alone("faults::a_failure_at_completion_loses_the_device_and_no_other", |control| {
        control.set(Word::Devices, 2);
        let first = Card::new(0);
        let second = Card::new(1);
        control.set(Word::FaultDevices, 0b10);
        control.set(Word::AsyncFailAt, 2);
        ok(second.put(0, 0));
        ok(second.put(0, 1));
        ok(second.record());
        assert_eq!([second.query(), second.query(), second.put(0, 0), second.finish()], [719; 4]);
        assert_eq!(fake_cuda::cuCtxSetCurrent(second.context), 719);
        ok(fake_cuda::cuCtxSetCurrent(first.context));
        ok(first.put(0, 0));
        ok(first.record());
        ok(first.query());
        first.close();
    });
}

#[test]
fn every_so_manieth_copy_arrives_spoiled() {
    alone("faults::every_so_manieth_copy_arrives_spoiled", |control| {
        let mut card = Card::new(0);
        card.fill(0, 3);
        ok(card.put(0, 0));
        ok(card.finish());
        control.set(Word::CorruptEvery, 3);
        control.set(Word::FaultDirection, 2);
        let wrong: Vec<_> = (0..6)
            .map(|_| {
                ok(card.get(0, 1));
                ok(card.finish());
                card.wrong(1, 3)
            })
            .collect();
        assert_eq!(wrong, [0, 1, 0, 0, 1, 0]);
        assert_eq!(control.get(Word::CopiesCorrupted), 2);
        card.close();
    });
}

#[test]
fn an_event_or_a_whole_device_hangs_and_a_stall_ends() {
    alone("faults::an_event_or_a_whole_device_hangs_and_a_stall_ends", |control| {
        let mut card = Card::new(0);
        card.fill(0, 1);
        control.set(Word::StalledDevices, 1);
        ok(card.put(0, 0));
        ok(card.record());
        assert_eq!([(); 9].map(|()| card.query()), [600; 9]);
        // Late, the copy still reads the buffer.
        card.fill(0, 8);
        control.set(Word::StalledDevices, 0);
        ok(card.query());
        ok(card.get(0, 1));
        ok(card.finish());
        assert_eq!(card.wrong(1, 8), 0);
        control.set(Word::HangEventAt, 2);
        ok(card.record());
        ok(card.query());
        ok(card.record());
        assert_eq!([(); 9].map(|()| card.query()), [600; 9]);
        ok(card.put(0, 0));
        assert_eq!(fake_cuda::cuStreamQuery(card.stream), 600);
        let mut other = 0;
        // SAFETY: a place of ours.
        ok(unsafe { fake_cuda::cuStreamCreate(&raw mut other, 1) });
        ok(fake_cuda::cuEventRecord(card.event, other));
        ok(card.query());
    });
}

#[test]
fn a_copy_call_never_returns() {
    alone("faults::a_copy_call_never_returns", |control| {
        let card: &Card = Box::leak(Box::new(Card::new(0)));
        control.set(Word::HangCopyAt, 1);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            ok(fake_cuda::cuCtxSetCurrent(card.context));
            card.put(0, 0);
            tell.send(()).unwrap();
        });
        while control.get(Word::HangCopyAt) != 0 {
            std::thread::yield_now();
        }
        // Others are served; the one that hangs has queued nothing.
        ok(card.put(0, 1));
        ok(card.finish());
        assert!(told.try_recv().is_err());
        assert_eq!(control.get(Word::CopiesQueued), 1);
    });
}

#[test]
fn a_device_is_lost_and_comes_back_when_told() {
    alone("faults::a_device_is_lost_and_comes_back_when_told", |control| {
        let card = Card::new(0);
        control.set(Word::LostDevices, 1);
        let calls = [card.put(0, 0), card.record(), card.query(), card.finish(), create(0, SLAB)];
        assert_eq!(calls, [999; 5]);
        control.set(Word::LostDevices, 0);
        ok(card.put(0, 0));
        ok(card.finish());
        assert_eq!(control.get(Word::CopiesDone), 1, "what was queued before is gone");
        card.close();
    });
}

#[test]
fn copies_take_the_time_they_are_told() {
    alone("faults::copies_take_the_time_they_are_told", |control| {
        let card = Card::new(0);
        // Far longer than the test: it is not over when asked.
        control.set(Word::CopyNanoseconds, 1 << 50);
        ok(card.put(0, 0));
        ok(card.record());
        assert_eq!([(); 9].map(|()| card.query()), [600; 9]);
        let mut other = 0;
        // SAFETY: a place of ours.
        ok(unsafe { fake_cuda::cuStreamCreate(&raw mut other, 1) });
        control.set(Word::CopyNanoseconds, 1_000_000);
        control.set(Word::CallNanoseconds, 1_000_000);
        let begin = std::time::Instant::now();
        for _ in 0..5 {
            // SAFETY: registered memory of ours.
            ok(unsafe { fake_cuda::cuMemcpyHtoDAsync_v2(card.address, card.page(0), 4096, other) });
        }
        assert!(begin.elapsed().as_millis() >= 5);
        ok(fake_cuda::cuStreamSynchronize(other));
        assert!(begin.elapsed().as_millis() >= 6);
    });
}

#[test]
fn any_call_fails_when_named() {
    alone("faults::any_call_fails_when_named", |control| {
        let card = Card::new(0);
        for (call, act) in [
            (Call::MemCreate, Box::new(|| create(0, SLAB)) as Box<dyn Fn() -> u32>),
            (Call::EventRecord, Box::new(|| card.record())),
            (
                Call::MemGetInfo,
                Box::new(|| {
                    let (mut free, mut total) = (0, 0);
                    // SAFETY: places of ours.
                    unsafe { fake_cuda::cuMemGetInfo_v2(&raw mut free, &raw mut total) }
                }),
            ),
        ] {
            control.set(Word::CallFails, call as u64);
            control.set(Word::CallFailAt, 2);
            control.set(Word::CallFailCode, 801);
            assert_eq!([act(), act(), act()], [0, 801, 0], "{call:?}");
        }
    });
}

#[test]
fn a_library_can_lack_a_symbol() {
    let folder = tempfile::tempdir().unwrap();
    let less = folder.path().join("libcuda.so.1");
    omit_symbol(&library(), "cuMemExportToShareableHandle", &less).unwrap();
    let has = |path: &std::path::Path, name: &str| {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let name = CString::new(name).unwrap();
        // SAFETY: terminated texts; the library runs nothing when it is loaded.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "{path:?} does not load");
            !libc::dlsym(library, name.as_ptr()).is_null()
        }
    };
    assert!(has(&library(), "cuMemExportToShareableHandle"));
    assert!(!has(&less, "cuMemExportToShareableHandle"));
    assert!(has(&less, "cuMemImportFromShareableHandle") && has(&less, "cuInit"));
    assert!(omit_symbol(&library(), "cuNothing", &less).is_err());
}
