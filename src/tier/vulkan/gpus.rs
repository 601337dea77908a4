// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices that the drivers of this machine offer, and the choice of one.

use ash::vk;

use super::loader::{Instance, LEAST, error, spell_version, text};
use super::types::{Takes, Types, choose};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::{GpuSelector, Offer, PciAddress};

/// Drivers of which it is known that memory that was given out stays where it is.
/// Others may move it to the machine's RAM when somebody else asks for memory;
/// a page that was swapped out would be back in RAM, at the worst of moments.
const STAYS: [vk::DriverId; 1] = [vk::DriverId::NVIDIA_PROPRIETARY];

/// What is known of a device for good.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its number: the drivers' own order, but software devices come last.
    pub index: u32,
    /// The model's name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its PCI address; `None`: it has none, or the driver does not tell.
    pub pci: Option<PciAddress>,
    /// What sort of device it is.
    pub sort: vk::PhysicalDeviceType,
    /// The driver's number among all Vulkan drivers.
    pub driver: vk::DriverId,
    /// The driver in its own words.
    pub driver_name: String,
    /// The version of the interface that it has.
    pub version: u32,
    /// The memory that slabs are made of, as far as the device alone tells.
    pub types: Types,
    /// The most allocations that can be alive.
    pub max_allocations: u32,
    /// The most bytes of one allocation.
    pub max_allocation: u64,
    /// Names of the extensions that it has.
    extensions: Vec<String>,
}

impl Facts {
    /// Whether the device has an extension.
    pub fn has(&self, extension: &std::ffi::CStr) -> bool {
        self.extensions.iter().any(|known| known.as_bytes() == extension.to_bytes())
    }

    /// Whether it is a program on the CPU.
    pub fn is_software(&self) -> bool {
        self.sort == vk::PhysicalDeviceType::CPU
    }

    /// Whether its memory is known to stay in the device once given out.
    pub fn stays(&self) -> bool {
        STAYS.contains(&self.driver)
    }

    /// Whether it is taken when nobody names one: a device with memory of its own.
    fn is_own(&self) -> bool {
        matches!(
            self.sort,
            vk::PhysicalDeviceType::DISCRETE_GPU | vk::PhysicalDeviceType::VIRTUAL_GPU
        )
    }

    fn answers_to(&self, selector: &GpuSelector) -> bool {
        match selector {
            GpuSelector::Index(index) => self.index == *index,
            GpuSelector::Uuid(uuid) => self.uuid == *uuid,
            GpuSelector::Pci(address) => self.pci.as_ref() == Some(address),
        }
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {}", self.index, self.name, GpuSelector::Uuid(self.uuid))?;
        if let Some(pci) = self.pci {
            write!(f, ", {pci}")?;
        }
        write!(f, ", {})", self.types.total())
    }
}

/// A device of an instance.
#[derive(Debug)]
pub struct Gpu {
    /// The driver's handle.
    pub raw: vk::PhysicalDevice,
    /// What it is.
    pub facts: Facts,
}

/// Every device of the drivers, by number.
pub fn list(instance: &Instance) -> Result<Vec<Gpu>> {
    // SAFETY: the instance lives.
    let found = unsafe { instance.raw.enumerate_physical_devices() }
        .map_err(|code| error(code, format!("{instance:?} cannot list the GPUs")))?;
    let mut gpus = found
        .into_iter()
        .map(|raw| Ok(Gpu { raw, facts: facts(instance, raw)? }))
        .collect::<Result<Vec<_>>>()?;
    // A software device that is installed must not change a GPU's number.
    gpus.sort_by_key(|gpu| gpu.facts.is_software());
    for (gpu, number) in gpus.iter_mut().zip(0..) {
        gpu.facts.index = number;
    }
    Ok(gpus)
}

/// The device that `selector` names; without one, the first that has memory of
/// its own, which software never has.
pub fn find(instance: &Instance, selector: Option<&GpuSelector>) -> Result<Gpu> {
    let mut all = list(instance)?;
    let fits = |gpu: &Gpu| {
        selector.map_or_else(|| gpu.facts.is_own(), |selector| gpu.facts.answers_to(selector))
    };
    if let Some(at) = all.iter().position(fits) {
        let gpu = all.swap_remove(at);
        check(&gpu.facts)?;
        return Ok(gpu);
    }
    let known: Vec<String> = all.iter().map(|gpu| gpu.facts.to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join("; ") };
    let wanted = selector.map_or_else(
        || "no GPU with memory of its own".to_owned(),
        |selector| format!("no GPU {selector}"),
    );
    Err(Error::new(
        Kind::Missing,
        format!("{wanted} here; the Vulkan drivers have {known} ({})", instance.place.display()),
    )
    .with_hint(
        "install the GPU's Vulkan driver, or correct [vulkan] devices (--vulkan-device); vulkaninfo --summary shows them",
    ))
}

