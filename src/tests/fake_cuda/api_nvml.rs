// SPDX-License-Identifier: MIT OR Apache-2.0
//! The management library of the same driver, as far as a GPU's free memory goes:
//! the library under the name `libnvidia-ml.so.1`. Signatures are those of nvml.h,
//! with `nvmlReturn_t` as a number. A GPU is its number plus one.
//!
//! # Safety
//! As in C: each pointer is null (where the interface lets it) or points to what its
//! type says.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint};
use std::os::unix::fs::MetadataExt;

use crate::control::{Control, Word};
use crate::memory::NAME;

const SUCCESS: c_uint = 0;
const UNINITIALIZED: c_uint = 1;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_FOUND: c_uint = 6;

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

fn control() -> Option<Control> {
    crate::calls::control().ok()
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    if control().is_some() { SUCCESS } else { UNINITIALIZED }
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

/// `nvmlDeviceGetHandleByUUID`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    place: *mut usize,
) -> c_uint {
    let Some(control) = control() else { return UNINITIALIZED };
    if uuid.is_null() || place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: a terminated text by the caller's contract, and not null.
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_bytes();
    let known = (0..control.devices()).find(|device| uuid_text(*device).as_bytes() == uuid);
    let Some(device) = known else { return NOT_FOUND };
    // SAFETY: writable by the caller's contract, and not null.
    unsafe { place.write(device + 1) };
    SUCCESS
}

/// `GPU-fa4ecada-0000-4000-8000-00000000000N`.
fn uuid_text(device: usize) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(crate::api_device::uuid(device)));
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// `nvmlDeviceGetMemoryInfo_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: usize, place: *mut Memory) -> c_uint {
    let Some(control) = control() else { return UNINITIALIZED };
    if place.is_null() || device == 0 || device > control.devices() {
        return INVALID_ARGUMENT;
    }
    let device = device - 1;
    let total = control.get(Word::DeviceBytes);
    let used = all_processes(device).saturating_add(control.others(device)).min(total);
    // SAFETY: readable and writable by the caller's contract, and not null.
    unsafe {
        let version = (*place).version;
        place.write(Memory { version, total, reserved: 0, free: total - used, used });
    }
    SUCCESS
}

/// Bytes of this device that some process holds: each of its memories is a memfd, by
/// name, and counts once, however many descriptors lead to it.
fn all_processes(device: usize) -> u64 {
    let wanted = format!("/memfd:{NAME}{device} (deleted)");
    let mut memories = HashMap::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let held = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for held in held {
            let is_one = std::fs::read_link(held.path())
                .is_ok_and(|name| name.as_os_str() == wanted.as_str());
            if let (true, Ok(memory)) = (is_one, std::fs::metadata(held.path())) {
                memories.insert(memory.ino(), memory.size());
            }
        }
    }
    memories.values().sum()
}
