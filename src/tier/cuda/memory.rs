// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the device: a handle that can be exported, an address and a mapping,
//! undone in reverse.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::device::Context;
use super::library::OUT_OF_MEMORY;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

const FILE_DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The device's memory, as every handle here is asked for.
fn properties(context: &Context) -> CUmemAllocationProp {
    // SAFETY: plain numbers and a pointer that only another system reads; all
    // zeros is "nothing special" for each of them.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = FILE_DESCRIPTOR;
    properties.location = location(context);
    properties
}

fn location(context: &Context) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device.raw }
}

/// The unit in which the device gives memory out, in bytes.
pub fn granularity(context: &Context) -> Result<usize> {
    let mut bytes = 0;
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the properties outlive the call, which stores one size.
    let code = unsafe {
        (context.library().functions.cuMemGetAllocationGranularity)(
            &raw mut bytes,
            &properties(context),
            minimum,
        )
    };
    let facts = &context.device.facts;
    context.library().check(code, || format!("GPU {facts}: allocation granularity"))?;
    if bytes == 0 {
        return Err(Error::new(
            Kind::Protocol,
            format!("GPU {facts}: the driver says that memory comes in units of 0 bytes"),
        ));
    }
    Ok(bytes)
}

/// A range of the device's memory with an address, behind an exportable handle.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    what: String,
    bytes: usize,
    handle: Option<CUmemGenericAllocationHandle>,
    address: Option<CUdeviceptr>,
    mapped: bool,
}

impl DeviceMemory {
    /// Takes `bytes` (whole granules) of the device's memory. `what` is its name
    /// in errors.
    ///
    /// Errors: `NoSpace` when the device has not that much left.
    pub fn take(context: &Arc<Context>, what: String, bytes: usize) -> Result<Self> {
        context.enter()?;
        let mut memory = Self::nothing(context, what, bytes);
        let mut handle = 0;
        // SAFETY: the properties outlive the call, which stores one handle.
        let code = unsafe {
            (context.library().functions.cuMemCreate)(
                &raw mut handle,
                bytes,
                &properties(context),
                0,
            )
        };
        if code == OUT_OF_MEMORY {
            return Err(memory.no_space(code));
        }
        memory.check(code, "taken")?;
        memory.handle = Some(handle);
        memory.map()?;
        Ok(memory)
    }

    /// The memory behind a descriptor that [`DeviceMemory::export`] gave, in
    /// this process or another.
    ///
    /// Errors: `Invalid` if it is no such descriptor or not of `bytes`.
    pub fn import(
        context: &Arc<Context>,
        what: String,
        bytes: usize,
        descriptor: &OwnedFd,
    ) -> Result<Self> {
        context.enter()?;
        let mut memory = Self::nothing(context, what, bytes);
        let mut handle = 0;
        // SAFETY: the descriptor travels as a number in a pointer's place, as
        // the driver's header says; the call stores one handle and keeps no
        // claim on the descriptor.
        let code = unsafe {
            (context.library().functions.cuMemImportFromShareableHandle)(
                &raw mut handle,
                std::ptr::without_provenance_mut(descriptor.as_raw_fd().cast_unsigned() as usize),
                FILE_DESCRIPTOR,
            )
        };
        let name = memory.what.clone();
        let foreign = |error: Error| {
            let bytes = ByteLen(bytes as u64);
            let text =
                format!("{name}: the descriptor is not that of {bytes} of this GPU's memory");
            Error::new(Kind::Invalid, text).with_source(error)
        };
        if code == OUT_OF_MEMORY {
            return Err(memory.no_space(code));
        }
        memory.check(code, "imported").map_err(foreign)?;
        memory.handle = Some(handle);
        memory.map().map_err(foreign)?;
        Ok(memory)
    }

    fn nothing(context: &Arc<Context>, what: String, bytes: usize) -> Self {
        let context = Arc::clone(context);
        Self { context, what, bytes, handle: None, address: None, mapped: false }
    }

