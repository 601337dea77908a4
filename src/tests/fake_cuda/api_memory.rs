// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: device memory, addresses, host memory.
//!
//! # Safety
//! As in C: each pointer is null (where the interface lets it) or points to
//! what its type says.

use std::ffi::{c_int, c_uint, c_void};

use crate::api::{device, put};
use crate::calls::{Call, alive, answer, enter, misused};
use crate::control::Word;
use crate::errors::{Code, INVALID_VALUE, Outcome};
use crate::{context, memory};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_DESCRIPTOR: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED`.
const ON_DEVICE: u32 = 1;
const PINNED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: u32 = 1;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: Code = 801;

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Location {
    /// Its kind: 1 is a device.
    pub kind: u32,
    /// Which one.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Properties {
    /// 1: pinned.
    pub kind: u32,
    /// What it may be exported as: 1 is a descriptor.
    pub handle_types: u32,
    /// Where.
    pub location: Location,
    /// Not used here.
    pub win32: *mut c_void,
    /// Not used here.
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Access {
    /// Who.
    pub location: Location,
    /// 0 nothing, 1 read, 3 read and write.
    pub flags: u32,
}

fn wrong<T>() -> Outcome<T> {
    Err(misused(INVALID_VALUE))
}

/// Checks what kind of memory is asked for; gives its device.
///
/// # Safety
/// `properties` is null or readable.
unsafe fn asked(properties: *const Properties) -> Outcome<usize> {
    if properties.is_null() {
        return wrong();
    }
    // SAFETY: readable by the caller's contract.
    let asked = unsafe { *properties };
    if asked.kind != PINNED || asked.location.kind != ON_DEVICE || asked.handle_types > 1 {
        return wrong();
    }
    let device = device(asked.location.id)?;
    if crate::calls::known().get(Word::NoVirtualMemory) != 0 {
        return Err(NOT_SUPPORTED);
    }
    alive(device)?;
    Ok(device)
}

/// `cuMemGetInfo_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    answer(enter(Call::MemGetInfo).and_then(|_| context::current()).and_then(|current| {
        let (left, all) = memory::free_and_total(current.device);
        // SAFETY: the caller's contract.
        unsafe { put(free, left as usize).and(put(total, all as usize)) }
    }))
}

/// `cuMemGetAllocationGranularity`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    properties: *const Properties,
    option: u32,
) -> Code {
    // SAFETY: the caller's contract, here and below.
    let asked = enter(Call::MemGetAllocationGranularity)
        .and_then(|_| unsafe { asked(properties) })
        .and_then(|_| if option > 1 { wrong() } else { Ok(()) });
    // SAFETY: the same.
    answer(asked.and_then(|()| unsafe { put(place, memory::GRANULARITY as usize) }))
}

/// `cuMemCreate`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    place: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> Code {
    // SAFETY: the caller's contract.
    let made = enter(Call::MemCreate).and_then(|_| unsafe { asked(properties) });
    let made = made
        .and_then(|device| if flags == 0 { memory::create(device, bytes as u64) } else { wrong() });
    // SAFETY: the caller's contract.
    answer(made.and_then(|handle| unsafe { put(place, handle) }))
}

/// Whether the device that a handle is memory of answers.
fn handle_answers(handle: u64) -> Outcome {
    memory::device_of(handle).and_then(alive)
}

/// Whether the device with memory at an address answers.
fn address_answers(address: u64) -> Outcome {
    memory::device_at(address).map_or(Ok(()), alive)
}

/// `cuMemRelease`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Code {
    let entered = enter(Call::MemRelease).and_then(|_| handle_answers(handle));
    answer(entered.and_then(|()| memory::release(handle)))
}

/// `cuMemAddressReserve`. The wish for an address is not heard.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    place: *mut u64,
    bytes: usize,
    alignment: usize,
    _wish: u64,
    flags: u64,
) -> Code {
    let reserved = enter(Call::MemAddressReserve).and_then(|_| {
        if flags == 0 { memory::reserve(bytes as u64, alignment as u64) } else { wrong() }
    });
    // SAFETY: the caller's contract.
    answer(reserved.and_then(|address| unsafe { put(place, address) }))
}

/// `cuMemAddressFree`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> Code {
    let entered = enter(Call::MemAddressFree).and_then(|_| address_answers(address));
    answer(entered.and_then(|()| memory::unreserve(address, bytes as u64)))
}

/// `cuMemMap`. Parts of a handle cannot be mapped, as on a real card.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    let entered = enter(Call::MemMap).and_then(|_| handle_answers(handle));
    answer(entered.and_then(|()| {
        if offset == 0 && flags == 0 { memory::map(address, bytes as u64, handle) } else { wrong() }
    }))
}

/// `cuMemUnmap`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> Code {
    let entered = enter(Call::MemUnmap).and_then(|_| address_answers(address));
    answer(entered.and_then(|()| memory::unmap(address, bytes as u64)))
}

