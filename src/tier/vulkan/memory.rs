// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the device: an allocation that can be exported, the buffer over it,
//! and for memory of a mapped type the address at which the CPU reaches it.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use ash::vk;

use super::device::{DESCRIPTOR, Device};
use super::loader::error;
use super::types::{MemoryType, Over};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// See the module. Undone when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    /// What it is, for errors.
    what: String,
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    address: u64,
    base: *mut u8,
    /// What it was taken over from.
    given: Option<OwnedFd>,
}

// SAFETY: the handles and the mapping have no thread affinity; who touches the
// memory and when is settled by the contract of `engine::tier`.
unsafe impl Send for DeviceMemory {}
// SAFETY: a shared reference gives out handles and an address, nothing else.
unsafe impl Sync for DeviceMemory {}

/// Where an allocation comes from.
enum Source<'a> {
    Fresh,
    Given(&'a OwnedFd),
}

impl DeviceMemory {
    /// Takes fresh memory, of a mapped type while there is some.
    ///
    /// Errors: `NoSpace` when the device is full.
    pub fn take(device: &Arc<Device>, what: String, bytes: usize) -> Result<Self> {
        Self::of_any_type(device, what, bytes, &Source::Fresh)
    }

    /// Takes fresh memory of one type, which the CPU reaches if it is `mapped`.
    pub fn take_of(
        device: &Arc<Device>,
        what: &str,
        bytes: usize,
        (memory, mapped): (MemoryType, bool),
    ) -> Result<Self> {
        Self::of_type(device, what, bytes, memory, mapped, &Source::Fresh)
    }

    /// Takes over the memory behind a descriptor from [`DeviceMemory::export`],
    /// of this or another process.
    ///
    /// Errors: `Invalid` for a descriptor of something else.
    pub fn import(
        device: &Arc<Device>,
        what: String,
        bytes: usize,
        descriptor: &OwnedFd,
    ) -> Result<Self> {
        if !device.shares() {
            return Err(not_shareable(device, &what));
        }
        Self::of_any_type(device, what, bytes, &Source::Given(descriptor))
    }

    fn of_any_type(
        device: &Arc<Device>,
        what: String,
        bytes: usize,
        source: &Source<'_>,
    ) -> Result<Self> {
        let mut refused = None;
        for (memory, mapped) in device.types.in_order() {
            match Self::of_type(device, &what, bytes, memory, mapped, source) {
                Ok(made) => return Ok(made),
                // The type is used up, or the descriptor is of the other one.
                Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Invalid) => {
                    refused = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(Kind::NoSpace, format!("{what}: no memory"))))
    }

    fn of_type(
        device: &Arc<Device>,
        what: &str,
        bytes: usize,
        from: MemoryType,
        mapped: bool,
        source: &Source<'_>,
    ) -> Result<Self> {
        let buffer = device.buffer(bytes as u64, from.over)?;
        // From here on dropping undoes.
        let mut made = Self {
            device: Arc::clone(device),
            what: what.to_owned(),
            memory: vk::DeviceMemory::null(),
            buffer,
            address: 0,
            base: std::ptr::null_mut(),
            given: None,
        };
        let failed = |code, doing: &str| error(code, format!("{what}: cannot {doing} it"));
        made.memory = made.allocate(bytes as u64, from, source)?;
        if let Source::Given(descriptor) = source {
            made.given = Some(made.duplicate(descriptor)?);
        }
        if from.over != Over::Nothing {
            // SAFETY: both are ours; a buffer of so many bytes needs as many, which
            // was checked when the device was opened.
            unsafe { device.raw.bind_buffer_memory(buffer, made.memory, 0) }
                .map_err(|code| failed(code, "bind"))?;
            made.address = device.address(buffer);
        }
        if mapped {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is ours, of a type that can be mapped, and is not
            // mapped yet.
            let base = unsafe { device.raw.map_memory(made.memory, 0, vk::WHOLE_SIZE, flags) }
                .map_err(|code| {
                    let error = failed(code, "map");
                    if code == vk::Result::ERROR_MEMORY_MAP_FAILED {
                        // The window is used up; memory of another type needs none.
                        return Error::new(Kind::NoSpace, error.to_string());
                    }
                    error
                })?;
            made.base = base.cast();
            if !base.addr().is_multiple_of(super::copy::GRANULE) {
                let text = format!("{what}: the driver mapped it at {base:p}, which is no page");
                return Err(Error::new(Kind::Io, text)
                    .with_hint("update the GPU's driver, or use tier cuda"));
            }
        }
        Ok(made)
    }

