// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other programs leave of a GPU's memory, for the control plane: NVML
//! (NVIDIA), else what amdgpu tells in sysfs, else what the kernel counts by control
//! group ([`dmem`]). Only GPUs that are in use are asked: a question would wake a
//! sleeping one, and NVML keeps the device nodes open.
#![forbid(unsafe_code)]

mod dmem;

use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::{GpuSelector, PciAddress};
use crate::engine::units::ByteLen;

const NAME: &str = "libnvidia-ml.so.1";
/// Where NixOS has the driver's libraries.
const NIXOS: &str = "/run/opengl-driver/lib";
/// As a PCI vendor.
const INTEL: u16 = 0x8086;

/// The interfaces that tell, for as long as they are needed.
pub struct Gpus {
    root: PathBuf,
    nvml: Option<Nvml>,
}

/// A GPU's memory now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What nobody uses.
    pub free: ByteLen,
    /// Who uses the most of it; `None`: nobody is known.
    pub largest: Option<User>,
}

/// Somebody who uses a GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The process or the control group, for people.
    pub who: String,
    /// What it uses.
    pub bytes: ByteLen,
}

impl Gpus {
    /// Opens what there is. `cuda` is the CUDA driver library that is configured, if
    /// any: NVML lies beside it. sysfs and procfs are below `root`.
    #[must_use]
    pub fn open(root: &Path, cuda: Option<&Path>) -> Self {
        let beside = cuda.and_then(Path::parent).map(|folder| folder.join(NAME));
        let places = match beside {
            Some(place) => vec![place],
            None => vec![PathBuf::from(NAME), Path::new(NIXOS).join(NAME)],
        };
        let mut nvml = None;
        for place in &places {
            match Nvml::builder().lib_path(place.as_os_str()).init() {
                Ok(found) => {
                    nvml = Some(found);
                    break;
                }
                Err(error) => tracing::debug!("no NVML at {}: {error}", place.display()),
            }
        }
        Self { root: root.to_path_buf(), nvml }
    }

    /// The memory of a GPU. `Ok(None)`: nothing here knows it.
    ///
    /// Errors: `Io` or `Protocol` if it is known, and nothing comes of asking.
    pub fn memory(&self, device: GpuSelector) -> Result<Option<Memory>> {
        if let Some(nvml) = &self.nvml {
            match self.ask_nvml(nvml, device) {
                Ok(memory) => return Ok(Some(memory)),
                Err(NvmlError::NotFound | NvmlError::InvalidArg | NvmlError::NotSupported) => {}
                Err(error) => {
                    let what = format!("NVML says nothing of {device}: {error}");
                    return Err(Error::new(Kind::Io, what));
                }
            }
        }
        let Some(address) = address(device) else { return Ok(None) };
        let counted = dmem::memory(&self.root, address);
        let Some(free) = self.ask_amdgpu(address) else { return counted };
        // Who it is is told to people and decides nothing, here either.
        let largest = counted.ok().flatten().and_then(|memory| memory.largest);
        Ok(Some(Memory { free, largest }))
    }

    fn ask_nvml(&self, nvml: &Nvml, device: GpuSelector) -> std::result::Result<Memory, NvmlError> {
        let device = nvml.device_by_uuid(device.to_string())?;
        let free = ByteLen(device.memory_info()?.free);
        // Who it is is told to people and decides nothing.
        let computing = device.running_compute_processes().unwrap_or_default();
        let drawing = device.running_graphics_processes().unwrap_or_default();
        let users = computing.iter().chain(&drawing);
        let largest = users.filter_map(|process| self.user(process)).max_by_key(|user| user.bytes);
        Ok(Memory { free, largest })
    }

    /// The store and its holder are not somebody else.
    fn user(&self, process: &ProcessInfo) -> Option<User> {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { return None };
        let path = self.root.join(format!("proc/{}/comm", process.pid));
        let name = std::fs::read_to_string(path).ok()?.trim_end().to_owned();
        let other = !name.starts_with("sluice");
        let who = format!("{name} (process {})", process.pid);
        other.then_some(User { who, bytes: ByteLen(bytes) })
    }

