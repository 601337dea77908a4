// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tiers: adapters that hold slabs, behind the one trait of `engine::tier`.

pub mod fault;
pub mod ram;
pub mod spill;
