// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether GPUs sleep, from what the kernel's PCI core knows without asking
//! them (`Documentation/power/pci.rst`): reading these files wakes nothing.

use std::path::Path;

use super::{attribute, entries};

/// A GPU that need not be awake: it is not the one that shows the boot screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its PCI address, `0000:01:00.0`.
    pub address: String,
    /// What it does.
    pub state: Sleep,
}

/// Whether a GPU sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It does.
    Asleep,
    /// It does not, though it may.
    Awake,
    /// It may not: `power/control` is `on`.
    Forbidden,
    /// The kernel or its driver cannot put it to sleep.
    Unsupported,
}

/// The GPUs below `root` that need not be awake.
#[must_use]
pub fn read(root: &Path) -> Vec<Gpu> {
    let mut found = Vec::new();
    for device in entries(&root.join("sys/bus/pci/devices")) {
        let is_display = attribute(&device, "class").is_some_and(|class| class.starts_with("0x03"));
        if !is_display || attribute(&device, "boot_vga").as_deref() == Some("1") {
            continue;
        }
        let address = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push(Gpu { address, state: state(&device) });
    }
    found
}

fn state(device: &Path) -> Sleep {
    match attribute(device, "power/runtime_status").as_deref() {
        Some("suspended") => Sleep::Asleep,
        None | Some("unsupported" | "error") => Sleep::Unsupported,
        Some(_) if attribute(device, "power/control").as_deref() == Some("on") => Sleep::Forbidden,
        Some(_) => Sleep::Awake,
    }
}

/// What a person should know about GPUs that stay awake; `None`: all sleep.
#[must_use]
pub fn complaint(gpus: &[Gpu]) -> Option<String> {
    let awake: Vec<String> = gpus
        .iter()
        .filter_map(|Gpu { address, state }| {
            Some(match state {
                Sleep::Asleep => return None,
                Sleep::Awake => format!(
                    "GPU {address} is closed and stays awake: another program uses it; \
                     see: fuser -v /dev/nvidia* /dev/dri/*"
                ),
                Sleep::Forbidden => format!(
                    "GPU {address} is closed and may not sleep; allow it: \
                     echo auto > /sys/bus/pci/devices/{address}/power/control"
                ),
                Sleep::Unsupported => {
                    format!("GPU {address} is closed, and its driver cannot put it to sleep")
                }
            })
        })
        .collect();
    (!awake.is_empty()).then(|| awake.join("; "))
}
