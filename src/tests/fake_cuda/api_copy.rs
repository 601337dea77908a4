// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: copies, and what can go wrong at the call itself.
//!
//! # Safety
//! As in C: host memory is valid for the bytes stated until the copy is done.

use std::ffi::c_void;
use std::time::Duration;

use crate::calls::{Call, answer, concerns, enter, misused};
use crate::context::{self, Current};
use crate::control::{Control, Word};
use crate::errors::{Code, INVALID_VALUE, Outcome};
use crate::memory::{self, Transfer};
use crate::stream;

/// What a copy call does to its caller before it copies.
pub(crate) fn at_the_call(control: &Control, current: &Current, to_device: bool) -> Outcome {
    if concerns(control, current.device, to_device) {
        if control.strikes(Word::HangCopyAt) {
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        if control.strikes(Word::CopyFailAt) {
            return Err(control.get(Word::CopyFailCode) as Code);
        }
    }
    let busy = Duration::from_nanos(control.get(Word::CallNanoseconds));
    if !busy.is_zero() {
        let begin = std::time::Instant::now();
        while begin.elapsed() < busy {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

fn copy(
    call: Call,
    to_device: bool,
    address: u64,
    host: usize,
    bytes: usize,
    stream: Option<u64>,
) -> Outcome {
    let control = enter(call)?;
    let current = context::current()?;
    at_the_call(&control, &current, to_device)?;
    if bytes == 0 {
        return Ok(());
    }
    if host == 0 || host.checked_add(bytes).is_none() || address.checked_add(bytes as u64).is_none()
    {
        return Err(misused(INVALID_VALUE));
    }
    let pinned = stream.is_some();
    let transfer = Transfer {
        device: current.device,
        context: current.context,
        to_device,
        address,
        host,
        bytes,
        pinned,
        spoiled: false,
    };
    match stream {
        None => stream::copy_now(transfer),
        Some(_) if !memory::is_registered(host, bytes, current.context) => {
            Err(misused(INVALID_VALUE))
        }
        Some(stream) => stream::copy(&current, stream, transfer),
    }
}

/// `cuMemcpyHtoDAsync_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    address: u64,
    host: *const c_void,
    bytes: usize,
    stream: u64,
) -> Code {
    answer(copy(Call::MemcpyHtoDAsync, true, address, host as usize, bytes, Some(stream)))
}

/// `cuMemcpyDtoHAsync_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    host: *mut c_void,
    address: u64,
    bytes: usize,
    stream: u64,
) -> Code {
    answer(copy(Call::MemcpyDtoHAsync, false, address, host as usize, bytes, Some(stream)))
}

/// `cuMemcpyHtoD_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(address: u64, host: *const c_void, bytes: usize) -> Code {
    answer(copy(Call::MemcpyHtoD, true, address, host as usize, bytes, None))
}

/// `cuMemcpyDtoH_v2`.
///
/// # Safety
/// See the module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(host: *mut c_void, address: u64, bytes: usize) -> Code {
    answer(copy(Call::MemcpyDtoH, false, address, host as usize, bytes, None))
}
