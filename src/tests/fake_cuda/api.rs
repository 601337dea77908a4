// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: start, contexts, streams, events, error texts. Signatures
//! are those of cuda.h, with `CUresult` as a number.
//!
//! # Safety
//! As in C: each pointer is null (where the interface lets it) or points to
//! what its type says. Handles are numbers here and are checked.

use std::ffi::{c_char, c_int, c_uint};

use crate::calls::{Call, alive, answer, enter, enter_early, misused, set_initialized};
use crate::context;
use crate::control::{MAX_DEVICES, ROOT, Word};
use crate::errors::{Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, Outcome, texts};
use crate::stream;

/// Gives a result to the caller.
///
/// # Safety
/// `place` is null or writable.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(misused(INVALID_VALUE));
    }
    // SAFETY: writable by the caller's contract, and not null.
    unsafe { place.write(value) };
    Ok(())
}

/// A device that exists.
pub(crate) fn device(number: c_int) -> Outcome<usize> {
    let known = crate::calls::known().devices().min(MAX_DEVICES);
    match usize::try_from(number) {
        Ok(device) if device < known => Ok(device),
        _ => Err(misused(INVALID_DEVICE)),
    }
}

/// `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    answer(enter_early(Call::Init).and_then(|control| {
        if control.get(Word::InitFailures) > 0 {
            control.strikes(Word::InitFailures);
            return Err(control.get(Word::InitCode) as Code);
        }
        if flags != 0 {
            return Err(misused(INVALID_VALUE));
        }
        if control.devices() == 0 {
            return Err(NO_DEVICE);
        }
        if control.get(Word::KeepsNodes) != 0 {
            keep_nodes();
        }
        set_initialized();
        Ok(())
    }))
}

/// Opens the device nodes, for the rest of the process's life.
fn keep_nodes() {
    static OPENED: std::sync::Once = std::sync::Once::new();
    OPENED.call_once(|| {
        let root = std::env::var_os(ROOT).map_or_else(|| "/".into(), std::path::PathBuf::from);
        let cards = (0..MAX_DEVICES).map(|number| format!("nvidia{number}"));
        for name in ["nvidiactl".to_owned(), "nvidia-uvm".to_owned()].into_iter().chain(cards) {
            if let Ok(node) = std::fs::File::open(root.join("dev").join(name)) {
                std::mem::forget(node);
            }
        }
    });
}

/// `cuDriverGetVersion`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    answer(enter_early(Call::DriverGetVersion).and_then(|control| {
        // SAFETY: the caller's contract.
        unsafe { put(version, control.get(Word::DriverVersion) as c_int) }
    }))
}

/// `cuGetErrorName`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, text: *mut *const c_char) -> Code {
    let name = texts(code).map_or(std::ptr::null(), |(name, _)| name.as_ptr());
    // SAFETY: the caller's contract.
    answer(unsafe { put(text, name) }.and(if name.is_null() { Err(INVALID_VALUE) } else { Ok(()) }))
}

/// `cuGetErrorString`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    let says = texts(code).map_or(std::ptr::null(), |(_, says)| says.as_ptr());
    // SAFETY: the caller's contract.
    answer(unsafe { put(text, says) }.and(if says.is_null() { Err(INVALID_VALUE) } else { Ok(()) }))
}

/// `cuDevicePrimaryCtxRetain`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut u64, number: c_int) -> Code {
    let retained =
        enter(Call::DevicePrimaryCtxRetain).and_then(|_| device(number)).and_then(context::retain);
    // SAFETY: the caller's contract.
    answer(retained.and_then(|context| unsafe { put(place, context) }))
}

/// `cuDevicePrimaryCtxRelease_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(number: c_int) -> Code {
    answer(
        enter(Call::DevicePrimaryCtxRelease)
            .and_then(|_| device(number))
            .and_then(context::release),
    )
}

/// `cuDevicePrimaryCtxSetFlags_v2`. Flags say how a thread waits; here none does.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(number: c_int, flags: c_uint) -> Code {
    answer(enter(Call::DevicePrimaryCtxSetFlags).and_then(|_| device(number)).and_then(|device| {
        // CU_CTX_FLAGS_MASK and at most one of the ways to wait (1, 2, 4).
        if flags & !0xff != 0 || (flags & 7).count_ones() > 1 {
            return Err(misused(INVALID_VALUE));
        }
        alive(device)
    }))
}

/// `cuCtxSetCurrent`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> Code {
    answer(enter(Call::CtxSetCurrent).and_then(|_| context::set_current(context)))
}

/// `cuCtxGetCurrent`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(place: *mut u64) -> Code {
    answer(enter(Call::CtxGetCurrent).and_then(|_| {
        // SAFETY: the caller's contract.
        unsafe { put(place, context::current_handle()) }
    }))
}

/// `cuCtxCreate_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(place: *mut u64, _flags: c_uint, number: c_int) -> Code {
    let made = enter(Call::CtxCreate).and_then(|_| device(number)).and_then(context::create);
    // SAFETY: the caller's contract.
    answer(made.and_then(|context| unsafe { put(place, context) }))
}

/// `cuCtxDestroy_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: u64) -> Code {
    answer(enter(Call::CtxDestroy).and_then(|_| context::destroy(context)))
}

/// `cuCtxSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    answer(
        enter(Call::CtxSynchronize)
            .and_then(|_| context::current())
            .and_then(|current| stream::synchronize_all(&current)),
    )
}

/// `cuStreamCreate`. All streams are independent of the default one.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut u64, flags: c_uint) -> Code {
    let made = enter(Call::StreamCreate).and_then(|_| context::current()).and_then(|current| {
        if flags > 1 { Err(misused(INVALID_VALUE)) } else { stream::create(&current) }
    });
    // SAFETY: the caller's contract.
    answer(made.and_then(|stream| unsafe { put(place, stream) }))
}

/// `cuStreamDestroy_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> Code {
    answer(
        enter(Call::StreamDestroy)
            .and_then(|_| context::current())
            .and_then(|_| stream::destroy(stream)),
    )
}

/// `cuStreamQuery`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: u64) -> Code {
    answer(
        enter(Call::StreamQuery)
            .and_then(|_| context::current())
            .and_then(|current| stream::query(&current, stream)),
    )
}

/// `cuStreamSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> Code {
    answer(
        enter(Call::StreamSynchronize)
            .and_then(|_| context::current())
            .and_then(|current| stream::synchronize(&current, stream)),
    )
}

/// `cuEventCreate`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(place: *mut u64, flags: c_uint) -> Code {
    let made = enter(Call::EventCreate).and_then(|_| context::current()).and_then(|current| {
        if flags > 7 { Err(misused(INVALID_VALUE)) } else { stream::create_event(&current) }
    });
    // SAFETY: the caller's contract.
    answer(made.and_then(|event| unsafe { put(place, event) }))
}

/// `cuEventDestroy_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> Code {
    answer(
        enter(Call::EventDestroy)
            .and_then(|_| context::current())
            .and_then(|_| stream::destroy_event(event)),
    )
}

/// `cuEventRecord`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> Code {
    answer(
        enter(Call::EventRecord)
            .and_then(|_| context::current())
            .and_then(|current| stream::record(&current, event, stream)),
    )
}

/// `cuEventQuery`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> Code {
    answer(
        enter(Call::EventQuery)
            .and_then(|_| context::current())
            .and_then(|_| stream::query_event(event)),
    )
}
