// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the host that the device may reach.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};

use super::device::Context;
use super::library::SUCCESS;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// Host memory that is registered with a driver, once in the whole process:
/// lanes of several devices may share an I/O thread's memory, and the driver
/// refuses to register it twice.
struct Registration {
    library: usize,
    base: usize,
    bytes: usize,
    users: usize,
    /// The context it was registered in, which unregisters it if it goes.
    context: Arc<Context>,
}

static REGISTERED: Mutex<Vec<Registration>> = Mutex::new(Vec::new());

/// The right of a device to reach a range of host memory, until dropped.
#[derive(Debug)]
pub struct HostPin {
    library: usize,
    base: usize,
}

impl HostPin {
    /// Registers `[base, base + bytes)` for every device of the driver. The
    /// caller keeps the memory mapped until the pin is dropped.
    ///
    /// Not write-combined: what comes back from the device is read by the CPU.
    pub fn new(context: &Arc<Context>, base: *mut u8, bytes: usize) -> Result<Self> {
        context.enter()?;
        let pin = Self { library: context.library().identity(), base: base as usize };
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = registered.iter_mut().find(|known| pin.is_of(known)) {
            assert!(bytes <= known.bytes, "one memory has one length");
            known.users += 1;
            return Ok(pin);
        }
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller keeps the range mapped while it is registered.
        let code = unsafe {
            (context.library().functions.cuMemHostRegister_v2)(base.cast(), bytes, flags)
        };
        context.library().check(code, || {
            let (bytes, facts) = (ByteLen(bytes as u64), &context.device.facts);
            format!("GPU {facts}: {bytes} of I/O memory could not be registered")
        })?;
        let context = Arc::clone(context);
        let Self { library, base } = pin;
        registered.push(Registration { library, base, bytes, users: 1, context });
        Ok(pin)
    }

    /// Where the device of `context`, which is current, sees the first byte.
    pub fn device_address(&self, context: &Context) -> Result<u64> {
        let mut address = 0;
        // SAFETY: stores one address; the memory is registered and mapped.
        let code = unsafe {
            (context.library().functions.cuMemHostGetDevicePointer_v2)(
                &raw mut address,
                self.base as *mut c_void,
                0,
            )
        };
        let facts = &context.device.facts;
        context.library().check(code, || format!("GPU {facts}: where it sees I/O memory"))?;
        Ok(address)
    }

    fn is_of(&self, known: &Registration) -> bool {
        (known.library, known.base) == (self.library, self.base)
    }
}

impl Drop for HostPin {
    fn drop(&mut self) {
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = registered.iter().position(|known| self.is_of(known)) else { return };
        registered[at].users -= 1;
        if registered[at].users > 0 {
            return;
        }
        let known = registered.swap_remove(at);
        // Under the lock: whoever registers the same memory next must not meet
        // the old registration.
        let code = match known.context.enter_raw() {
            // SAFETY: registered by `new`, and no pin is left.
            SUCCESS => unsafe {
                (known.context.library().functions.cuMemHostUnregister)(self.base as *mut c_void)
            },
            code => code,
        };
        if code != SUCCESS {
            let name = known.context.library().name_of(code);
            tracing::warn!("I/O memory was not unregistered from the GPU's driver: {name}");
        }
    }
}

/// Whole pages of host memory of the tier itself: for trying paths out, and for
/// what the device has to say.
#[derive(Debug)]
pub struct HostPages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages have no thread affinity; who touches them and when is
// settled by whoever holds the lock around them.
unsafe impl Send for HostPages {}
// SAFETY: a shared reference gives out nothing but the address.
unsafe impl Sync for HostPages {}

impl HostPages {
    /// Maps and faults in `bytes`, a multiple of 4096; children do not get them.
    pub fn new(bytes: usize) -> Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let failed = |errno: rustix::io::Errno| {
            let what = format!("cannot map {} for the GPU to reach", ByteLen(bytes as u64));
            Error::new(Kind::NoSpace, what).with_source(errno)
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }
        .map_err(failed)?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(failed(rustix::io::Errno::NOMEM));
        };
        let pages = Self { base, bytes };
        // A shared page would be copied at the next write, away from the device.
        // SAFETY: the range is the whole mapping just made.
        unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }.map_err(failed)?;
        Ok(pages)
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no device reaches it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}