    /// The first byte's address, as the device's copies want it.
    pub fn address(&self) -> CUdeviceptr {
        self.address.expect("memory that was made has an address until it is given back")
    }

    fn map(&mut self) -> Result<()> {
        let handle = self.handle.expect("the handle comes first");
        let context = Arc::clone(&self.context);
        let f = &context.library().functions;
        let mut address = 0;
        // SAFETY: stores one address; alignment 0 is the driver's own.
        let code = unsafe { (f.cuMemAddressReserve)(&raw mut address, self.bytes, 0, 0, 0) };
        self.check(code, "given an address")?;
        self.address = Some(address);
        // SAFETY: the reservation is ours, of this length and unused.
        let code = unsafe { (f.cuMemMap)(address, self.bytes, 0, handle, 0) };
        self.check(code, "mapped")?;
        self.mapped = true;
        let access = CUmemAccessDesc {
            location: location(&context),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was mapped above; one descriptor is passed.
        let code = unsafe { (f.cuMemSetAccess)(address, self.bytes, &raw const access, 1) };
        self.check(code, "made accessible")
    }

    /// A descriptor that keeps the memory alive without this process.
    pub fn export(&self) -> Result<OwnedFd> {
        self.context.enter()?;
        let handle = self.handle.expect("memory that was made has a handle until it is given back");
        let mut descriptor: RawFd = -1;
        // SAFETY: for this type of handle the call stores one descriptor.
        let code = unsafe {
            (self.context.library().functions.cuMemExportToShareableHandle)(
                (&raw mut descriptor).cast(),
                handle,
                FILE_DESCRIPTOR,
                0,
            )
        };
        self.check(code, "exported")?;
        if descriptor < 0 {
            return Err(Error::new(
                Kind::Protocol,
                format!("{}: the driver exported descriptor {descriptor}", self.what),
            ));
        }
        // SAFETY: the driver made it for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC).map_err(|errno| {
            Error::new(Kind::Io, format!("{}: close-on-exec", self.what)).with_source(errno)
        })?;
        Ok(descriptor)
    }

    /// Gives the memory back; no copy to or from it may be under way. After an
    /// error what could not be given back is lost until the process ends.
    pub fn give_back(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let entered = self.context.enter();
        let f = self.context.library().functions;
        let mut result = entered;
        let mut note = |step: Result<()>| {
            if result.is_ok() {
                result = step;
            }
        };
        if let Some(address) = self.address.take() {
            if std::mem::take(&mut self.mapped) {
                // SAFETY: mapped by `map` with this length, and not used any more.
                let code = unsafe { (f.cuMemUnmap)(address, self.bytes) };
                note(self.check(code, "unmapped"));
            }
            // SAFETY: reserved by `map` with this length; if something is still
            // mapped there, the driver refuses.
            let code = unsafe { (f.cuMemAddressFree)(address, self.bytes) };
            note(self.check(code, "relieved of its address"));
        }
        if let Some(handle) = self.handle.take() {
            // SAFETY: the handle is ours and is forgotten here.
            let code = unsafe { (f.cuMemRelease)(handle) };
            note(self.check(code, "given back"));
        }
        result
    }

    fn check(&self, code: u32, done: &str) -> Result<()> {
        let bytes = ByteLen(self.bytes as u64);
        self.context.library().check(code, || format!("{}: {bytes} could not be {done}", self.what))
    }

    fn no_space(&self, code: u32) -> Error {
        let asked = ByteLen(self.bytes as u64);
        let library = self.context.library();
        match self.context.memory() {
            Ok((free, total)) => Error::new(
                Kind::NoSpace,
                format!(
                    "{}: {asked} asked, {} of {} free: {}",
                    self.what,
                    ByteLen(free),
                    ByteLen(total),
                    library.name_of(code)
                ),
            )
            .with_hint("see who uses the GPU's memory: nvidia-smi"),
            Err(error) => error,
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            tracing::warn!("{error}");
        }
    }
}
