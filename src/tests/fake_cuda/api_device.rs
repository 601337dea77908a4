// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: what devices there are and what they can do.
//!
//! # Safety
//! As in C: each pointer is null (where the interface lets it) or points to
//! what its type says.

use std::ffi::{c_char, c_int};

use crate::api::{device, put};
use crate::calls::{Call, alive, answer, enter, misused};
use crate::control::{Control, Word};
use crate::errors::{Code, INVALID_VALUE, Outcome};

/// A device that exists and answers.
fn healthy(call: Call, number: c_int) -> Outcome<(Control, usize)> {
    let control = enter(call)?;
    let device = device(number)?;
    alive(device)?;
    Ok((control, device))
}

/// `cuDeviceGetCount`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(place: *mut c_int) -> Code {
    // SAFETY: the caller's contract.
    let put = |control: Control| unsafe { put(place, control.devices() as c_int) };
    answer(enter(Call::DeviceGetCount).and_then(put))
}

/// `cuDeviceGet`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(place: *mut c_int, number: c_int) -> Code {
    // SAFETY: the caller's contract.
    let put = |device: usize| unsafe { put(place, device as c_int) };
    answer(enter(Call::DeviceGet).and_then(|_| device(number)).and_then(put))
}

/// Writes a text and its end; what does not fit is cut off, as in the real one.
///
/// # Safety
/// `place` is null or has room for `room` bytes.
unsafe fn put_text(text: &str, place: *mut c_char, room: c_int) -> Outcome {
    let Ok(room @ 1..) = usize::try_from(room) else {
        return Err(misused(INVALID_VALUE));
    };
    if place.is_null() {
        return Err(misused(INVALID_VALUE));
    }
    let bytes = text.len().min(room - 1);
    // SAFETY: within the room that the caller states.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, bytes);
        place.add(bytes).write(0);
    }
    Ok(())
}

/// `cuDeviceGetName`: `Fake GPU N`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(place: *mut c_char, room: c_int, number: c_int) -> Code {
    answer(healthy(Call::DeviceGetName, number).and_then(|(_, device)| {
        // SAFETY: the caller's contract.
        unsafe { put_text(&format!("Fake GPU {device}"), place, room) }
    }))
}

/// `cuDeviceGetPCIBusId`: `0000:0A:00.0` for device 0, then `0000:0B:00.0`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(
    place: *mut c_char,
    room: c_int,
    number: c_int,
) -> Code {
    answer(healthy(Call::DeviceGetPCIBusId, number).and_then(|(_, device)| {
        // SAFETY: the caller's contract.
        unsafe { put_text(&format!("0000:{:02X}:00.0", 10 + device), place, room) }
    }))
}

/// A device's UUID.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    [0xfa, 0x4e, 0xca, 0xda, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, device as u8]
}

/// `cuDeviceGetUuid_v2`: `GPU-fa4ecada-0000-4000-8000-00000000000N`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(place: *mut [u8; 16], number: c_int) -> Code {
    answer(healthy(Call::DeviceGetUuid, number).and_then(|(_, device)| {
        // SAFETY: the caller's contract.
        unsafe { put(place, uuid(device)) }
    }))
}

/// `cuDeviceGetUuid`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(place: *mut [u8; 16], number: c_int) -> Code {
    // SAFETY: the caller's contract.
    unsafe { cuDeviceGetUuid_v2(place, number) }
}

/// `cuDeviceTotalMem_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(place: *mut usize, number: c_int) -> Code {
    answer(healthy(Call::DeviceTotalMem, number).and_then(|(control, _)| {
        // SAFETY: the caller's contract.
        unsafe { put(place, control.get(Word::DeviceBytes) as usize) }
    }))
}

/// `cuDeviceGetAttribute`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    place: *mut c_int,
    attribute: u32,
    number: c_int,
) -> Code {
    answer(healthy(Call::DeviceGetAttribute, number).and_then(|(control, device)| {
        let vmm = c_int::from(control.get(Word::NoVirtualMemory) == 0);
        // CUdevice_attribute of cuda.h.
        let value = match attribute {
            // Can map host memory, unified addressing, can register host memory.
            19 | 41 | 99 => 1,
            // PCI bus.
            33 => 10 + device as c_int,
            // Copy engines.
            40 => 3,
            // Compute capability.
            75 => 9,
            // Virtual memory management, descriptors as handles.
            102 | 103 => vmm,
            // Among them: integrated, PCI device and domain, minor capability.
            1..=150 => 0,
            _ => return Err(misused(INVALID_VALUE)),
        };
        // SAFETY: the caller's contract.
        unsafe { put(place, value) }
    }))
}
