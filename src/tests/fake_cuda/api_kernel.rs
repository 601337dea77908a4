// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: modules, launches, and words that a stream writes.
//!
//! # Safety
//! As in C: each pointer is null (where the interface lets it) or points to
//! what its type says; texts are terminated.

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::api::put;
use crate::api_copy::at_the_call;
use crate::calls::{Call, answer, enter, misused};
use crate::context::{self, Current};
use crate::control::Word;
use crate::errors::{Code, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, Outcome};
use crate::memory::{self, Transfer};
use crate::{module, stream};

/// The one kernel.
const KERNEL: &CStr = c"sluice_copy_pages";
const ENTRY: &str = ".visible .entry sluice_copy_pages(.param .align 16 .b8 batch[2064])";
const PAGE: usize = 4096;
/// Sixteen bytes of a page each.
const THREADS: c_uint = 256;
const MOST_PAGES: usize = 128;

/// The kernel's parameter.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct Batch {
    /// The device's address of the first completion word.
    pub words: u64,
    /// What each block writes there at last.
    pub value: u32,
    /// Pages, as many as blocks.
    pub pages: u32,
    /// For each page, where to and where from.
    pub moves: [[u64; 2]; MOST_PAGES],
}

fn wrong<T>() -> Outcome<T> {
    Err(misused(INVALID_VALUE))
}

/// `cuModuleLoadData`: only the kernel's text will do.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(place: *mut u64, image: *const c_void) -> Code {
    let loaded = enter(Call::ModuleLoadData).and_then(|_| context::current()).and_then(|current| {
        if image.is_null() {
            return wrong();
        }
        // SAFETY: terminated by the caller's contract.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        if !text.contains(ENTRY) {
            return Err(misused(INVALID_IMAGE));
        }
        module::load(&current)
    });
    // SAFETY: the caller's contract.
    answer(loaded.and_then(|module| unsafe { put(place, module) }))
}

/// `cuModuleUnload`.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: u64) -> Code {
    let entered = enter(Call::ModuleUnload).and_then(|_| context::current());
    answer(entered.and_then(|current| module::unload(&current, module)))
}

/// `cuModuleGetFunction`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    place: *mut u64,
    module: u64,
    name: *const c_char,
) -> Code {
    let found = enter(Call::ModuleGetFunction).and_then(|_| context::current());
    let found = found.and_then(|current| {
        if name.is_null() {
            return wrong();
        }
        // SAFETY: terminated by the caller's contract.
        if unsafe { CStr::from_ptr(name) } != KERNEL {
            return Err(misused(NOT_FOUND));
        }
        module::function(&current, module)
    });
    // SAFETY: the caller's contract.
    answer(found.and_then(|function| unsafe { put(place, function) }))
}

/// One page of a batch, as a copy between the device and registered host memory.
fn transfer(current: &Current, [to, from]: [u64; 2]) -> Outcome<Transfer> {
    let (to_device, address, host) = match (memory::on_host(to), memory::on_host(from)) {
        (Some(host), None) => (false, from, host),
        (None, Some(host)) => (true, to, host),
        _ => return wrong(),
    };
    // A kernel's vectors must be aligned, or the device is lost.
    if !host.is_multiple_of(16) || !address.is_multiple_of(16) {
        return wrong();
    }
    Ok(Transfer {
        device: current.device,
        context: current.context,
        to_device,
        address,
        host,
        bytes: PAGE,
        pinned: true,
        spoiled: false,
    })
}

/// `cuLaunchKernel`.
///
/// # Safety
/// See the module; `parameters` has one entry, a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: u64,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    answer(enter(Call::LaunchKernel).and_then(|control| {
        let current = context::current()?;
        module::is_function(&current, function)?;
        let shape = [blocks_y, blocks_z, threads, threads_y, threads_z, shared_bytes];
        if shape != [1, 1, THREADS, 1, 1, 0] || parameters.is_null() || !extra.is_null() {
            return wrong();
        }
        // SAFETY: the caller's contract.
        let batch = unsafe { &*(*parameters).cast::<Batch>() };
        let pages = batch.pages as usize;
        if pages == 0 || pages > MOST_PAGES || batch.pages != blocks {
            return wrong();
        }
        let Some(words) = memory::on_host(batch.words).filter(|host| host.is_multiple_of(4)) else {
            return wrong();
        };
        let moves = &batch.moves[..pages];
        for pair in moves {
            let transfer = transfer(&current, *pair)?;
            at_the_call(&control, &current, transfer.to_device)?;
        }
        control.add(Word::Launches, 1);
        let transfers =
            moves.iter().map(|pair| transfer(&current, *pair).expect("it was right a moment ago"));
        stream::words(&current, stream, transfers, (words, pages, batch.value))
    }))
}

/// `cuStreamWriteValue32_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(
    stream: u64,
    address: u64,
    value: u32,
    flags: c_uint,
) -> Code {
    answer(enter(Call::StreamWriteValue32).and_then(|_| context::current()).and_then(|current| {
        let host = memory::on_host(address).filter(|host| {
            host.is_multiple_of(4) && memory::is_registered(*host, 4, current.context)
        });
        match host {
            Some(host) if flags == 0 => {
                stream::words(&current, stream, std::iter::empty(), (host, 1, value))
            }
            _ => wrong(),
        }
    }))
}
