// SPDX-License-Identifier: MIT OR Apache-2.0
//! One device opened: what everything else of this tier hangs on.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ash::{ext, khr, vk};

use super::gpus::{Facts, Gpu, budget, find};
use super::loader::{Instance, error};
use super::types::{Over, Takes, Types, choose, describe};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::units::{ByteLen, SLAB_BYTES};

/// How to reach a device.
#[derive(Clone, Debug)]
pub struct Place {
    /// The Vulkan loader; `None`: in the usual places.
    pub library: Option<PathBuf>,
    /// Which device; `None`: the first with memory of its own.
    pub device: Option<GpuSelector>,
    /// Whether memory that the CPU can reach is reached by it.
    pub mapped: bool,
    /// Where `/proc` is looked for.
    pub root: PathBuf,
}

/// The kind of descriptor that memory is given out as.
pub const DESCRIPTOR: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// The most queues of one family that are used: each costs memory of the device.
const QUEUES: u32 = 4;

/// A queue of the device, for one thread at a time.
#[derive(Debug)]
pub struct Queue {
    /// The driver's handle.
    pub raw: vk::Queue,
    busy: AtomicBool,
}

impl Queue {
    /// Runs `work` unless another thread is at it: never waits.
    pub fn try_with<T>(&self, work: impl FnOnce(vk::Queue) -> T) -> Option<T> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let result = work(self.raw);
        self.busy.store(false, Ordering::Release);
        Some(result)
    }
}

/// Queues of one family.
#[derive(Debug)]
pub struct Family {
    /// The driver's number of it.
    pub index: u32,
    /// The queues, used in turn by lanes.
    pub queues: Vec<Queue>,
}

/// An open device; undone when dropped, the instance last.
pub struct Device {
    /// Its functions.
    pub raw: ash::Device,
    /// Descriptors of memory; `None`: the driver cannot give memory out.
    pub descriptors: Option<khr::external_memory_fd::Device>,
    /// False once memory that was given out came back as another.
    same: AtomicBool,
    /// Memory must be allocated for one buffer to be given out.
    pub dedicated: bool,
    /// Memory of the host in the device's reach; `None`: the driver cannot.
    pub host: Option<ext::external_memory_host::Device>,
    /// What slabs are made of.
    pub types: Types,
    /// Queues for copies.
    pub copy: Family,
    /// Queues for programs; `None`: the device cannot run ours.
    pub compute: Option<Family>,
    /// What it is, and in which instance.
    pub gpu: Gpu,
    /// Gives lanes their queues in turn.
    turn: AtomicUsize,
    instance: Instance,
}

/// How many devices this process has open.
static OPEN: Mutex<usize> = Mutex::new(0);

fn count(change: impl FnOnce(&mut usize)) -> usize {
    let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    change(&mut open);
    *open
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {}", self.gpu.facts)
    }
}

impl Device {
    /// Starts the drivers, chooses the device and opens it.
    ///
    /// Without `loose`, buffers are laid over memory only as the interface allows.
    pub fn open(place: &Place, loose: bool) -> Result<Self> {
        let instance = Instance::open(place.library.as_deref())?;
        let gpu = find(&instance, place.device.as_ref())?;
        let (copy, compute) = families(&instance, &gpu)?;
        let outlives = exports(&instance, &gpu, usage(compute.is_some()));
        let imports = gpu.facts.has(ext::external_memory_host::NAME);
        let raw = logical(&instance, &gpu, outlives.is_some(), copy, compute)?;
        count(|open| *open += 1);
        let descriptors =
            outlives.map(|_| khr::external_memory_fd::Device::new(&instance.raw, &raw));
        let host = imports.then(|| ext::external_memory_host::Device::new(&instance.raw, &raw));
        // From here on dropping undoes.
        let mut device = Self {
            descriptors,
            same: AtomicBool::new(true),
            dedicated: outlives == Some(true),
            host,
            types: gpu.facts.types,
            copy: family(&raw, copy),
            compute: compute.map(|compute| family(&raw, compute)),
            raw,
            gpu,
            turn: AtomicUsize::new(0),
            instance,
        };
        device.types = device.types_for_slabs(place.mapped, loose)?;
        Ok(device)
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        &self.gpu.facts
    }

    /// Whether memory can be given out and taken over as descriptors.
    pub fn shares(&self) -> bool {
        self.descriptors.is_some() && self.same.load(Ordering::Relaxed)
    }

    /// From now on no memory is given out.
    pub fn share_no_more(&self) {
        self.same.store(false, Ordering::Relaxed);
    }

