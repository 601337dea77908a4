// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tiers: adapters that hold slabs, behind the one trait of `engine::tier`.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod driver_library;
pub mod fault;
pub mod ram;
pub mod spill;
#[cfg(feature = "vulkan")]
pub mod vulkan;
