// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the host in reach of the device.

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::loader::error;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::Direction;
use crate::engine::units::ByteLen;

const HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// A buffer of host memory. Undone when dropped.
#[derive(Debug)]
pub struct HostBuffer {
    device: Arc<Device>,
    memory: vk::DeviceMemory,
    /// The buffer over it.
    pub buffer: vk::Buffer,
    /// Its address for programs of the device; 0 where it runs none.
    pub address: u64,
    /// Where the CPU finds it.
    pub base: *mut u8,
}

// SAFETY: handles and address have no thread affinity; who touches the memory and
// when is settled by the lane whose it is.
unsafe impl Send for HostBuffer {}
// SAFETY: a shared reference gives out handles and an address, nothing else.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Memory that the driver makes, mapped.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let none = vk::ExternalMemoryHandleTypeFlags::empty();
        let mut made = Self::unbound(device, bytes, none)?;
        made.bind(bytes, u32::MAX, None)?;
        let flags = vk::MemoryMapFlags::empty();
        // SAFETY: the memory is ours, of a type that can be mapped, and is not mapped.
        made.base = unsafe { device.raw.map_memory(made.memory, 0, vk::WHOLE_SIZE, flags) }
            .map_err(|code| error(code, format!("GPU {}: host memory", device.facts())))?
            .cast();
        // SAFETY: just mapped, so long, and ours alone. Touching gives it frames.
        unsafe { std::ptr::write_bytes(made.base, 0, bytes) };
        Ok(made)
    }

    /// Brings `[base, base + bytes)` into reach, which the caller keeps mapped while
    /// this lives. `None`: the driver cannot, and [`HostBuffer::new`] has to do.
    pub fn over(device: &Arc<Device>, base: *mut u8, bytes: usize) -> Result<Option<Self>> {
        let Some(host) = &device.host else { return Ok(None) };
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the pointer is to memory of ours; one structure is stored.
        let code = unsafe {
            (host.fp().get_memory_host_pointer_properties_ext)(
                host.device(),
                HOST,
                base.cast(),
                &raw mut properties,
            )
        };
        if code != vk::Result::SUCCESS || properties.memory_type_bits == 0 {
            return Ok(None);
        }
        let mut made = Self::unbound(device, bytes, HOST)?;
        made.base = base;
        match made.bind(bytes, properties.memory_type_bits, Some(base)) {
            Ok(()) => Ok(Some(made)),
            // Whatever it has against this memory: alignment, amount, place.
            Err(_) => Ok(None),
        }
    }

    fn unbound(
        device: &Arc<Device>,
        bytes: usize,
        kind: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            memory: vk::DeviceMemory::null(),
            buffer: device.buffer_over(bytes as u64, kind)?,
            address: 0,
            base: std::ptr::null_mut(),
        })
    }

    /// Gives the buffer memory: of the driver's making, or what is at `given`.
    fn bind(&mut self, bytes: usize, allowed: u32, given: Option<*mut u8>) -> Result<()> {
        let device = &self.device;
        let what = || format!("GPU {}: {} of host memory", device.facts(), ByteLen(bytes as u64));
        // SAFETY: the buffer is ours.
        let needed = unsafe { device.raw.get_buffer_memory_requirements(self.buffer) };
        let index = host_type(&device.memory(), allowed & needed.memory_type_bits)
            .ok_or_else(|| Error::new(Kind::Missing, format!("{}: no memory type", what())))?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HOST);
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let size = if given.is_some() { bytes as u64 } else { needed.size };
        let mut info =
            vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(index);
        if device.compute.is_some() {
            info = info.push_next(&mut flags);
        }
        if let Some(base) = given {
            import = import.host_pointer(base.cast());
            info = info.push_next(&mut import);
        }
        if needed.size > size {
            return Err(Error::new(Kind::Invalid, format!("{}: too short", what())));
        }
        // SAFETY: the structures live during the call; given memory is mapped and so
        // long, as the caller promises.
        self.memory = unsafe { device.raw.allocate_memory(&info, None) }
            .map_err(|code| error(code, what()))?;
        // SAFETY: both are ours, and the memory is as large as the buffer needs.
        unsafe { device.raw.bind_buffer_memory(self.buffer, self.memory, 0) }
            .map_err(|code| error(code, what()))?;
        self.address = device.address(self.buffer);
        Ok(())
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: both are ours or null; whoever drops made sure that the device
        // does not use them.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

/// A type of host memory that both sides see without being told to look, cached
/// for the CPU if possible: it reads what the device wrote.
fn host_type(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32) -> Option<u32> {
    use vk::MemoryPropertyFlags as Flags;
    let coherent = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    memory
        .memory_types_as_slice()
        .iter()
        .zip(0_u32..)
        .filter(|(found, index)| {
            allowed & (1 << index) != 0 && found.property_flags.contains(coherent)
        })
        .max_by_key(|(found, index)| {
            let flags = found.property_flags;
            let cached = flags.contains(Flags::HOST_CACHED);
            (!flags.contains(Flags::DEVICE_LOCAL), cached, std::cmp::Reverse(*index))
        })
        .map(|(_, index)| index)
}

/// A lane's memory in reach of the device: itself, or a copy that is kept by the
/// side because the driver cannot reach it.
#[derive(Debug)]
pub struct Reach {
    /// What the device is given.
    pub host: HostBuffer,
    /// The lane's own memory where `host` is a copy; null where it is the same.
    own: *mut u8,
}

// SAFETY: as `HostBuffer`.
unsafe impl Send for Reach {}
// SAFETY: as `HostBuffer`.
unsafe impl Sync for Reach {}

impl Reach {
    /// Brings `[base, base + bytes)` into reach; the caller keeps it mapped.
    pub fn new(device: &Arc<Device>, base: *mut u8, bytes: usize) -> Result<Self> {
        if let Some(host) = HostBuffer::over(device, base, bytes)? {
            return Ok(Self { host, own: std::ptr::null_mut() });
        }
        Ok(Self { host: HostBuffer::new(device, bytes)?, own: base })
    }

    /// Whether the driver reaches the memory itself.
    pub fn is_direct(&self) -> bool {
        self.own.is_null()
    }

    /// Before the device writes a range to its memory, or after it read it: moves the
    /// range between the copy and the memory it is of.
    ///
    /// # Safety
    /// The range is inside the memory, and is used by nobody else meanwhile.
    pub unsafe fn relay(&self, at: usize, bytes: usize, direction: Direction) {
        if self.is_direct() {
            return;
        }
        // SAFETY: both memories are at least so long, and apart.
        unsafe {
            let (copy, own) = (self.host.base.add(at), self.own.add(at));
            match direction {
                Direction::Write => std::ptr::copy_nonoverlapping(own, copy, bytes),
                Direction::Read => std::ptr::copy_nonoverlapping(copy, own, bytes),
            }
        }
    }
}