    /// A number that is another for each lane.
    pub fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes of it that this process may still take; `None`: the driver does not tell.
    pub fn free_bytes(&self) -> Option<u64> {
        budget(&self.instance, &self.gpu, &self.types)
    }

    /// Whether this process has any device open.
    pub fn any_open() -> bool {
        count(|_| ()) > 0
    }

    /// All memory types of the device.
    pub fn memory(&self) -> vk::PhysicalDeviceMemoryProperties {
        // SAFETY: the device is one of the instance's.
        unsafe { self.instance.raw.get_physical_device_memory_properties(self.gpu.raw) }
    }

    /// The memory types that slabs can really be made of.
    fn types_for_slabs(&self, mapping: bool, loose: bool) -> Result<Types> {
        let facts = self.facts();
        let needs = |over| {
            let buffer = self.buffer(SLAB_BYTES as u64, over)?;
            // SAFETY: the buffer was just made, is not bound, and is used by nobody.
            let needs = unsafe {
                let needs = self.raw.get_buffer_memory_requirements(buffer);
                self.raw.destroy_buffer(buffer, None);
                needs
            };
            // Memory is given out and taken in by one size.
            let fits = needs.size == SLAB_BYTES as u64;
            Result::Ok(if fits { needs.memory_type_bits } else { 0 })
        };
        let ordinary = if loose { needs(Over::Ordinary)? } else { 0 };
        let takes = Takes { shared: needs(Over::Shared)?, ordinary };
        let types = choose(&self.memory(), takes, mapping);
        if facts.max_allocation < SLAB_BYTES as u64 || types.in_order().next().is_none() {
            let (slab, most) = (ByteLen(SLAB_BYTES as u64), ByteLen(facts.max_allocation));
            let text = format!(
                "GPU {facts} has no memory that slabs of {slab} can be made of; it gives out {most} at \
                 once, and has {}",
                describe(&self.memory(), takes)
            );
            return Err(Error::new(Kind::Missing, text)
                .with_hint("choose another GPU under [vulkan] devices, or tier cuda"));
        }
        Ok(types)
    }

    /// A buffer for a slab's memory, still without it; null for [`Over::Nothing`].
    pub fn buffer(&self, bytes: u64, over: Over) -> Result<vk::Buffer> {
        match over {
            Over::Nothing => Ok(vk::Buffer::null()),
            Over::Shared if self.descriptors.is_some() => self.buffer_over(bytes, DESCRIPTOR),
            Over::Shared | Over::Ordinary => {
                self.buffer_over(bytes, vk::ExternalMemoryHandleTypeFlags::empty())
            }
        }
    }

    /// A buffer for memory that is shared as `kind`, or not at all if that is empty.
    pub fn buffer_over(
        &self,
        bytes: u64,
        kind: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<vk::Buffer> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
        let all = [self.copy.index, self.compute.as_ref().map_or(u32::MAX, |c| c.index)];
        let families = if all[1] == u32::MAX || all[0] == all[1] { &all[..1] } else { &all[..] };
        let mut info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(usage(self.compute.is_some()))
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        if families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        if !kind.is_empty() {
            info = info.push_next(&mut external);
        }
        // SAFETY: the structures live during the call.
        unsafe { self.raw.create_buffer(&info, None) }
            .map_err(|code| error(code, format!("GPU {}: cannot make a buffer", self.facts())))
    }

    /// The address by which programs of the device reach a buffer that has memory;
    /// 0 where it runs none.
    pub fn address(&self, buffer: vk::Buffer) -> u64 {
        if self.compute.is_none() || buffer == vk::Buffer::null() {
            return 0;
        }
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the feature is on, and the buffer was made and bound for it.
        unsafe { self.raw.get_buffer_device_address(&info) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that was made of it holds it, so that is gone; the tier made
        // sure that it works for nobody.
        unsafe { self.raw.destroy_device(None) };
        count(|open| *open -= 1);
    }
}

/// What is done with memory of ours.
fn usage(programs: bool) -> vk::BufferUsageFlags {
    let copies = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
    if programs { copies | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS } else { copies }
}

/// Whether slabs can be given out and taken in as descriptors, and if so whether
/// only as memory allocated for one buffer.
fn exports(instance: &Instance, gpu: &Gpu, usage: vk::BufferUsageFlags) -> Option<bool> {
    if !gpu.facts.has(khr::external_memory_fd::NAME) {
        return None;
    }
    let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(usage).handle_type(DESCRIPTOR);
    let mut answer = vk::ExternalBufferProperties::default();
    // SAFETY: the structures live, and the device is one of the instance's.
    unsafe {
        instance.raw.get_physical_device_external_buffer_properties(gpu.raw, &info, &mut answer);
    }
    let features = answer.external_memory_properties.external_memory_features;
    let both =
        vk::ExternalMemoryFeatureFlags::EXPORTABLE | vk::ExternalMemoryFeatureFlags::IMPORTABLE;
    features
        .contains(both)
        .then(|| features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY))
}

