// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands before every call: the faults that concern all of them, and the
//! count of wrong uses.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::control::{Control, MAX_DEVICES, Word, found};
use crate::errors::{Code, NOT_INITIALIZED, OPERATING_SYSTEM, Outcome, STUB_LIBRARY};

macro_rules! calls {
    ($($call:ident,)*) => {
        /// A function of the library, by the number that [`Word::CallFails`] takes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub enum Call {
            /// No function.
            None,
            $(#[doc = concat!("`cu", stringify!($call), "`, in any of its versions.")] $call,)*
        }

        /// Every function and the name that `fake-cuda-ctl` takes.
        pub const CALLS: &[(Call, &str)] = &[$((Call::$call, concat!("cu", stringify!($call))),)*];
    };
}

calls! {
    Init, DriverGetVersion, DeviceGetCount, DeviceGet, DeviceGetName, DeviceGetUuid,
    DeviceGetPCIBusId, DeviceTotalMem, DeviceGetAttribute, DevicePrimaryCtxRetain,
    DevicePrimaryCtxRelease, DevicePrimaryCtxSetFlags, CtxSetCurrent, CtxGetCurrent, CtxCreate,
    CtxDestroy, CtxSynchronize, MemGetInfo, MemGetAllocationGranularity, MemCreate, MemRelease,
    MemAddressReserve, MemAddressFree, MemMap, MemUnmap, MemSetAccess,
    MemExportToShareableHandle, MemImportFromShareableHandle, MemHostRegister,
    MemHostUnregister, MemAlloc, MemFree, MemAllocHost, MemFreeHost, StreamCreate,
    StreamDestroy, StreamQuery, StreamSynchronize, EventCreate, EventDestroy, EventRecord,
    EventQuery, MemcpyHtoDAsync, MemcpyDtoHAsync, MemcpyHtoD, MemcpyDtoH,
    MemHostGetDevicePointer, StreamWriteValue32, ModuleLoadData, ModuleUnload,
    ModuleGetFunction, LaunchKernel,
}

static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// The code that a device answers for the rest of the process's life; 0: none.
static STICKY: [AtomicU32; MAX_DEVICES] = [const { AtomicU32::new(0) }; MAX_DEVICES];

/// How often a device was found lost: what was queued on it before is gone.
static LOSSES: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// How often the device was found lost.
pub(crate) fn losses(device: usize) -> u64 {
    LOSSES[device].load(Ordering::SeqCst)
}

/// The control file.
pub(crate) fn control() -> Outcome<Control> {
    found().ok_or(OPERATING_SYSTEM)
}

/// The control file of a library that has passed [`enter`].
pub(crate) fn known() -> Control {
    found().expect("a call got past the gate without a control file")
}

pub(crate) fn set_initialized() {
    INITIALIZED.store(true, Ordering::SeqCst);
}

/// The gate of calls that may come before `cuInit`.
pub(crate) fn enter_early(call: Call) -> Outcome<Control> {
    let control = control()?;
    if control.get(Word::Stub) != 0 {
        return Err(STUB_LIBRARY);
    }
    if control.get(Word::CallFails) == call as u64 && control.strikes(Word::CallFailAt) {
        return Err(control.get(Word::CallFailCode) as Code);
    }
    Ok(control)
}

/// The gate of all other calls.
pub(crate) fn enter(call: Call) -> Outcome<Control> {
    let control = enter_early(call)?;
    if INITIALIZED.load(Ordering::SeqCst) { Ok(control) } else { Err(misused(NOT_INITIALIZED)) }
}

/// Whether a device still answers.
pub(crate) fn alive(device: usize) -> Outcome {
    let control = known();
    if control.get(Word::LostDevices) & (1 << device) != 0 {
        LOSSES[device].fetch_add(1, Ordering::SeqCst);
        return Err(control.get(Word::LostCode) as Code);
    }
    match STICKY[device].load(Ordering::SeqCst) {
        0 => Ok(()),
        code => Err(code),
    }
}

/// The device fails with `code` from now on; gives the code it really has.
pub(crate) fn lose(device: usize, code: Code) -> Code {
    match STICKY[device].compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => code,
        Err(before) => before,
    }
}

/// Counts a wrong use by the caller.
pub(crate) fn misused(code: Code) -> Code {
    if let Some(control) = found() {
        control.add(Word::Misuses, 1);
        control.set(Word::LastMisuse, u64::from(code));
    }
    code
}

/// A call's answer as C takes it.
pub(crate) fn answer(outcome: Outcome) -> Code {
    outcome.err().unwrap_or(0)
}

/// Whether a fault on copies concerns this one.
pub(crate) fn concerns(control: &Control, device: usize, to_device: bool) -> bool {
    let devices = control.get(Word::FaultDevices);
    let direction = control.get(Word::FaultDirection);
    (devices == 0 || devices & (1 << device) != 0)
        && (direction == 0 || (direction == 1) == to_device)
}
