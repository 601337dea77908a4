// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that uses the driver rightly, for tests to go wrong with.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;

use fake_cuda::control::{Control, VARIABLE, Word};
use fake_cuda::{Access, Location, Properties};

pub const SLAB: usize = 64 << 20;
pub const PAGE: usize = 4096;

/// Ends the process when a thread allocates that said it would not.
struct Guard;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system's allocator, or the end.
unsafe impl GlobalAlloc for Guard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.get() {
            std::process::abort();
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static GUARD: Guard = Guard;

/// Runs `act`; an allocation in it ends the process.
pub fn without_allocating<T>(act: impl FnOnce() -> T) -> T {
    ARMED.set(true);
    let result = act();
    ARMED.set(false);
    result
}

/// Runs `body` in a process of its own with a control file of its own.
pub fn alone(test: &str, body: impl FnOnce(Control)) {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return body(Control::open(Path::new(&path)).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    Control::create(&path).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The library as a program finds it: beside the tests.
pub fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap();
    folder.parent().unwrap().join("libfake_cuda.so")
}

/// Where `cuMemCreate` should make memory.
pub fn on(device: i32) -> Properties {
    Properties {
        kind: 1,
        handle_types: 1,
        location: Location { kind: 1, id: device },
        win32: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// A device in use: context, one mapped slab, registered pages, a stream.
pub struct Card {
    pub device: i32,
    pub context: u64,
    pub handle: u64,
    pub address: u64,
    pub stream: u64,
    pub event: u64,
    /// Eight pages, registered.
    pub host: Box<[[u8; PAGE]]>,
}

/// Panics unless the call succeeded.
#[track_caller]
pub fn ok(code: u32) {
    assert_eq!(code, 0);
}

impl Card {
    pub fn new(device: i32) -> Self {
        let mut card = Self {
            device,
            context: 0,
            handle: 0,
            address: 0,
            stream: 0,
            event: 0,
            host: vec![[0; PAGE]; 8].into_boxed_slice(),
        };
        let properties = on(device);
        // SAFETY: all places are ours and writable; the host memory outlives its registration.
        unsafe {
            ok(fake_cuda::cuInit(0));
            ok(fake_cuda::cuDevicePrimaryCtxRetain(&raw mut card.context, device));
            ok(fake_cuda::cuCtxSetCurrent(card.context));
            ok(fake_cuda::cuMemCreate(&raw mut card.handle, SLAB, &raw const properties, 0));
            ok(fake_cuda::cuMemAddressReserve(&raw mut card.address, SLAB, 0, 0, 0));
            ok(fake_cuda::cuMemMap(card.address, SLAB, 0, card.handle, 0));
            ok(card.access(3));
            ok(fake_cuda::cuMemHostRegister_v2(card.page(0), PAGE * 8, 3));
            ok(fake_cuda::cuStreamCreate(&raw mut card.stream, 1));
            ok(fake_cuda::cuEventCreate(&raw mut card.event, 2));
        }
        card
    }

    pub fn access(&self, flags: u32) -> u32 {
        let access = Access { location: Location { kind: 1, id: self.device }, flags };
        // SAFETY: one entry, readable.
        unsafe { fake_cuda::cuMemSetAccess(self.address, SLAB, &raw const access, 1) }
    }

    /// The address of a page of host memory.
    pub fn page(&self, page: usize) -> *mut c_void {
        // SAFETY: eight pages.
        unsafe { self.host.as_ptr().cast::<u8>().add(page * PAGE) as *mut c_void }
    }

    /// Queues host page `from` to page `to` of the slab.
    pub fn put(&self, from: usize, to: usize) -> u32 {
        let address = self.address + (to * PAGE) as u64;
        // SAFETY: registered host memory that lives as long as the card.
        unsafe { fake_cuda::cuMemcpyHtoDAsync_v2(address, self.page(from), PAGE, self.stream) }
    }

    /// Queues page `from` of the slab to host page `to`.
    pub fn get(&self, from: usize, to: usize) -> u32 {
        let address = self.address + (from * PAGE) as u64;
        // SAFETY: the same.
        unsafe { fake_cuda::cuMemcpyDtoHAsync_v2(self.page(to), address, PAGE, self.stream) }
    }

    pub fn record(&self) -> u32 {
        fake_cuda::cuEventRecord(self.event, self.stream)
    }

    pub fn query(&self) -> u32 {
        fake_cuda::cuEventQuery(self.event)
    }

    pub fn finish(&self) -> u32 {
        fake_cuda::cuStreamSynchronize(self.stream)
    }

    pub fn fill(&mut self, page: usize, byte: u8) {
        // Volatile: the driver looks at it behind the compiler's back.
        for at in &mut self.host[page] {
            // SAFETY: a byte of ours.
            unsafe { std::ptr::write_volatile(at, byte) };
        }
    }

    /// How many bytes of a page are not `byte`.
    pub fn wrong(&self, page: usize, byte: u8) -> usize {
        // SAFETY: bytes of ours.
        let read = |at: &u8| unsafe { std::ptr::read_volatile(at) };
        self.host[page].iter().filter(|at| read(at) != byte).count()
    }

    /// Gives back everything, in the right order.
    pub fn close(self) {
        ok(fake_cuda::cuEventDestroy_v2(self.event));
        ok(fake_cuda::cuStreamDestroy_v2(self.stream));
        ok(fake_cuda::cuMemHostUnregister(self.page(0)));
        ok(fake_cuda::cuMemUnmap(self.address, SLAB));
        ok(fake_cuda::cuMemAddressFree(self.address, SLAB));
        ok(fake_cuda::cuMemRelease(self.handle));
        ok(fake_cuda::cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// What the program holds of the driver, by its own counters.
pub fn held(control: Control) -> [u64; 7] {
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