    fn allocate(
        &self,
        bytes: u64,
        from: MemoryType,
        source: &Source<'_>,
    ) -> Result<vk::DeviceMemory> {
        let device = &self.device;
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(DESCRIPTOR);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(self.buffer);
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(DESCRIPTOR);
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut info =
            vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(from.index);
        if device.compute.is_some() && from.over != Over::Nothing {
            info = info.push_next(&mut flags);
        }
        if device.descriptors.is_some() {
            // Of memory that is taken over some drivers make new memory then.
            if matches!(source, Source::Fresh) {
                info = info.push_next(&mut export);
            }
            if device.dedicated && from.over == Over::Shared {
                info = info.push_next(&mut dedicated);
            }
        }
        let mut given = None;
        if let Source::Given(descriptor) = source {
            // The driver closes it if, and only if, it takes it.
            let own = self.duplicate(descriptor)?;
            import = import.fd(own.as_raw_fd());
            given = Some(own);
            info = info.push_next(&mut import);
        }
        // SAFETY: the structures live during the call, and the type is one that
        // the buffer takes.
        let memory = unsafe { device.raw.allocate_memory(&info, None) }.map_err(|code| {
            let size = ByteLen(bytes);
            let doing = match source {
                Source::Fresh => format!("{}: no {size} of memory type {}", self.what, from.index),
                Source::Given(_) => format!(
                    "{}: the descriptor is no {size} of memory type {} of this GPU",
                    self.what, from.index
                ),
            };
            error(code, doing)
        })?;
        if let Some(own) = given {
            let _ = own.into_raw_fd();
        }
        Ok(memory)
    }

    fn duplicate(&self, descriptor: &OwnedFd) -> Result<OwnedFd> {
        descriptor.try_clone().map_err(|cause| {
            Error::new(Kind::Io, format!("{}: its descriptor", self.what)).with_source(cause)
        })
    }

    /// The same memory once more, by way of a descriptor.
    pub fn again(&self, bytes: usize, (memory, mapped): (MemoryType, bool)) -> Result<Self> {
        let source = self.export()?;
        Self::of_type(&self.device, &self.what, bytes, memory, mapped, &Source::Given(&source))
    }

    /// Where the CPU reaches it; null for memory that only the device reaches.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The buffer over all of it; null where only the CPU reaches it.
    pub fn buffer(&self) -> vk::Buffer {
        self.buffer
    }

    /// Its address for programs of the device; 0 where it runs none.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A descriptor that keeps the memory alive by itself.
    pub fn export(&self) -> Result<OwnedFd> {
        let Some(descriptors) = self.device.descriptors.as_ref().filter(|_| self.device.shares())
        else {
            return Err(not_shareable(&self.device, &self.what));
        };
        if let Some(given) = &self.given {
            return self.duplicate(given);
        }
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(DESCRIPTOR);
        // SAFETY: the memory is ours and was allocated to be given out.
        let descriptor = unsafe { descriptors.get_memory_fd(&info) }
            .map_err(|code| error(code, format!("{}: no descriptor of it", self.what)))?;
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: both are ours or null; whoever drops made sure that nobody uses
        // them. Freeing unmaps.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

fn not_shareable(device: &Device, what: &str) -> Error {
    let facts = device.facts();
    Error::new(
        Kind::Missing,
        format!(
            "{what}: the driver of GPU {facts} ({}) cannot give its memory out as descriptors, so \
             that pages in it would be lost with this process",
            facts.driver_name
        ),
    )
    .with_hint(
        "update the GPU's driver, choose another GPU under [vulkan] devices, or use tier cuda",
    )
}