    /// `mem_info_vram_total` and `mem_info_vram_used` of the PCI device
    /// (`Documentation/gpu/amdgpu/driver-misc.rst`).
    fn ask_amdgpu(&self, address: PciAddress) -> Option<ByteLen> {
        let folder = self.root.join("sys/bus/pci/devices").join(address.to_string());
        let bytes = |name: &str| -> Option<u64> {
            std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        let free = bytes("mem_info_vram_total")?.checked_sub(bytes("mem_info_vram_used")?)?;
        Some(ByteLen(free))
    }
}

/// Mesa's Vulkan drivers make a device's UUID of its PCI address.
fn address(device: GpuSelector) -> Option<PciAddress> {
    match device {
        GpuSelector::Uuid(uuid) => radv_address(uuid).or_else(|| anv_address(uuid)),
        GpuSelector::Pci(address) => Some(address),
        GpuSelector::Index(_) => None,
    }
}

/// Of AMD's: domain, bus, slot and function, 32 bits each.
fn radv_address(uuid: [u8; 16]) -> Option<PciAddress> {
    let mut words =
        uuid.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
    let mut next = || words.next().expect("four words");
    let (domain, bus, slot, function) = (next(), next(), next(), next());
    let (bus, slot) = (u8::try_from(bus).ok()?, u8::try_from(slot).ok()?);
    (function == 0 && slot < 32).then_some(PciAddress { domain, bus, slot })
}

/// Of Intel's: vendor, device, revision and domain, 16 bits each, bus, slot and function,
/// 8 bits each, four zeros and the tile.
fn anv_address(uuid: [u8; 16]) -> Option<PciAddress> {
    let word = |at: usize| u16::from_ne_bytes([uuid[at], uuid[at + 1]]);
    let (bus, slot, function) = (uuid[8], uuid[9], uuid[10]);
    let is_one = word(0) == INTEL && function == 0 && slot < 32 && uuid[11..15] == [0; 4];
    is_one.then(|| PciAddress { domain: word(6).into(), bus, slot })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(words: [u32; 4]) -> [u8; 16] {
        let bytes = words.map(u32::to_ne_bytes).concat();
        bytes.try_into().unwrap()
    }

    #[test]
    fn a_card_of_amd_is_found_by_the_address_in_its_uuid() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mem_info_vram_total"), "8573157376\n").unwrap();
        std::fs::write(folder.join("mem_info_vram_used"), "573157376\n").unwrap();
        let gpus = Gpus { root: root.path().to_path_buf(), nvml: None };
        let free = |selector| gpus.memory(selector).unwrap().map(|memory| memory.free);
        assert_eq!(free(GpuSelector::Uuid(uuid([0, 3, 0, 0]))), Some(ByteLen(8_000_000_000)));
        assert_eq!(free(GpuSelector::Uuid(uuid([0, 4, 0, 0]))), None, "no such card");
        assert_eq!(free(GpuSelector::Uuid([0xab; 16])), None, "another driver's UUID");
        assert_eq!(free(GpuSelector::Index(0)), None);
        std::fs::write(folder.join("mem_info_vram_used"), "nonsense\n").unwrap();
        assert_eq!(free(GpuSelector::Uuid(uuid([0, 3, 0, 0]))), None);
    }

    #[test]
    fn a_card_of_intel_is_found_by_the_address_in_its_uuid() {
        let words = [INTEL, 0x56a0, 8, 0x10].map(u16::to_ne_bytes).concat();
        let mut uuid: [u8; 16] = [words, vec![3, 2, 0, 0, 0, 0, 0, 0]].concat().try_into().unwrap();
        let found = address(GpuSelector::Uuid(uuid));
        assert_eq!(found, Some(PciAddress { domain: 0x10, bus: 3, slot: 2 }));
        uuid[12] = 1;
        assert_eq!(address(GpuSelector::Uuid(uuid)), None, "another driver's UUID");
    }
}