/// `cuMemSetAccess`.
///
/// # Safety
/// See the module; `access` has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    bytes: usize,
    access: *const Access,
    count: usize,
) -> Code {
    let entered = enter(Call::MemSetAccess).and_then(|_| address_answers(address));
    answer(entered.and_then(|()| {
        if access.is_null() || count == 0 {
            return wrong();
        }
        // SAFETY: the caller's contract.
        for one in unsafe { std::slice::from_raw_parts(access, count) } {
            if one.location.kind != ON_DEVICE || one.flags & !READ_WRITE != 0 {
                return wrong();
            }
            let device = device(one.location.id)?;
            memory::set_access(address, bytes as u64, device, one.flags == READ_WRITE)?;
        }
        Ok(())
    }))
}

/// `cuMemExportToShareableHandle`.
///
/// # Safety
/// See the module; `place` takes an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    place: *mut c_int,
    handle: u64,
    kind: u32,
    flags: u64,
) -> Code {
    let entered = enter(Call::MemExportToShareableHandle).and_then(|_| handle_answers(handle));
    let exported = entered.and_then(|()| {
        if kind == POSIX_DESCRIPTOR && flags == 0 { memory::export(handle) } else { wrong() }
    });
    // SAFETY: the caller's contract.
    answer(exported.and_then(|descriptor| unsafe { put(place, descriptor) }))
}

/// `cuMemImportFromShareableHandle`.
///
/// # Safety
/// See the module; `descriptor` is a number in the shape of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    place: *mut u64,
    descriptor: *mut c_void,
    kind: u32,
) -> Code {
    let imported = enter(Call::MemImportFromShareableHandle).and_then(|_| {
        let handle = if kind == POSIX_DESCRIPTOR {
            memory::import(descriptor as usize as c_int)?
        } else {
            return wrong();
        };
        handle_answers(handle)?;
        Ok(handle)
    });
    // SAFETY: the caller's contract.
    answer(imported.and_then(|handle| unsafe { put(place, handle) }))
}

/// `cuMemHostRegister_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(base: *mut c_void, bytes: usize, flags: c_uint) -> Code {
    answer(enter(Call::MemHostRegister).and_then(|_| context::current()).and_then(|current| {
        // Portable, mapped, I/O memory, read-only.
        if flags > 15 {
            return wrong();
        }
        memory::register(base as usize, bytes, current.context, flags & PORTABLE != 0)
    }))
}

/// `cuMemHostUnregister`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(base: *mut c_void) -> Code {
    let entered = enter(Call::MemHostUnregister).and_then(|_| context::current());
    answer(entered.and_then(|_| memory::unregister(base as usize)))
}

/// `cuMemHostGetDevicePointer_v2`: never the host's own address.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    place: *mut u64,
    base: *mut c_void,
    flags: c_uint,
) -> Code {
    let seen = enter(Call::MemHostGetDevicePointer).and_then(|_| context::current());
    let seen = seen.and_then(|current| {
        if flags == 0 { memory::seen_from_device(base as usize, current.context) } else { wrong() }
    });
    // SAFETY: the caller's contract.
    answer(seen.and_then(|address| unsafe { put(place, address) }))
}

/// `cuMemAlloc_v2`: a handle, addresses, mapping and access in one.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut u64, bytes: usize) -> Code {
    let made = enter(Call::MemAlloc).and_then(|_| context::current()).and_then(|current| {
        if bytes == 0 {
            return wrong();
        }
        let bytes = (bytes as u64).next_multiple_of(memory::GRANULARITY);
        let handle = memory::create(current.device, bytes)?;
        let address = memory::reserve(bytes, 0)?;
        let mapped = memory::map(address, bytes, handle);
        // Once mapped, the mapping alone keeps it.
        memory::release(handle)?;
        mapped?;
        memory::set_access(address, bytes, current.device, true)?;
        Ok(address)
    });
    // SAFETY: the caller's contract.
    answer(made.and_then(|address| unsafe { put(place, address) }))
}

/// `cuMemFree_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Code {
    answer(enter(Call::MemFree).and_then(|_| context::current()).and_then(|_| {
        let bytes = memory::reserved_at(address)?;
        memory::unmap(address, bytes)?;
        memory::unreserve(address, bytes)
    }))
}

/// `cuMemAllocHost_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) -> Code {
    let made = enter(Call::MemAllocHost).and_then(|_| context::current());
    let made = made.and_then(|current| {
        if bytes == 0 { wrong() } else { memory::alloc_host(bytes, current.context) }
    });
    // SAFETY: the caller's contract.
    answer(made.and_then(|address| unsafe { put(place, address as *mut c_void) }))
}

/// `cuMemHostAlloc`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    place: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> Code {
    // SAFETY: the caller's contract.
    unsafe { cuMemAllocHost_v2(place, bytes) }
}

/// `cuMemFreeHost`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(base: *mut c_void) -> Code {
    answer(enter(Call::MemFreeHost).and_then(|_| memory::free_host(base as usize)))
}
