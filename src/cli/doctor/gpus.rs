// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPUs as the PCI bus shows them. A sleeping GPU is named and left alone:
//! only attributes that the kernel answers from its own memory are read, and
//! for a suspended device not even its resources.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::facts::Module;
use super::names;

/// One display or 3D controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    /// Its PCI address.
    pub address: String,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// The kernel driver bound to it.
    pub driver: Option<String>,
    /// Whether it sleeps (`power/runtime_status` is `suspended`).
    pub asleep: bool,
    /// Whether the kernel may suspend it when idle: `auto`, or `on` if not.
    pub power_control: Option<String>,
    /// The largest memory window the CPU has into it; `None` if it sleeps.
    pub window_bytes: Option<u64>,
    /// Whether the kernel offers to resize a window.
    pub resizable: bool,
}

impl Gpu {
    /// Whether CUDA could use it.
    pub fn is_nvidia(&self) -> bool {
        self.vendor == 0x10de
    }

    /// The vendor's name, if it is one whose GPUs have memory of their own.
    pub fn vendor_name(&self) -> Option<&'static str> {
        match self.vendor {
            0x10de => Some("NVIDIA"),
            0x1002 => Some("AMD"),
            0x8086 => Some("Intel"),
            _ => None,
        }
    }
}

/// NVIDIA's driver, as far as files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Nvidia {
    /// Of the module `nvidia`, if it is loaded.
    pub version: Option<String>,
    /// The module that CUDA needs beside it.
    pub uvm: Module,
    /// Whether `/dev/nvidia-uvm` exists.
    pub has_uvm_node: bool,
    /// Whether the persistence daemon runs.
    pub has_persistenced: bool,
}

impl Nvidia {
    /// Reads the tree below `root`; `uvm` is the module's state.
    pub fn read(root: &Path, uvm: Module) -> Self {
        Self {
            version: fs::read_to_string(root.join("sys/module/nvidia/version"))
                .ok()
                .map(|text| text.trim().to_owned()),
            uvm,
            has_uvm_node: root.join("dev/nvidia-uvm").exists(),
            has_persistenced: root.join("run/nvidia-persistenced/socket").exists(),
        }
    }
}

/// All GPUs below `root`, by address.
pub(super) fn read(root: &Path) -> Vec<Gpu> {
    let bus = root.join("sys/bus/pci/devices");
    names(&bus).into_iter().filter_map(|address| gpu(&bus.join(&address), address)).collect()
}

fn gpu(dir: &Path, address: String) -> Option<Gpu> {
    let hex = |name: &str| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    // Base class 3: VGA (00), 3D (02) and other display controllers.
    if hex("class")? >> 16 != 0x03 {
        return None;
    }
    let status = fs::read_to_string(dir.join("power/runtime_status")).unwrap_or_default();
    let asleep = status.trim() == "suspended";
    let window_bytes = if asleep {
        None
    } else {
        fs::read_to_string(dir.join("resource")).ok().map(|text| largest_window(&text))
    };
    Some(Gpu {
        vendor: u16::try_from(hex("vendor")?).ok()?,
        device: u16::try_from(hex("device")?).ok()?,
        driver: fs::read_link(dir.join("driver"))
            .ok()
            .and_then(|link| Some(link.file_name()?.to_str()?.to_owned())),
        asleep,
        power_control: fs::read_to_string(dir.join("power/control"))
            .ok()
            .map(|text| text.trim().to_owned()),
        window_bytes,
        resizable: (0..6).any(|bar| dir.join(format!("resource{bar}_resize")).exists()),
        address,
    })
}

/// The largest of the six memory BARs in a `resource` file (`start end flags` a line).
fn largest_window(resource: &str) -> u64 {
    const IORESOURCE_MEM: u64 = 0x200;
    let size = |line: &str| {
        let mut fields = line
            .split_whitespace()
            .map(|field| u64::from_str_radix(field.strip_prefix("0x").unwrap_or(field), 16).ok());
        let (start, end, flags) = (fields.next()??, fields.next()??, fields.next()??);
        (flags & IORESOURCE_MEM != 0 && end > start).then(|| end - start + 1)
    };
    resource.lines().take(6).filter_map(size).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_memory_window_counts_and_ports_do_not() {
        let resource = "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n\
                        0x0000380000000000 0x00003803ffffffff 0x000000000014220c\n\
                        0x000000000000e000 0x000000000000e07f 0x0000000000040101\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000000000000000 0xffffffffffffffff 0x0000000000000200\n";
        assert_eq!(largest_window(resource), 16 << 30);
        assert_eq!(largest_window("no resource\n"), 0);
    }
}