fn check(facts: &Facts) -> Result<()> {
    if facts.version < LEAST {
        let text = format!(
            "GPU {facts} has Vulkan {}; at least {} is needed",
            spell_version(facts.version),
            spell_version(LEAST)
        );
        return Err(Error::new(Kind::Missing, text).with_hint("update the GPU's driver"));
    }
    // Its memory is the machine's own: swap in it would make room by taking it.
    if facts.sort == vk::PhysicalDeviceType::INTEGRATED_GPU {
        let text = format!("GPU {facts} has no memory of its own, only the machine's");
        return Err(Error::new(Kind::Invalid, text).with_hint(
            "choose a discrete GPU under [vulkan] devices; zram fits a machine without one",
        ));
    }
    Ok(())
}

fn facts(instance: &Instance, raw: vk::PhysicalDevice) -> Result<Facts> {
    let vulkan = &instance.raw;
    // SAFETY: the device is one that the instance listed, here and below.
    let extensions = unsafe { vulkan.enumerate_device_extension_properties(raw) }
        .map_err(|code| error(code, "cannot ask a GPU for its extensions"))?
        .iter()
        .map(|extension| text(&extension.extension_name))
        .collect::<Vec<_>>();
    let has =
        |name: &std::ffi::CStr| extensions.iter().any(|known| known.as_bytes() == name.to_bytes());
    // SAFETY: as above.
    let version = unsafe { vulkan.get_physical_device_properties(raw) }.api_version;
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut limits = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default();
    // What the device does not know must not be asked for.
    let has_pci = has(ash::ext::pci_bus_info::NAME);
    if version >= LEAST {
        properties = properties.push_next(&mut ids).push_next(&mut limits);
    }
    if has_pci {
        properties = properties.push_next(&mut pci);
    }
    if version >= vk::API_VERSION_1_2 || has(ash::khr::driver_properties::NAME) {
        properties = properties.push_next(&mut driver);
    }
    // SAFETY: every structure in the chain lives and is one that the device knows.
    unsafe { vulkan.get_physical_device_properties2(raw, &mut properties) };
    let properties = properties.properties;
    // SAFETY: as above.
    let memory = unsafe { vulkan.get_physical_device_memory_properties(raw) };
    Ok(Facts {
        index: 0,
        name: text(&properties.device_name),
        uuid: ids.device_uuid,
        pci: has_pci.then_some(PciAddress {
            domain: pci.pci_domain,
            bus: pci.pci_bus as u8,
            slot: pci.pci_device as u8,
        }),
        sort: properties.device_type,
        driver: driver.driver_id,
        driver_name: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)),
        version,
        types: choose(&memory, Takes { shared: u32::MAX, ordinary: u32::MAX }, true),
        max_allocations: properties.limits.max_memory_allocation_count,
        max_allocation: limits.max_memory_allocation_size,
        extensions,
    })
}

/// Bytes of the device's heaps behind `types` that this process may still take,
/// as the driver sees it; `None`: the driver does not tell.
pub fn budget(instance: &Instance, gpu: &Gpu, types: &Types) -> Option<u64> {
    if !gpu.facts.has(ash::ext::memory_budget::NAME) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: the structures live, and the device has the extension.
    unsafe { instance.raw.get_physical_device_memory_properties2(gpu.raw, &mut memory) };
    let mut heaps: Vec<usize> = types.in_order().map(|(memory, _)| memory.heap as usize).collect();
    heaps.dedup();
    let free = |heap: &usize| budget.heap_budget[*heap].saturating_sub(budget.heap_usage[*heap]);
    Some(heaps.iter().map(free).sum())
}

impl From<&Facts> for Offer {
    fn from(facts: &Facts) -> Self {
        Self {
            number: facts.index,
            description: facts.to_string(),
            driver: facts.driver_name.clone(),
            mapped: facts.types.mapped.map(|memory| memory.bytes),
            plain: facts.types.plain.map(|memory| memory.bytes),
            own: facts.is_own(),
            software: facts.is_software(),
            stays: facts.stays(),
        }
    }
}
