// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of the Vulkan tier share. The GPU is the one that
//! `SLUICE_TEST_VULKAN_DEVICE` names, by number, UUID or PCI address, else the
//! software device of Mesa; the loader is the system's, or the file that
//! `SLUICE_TEST_VULKAN_LIBRARY` names. Nothing is skipped.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::path::PathBuf;

use sluice::engine::error::Result;
use sluice::engine::gpu::GpuSelector;
use sluice::tier::vulkan::{Options, VulkanTier, offers};

/// Names the GPU for the tests.
pub const DEVICE: &str = "SLUICE_TEST_VULKAN_DEVICE";
/// Names the loader for the tests.
pub const LIBRARY: &str = "SLUICE_TEST_VULKAN_LIBRARY";

pub fn library() -> Option<PathBuf> {
    std::env::var_os(LIBRARY).map(PathBuf::from)
}

/// The GPU under test.
pub fn device() -> GpuSelector {
    if let Some(named) = std::env::var_os(DEVICE) {
        return named.to_str().unwrap().parse().unwrap();
    }
    let offers = offers(library().as_deref()).unwrap_or_else(|error| {
        panic!("{error}: install mesa-vulkan-drivers and libvulkan1, or name a GPU with {DEVICE}")
    });
    let software = offers.iter().find(|offer| offer.software);
    let software = software.unwrap_or_else(|| {
        panic!("no software device among {offers:?}: install mesa-vulkan-drivers, or set {DEVICE}")
    });
    GpuSelector::Index(software.number)
}

pub fn options(slabs: u32) -> Options {
    Options {
        number: 0,
        library: library(),
        device: Some(device()),
        max_slabs: slabs,
        by: None,
        mapped: true,
        root: PathBuf::from("/"),
    }
}

/// Opens a tier on the GPU under test.
pub fn open(slabs: u32) -> Result<VulkanTier> {
    VulkanTier::open(options(slabs))
}