/// A family's number and how many queues of it are used.
type Use = (u32, u32);

/// The families for copies and for programs: those that do little else, so that
/// they run beside what others do with the device.
fn families(instance: &Instance, gpu: &Gpu) -> Result<(Use, Option<Use>)> {
    use vk::QueueFlags as Can;
    // SAFETY: the device is one of the instance's.
    let all = unsafe { instance.raw.get_physical_device_queue_family_properties(gpu.raw) };
    let best = |fits: &dyn Fn(Can) -> bool, others: Can| {
        all.iter()
            .zip(0_u32..)
            .filter(|(family, _)| fits(family.queue_flags) && family.queue_count > 0)
            .min_by_key(|(family, _)| (family.queue_flags & others).as_raw().count_ones())
            .map(|(family, index)| (index, family.queue_count.min(QUEUES)))
    };
    let copies = Can::TRANSFER | Can::COMPUTE | Can::GRAPHICS;
    let special = Can::VIDEO_DECODE_KHR | Can::VIDEO_ENCODE_KHR | Can::OPTICAL_FLOW_NV;
    let copy = best(&|can| can.intersects(copies), Can::COMPUTE | Can::GRAPHICS | special)
        .ok_or_else(|| {
            Error::new(Kind::Missing, format!("GPU {} has no queue for copies", gpu.facts))
                .with_hint("choose another GPU under [vulkan] devices")
        })?;
    let compute = runs_programs(instance, gpu)
        .then(|| best(&|can| can.contains(Can::COMPUTE), Can::GRAPHICS | special))
        .flatten();
    Ok((copy, compute))
}

/// Whether the device can run a program that is given addresses.
fn runs_programs(instance: &Instance, gpu: &Gpu) -> bool {
    if gpu.facts.version < vk::API_VERSION_1_2 {
        return false;
    }
    let mut addresses = vk::PhysicalDeviceBufferDeviceAddressFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut addresses);
    // SAFETY: the structures live, and the device is one of the instance's.
    unsafe { instance.raw.get_physical_device_features2(gpu.raw, &mut features) };
    // SAFETY: as above.
    let limits = unsafe { instance.raw.get_physical_device_properties(gpu.raw) }.limits;
    addresses.buffer_device_address == vk::TRUE
        && limits.max_compute_work_group_invocations >= 256
        && limits.max_compute_work_group_size[0] >= 256
}

fn family(device: &ash::Device, (index, queues): Use) -> Family {
    let queue = |number| Queue {
        // SAFETY: the device was made with so many queues of the family.
        raw: unsafe { device.get_device_queue(index, number) },
        busy: AtomicBool::new(false),
    };
    Family { index, queues: (0..queues).map(queue).collect() }
}

fn logical(
    instance: &Instance,
    gpu: &Gpu,
    descriptors: bool,
    copy: Use,
    compute: Option<Use>,
) -> Result<ash::Device> {
    let facts = &gpu.facts;
    let priorities = [1.0; QUEUES as usize];
    let queues = |(index, queues): Use| {
        vk::DeviceQueueCreateInfo::default()
            .queue_family_index(index)
            .queue_priorities(&priorities[..queues as usize])
    };
    let mut families = vec![queues(copy)];
    families.extend(compute.filter(|compute| compute.0 != copy.0).map(queues));
    let mut names = Vec::new();
    if descriptors {
        names.push(khr::external_memory_fd::NAME.as_ptr());
    }
    if facts.has(ext::external_memory_host::NAME) {
        names.push(ext::external_memory_host::NAME.as_ptr());
    }
    let mut addresses =
        vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&families)
        .enabled_extension_names(&names);
    if compute.is_some() {
        info = info.push_next(&mut addresses);
    }
    // SAFETY: the structures live during the call; extensions and feature are there.
    unsafe { instance.raw.create_device(gpu.raw, &info, None) }
        .map_err(|code| error(code, format!("GPU {facts}: cannot open it")))
}
