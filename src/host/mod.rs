// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store needs of the machine it runs on: locked memory, swap, scheduling.
//!
//! Functions here return facts and errors and never log. Those that read
//! `/proc` or `/sys` take the root to read below (`/` in production), so that
//! tests can show them any machine.

pub mod armour;
pub mod detach;
pub mod freezer;
pub mod handover;
pub mod kept;
pub mod memory;
pub mod modules;
pub mod process;
pub mod queue;
pub mod shared_memory;
pub mod signals;
pub mod swap;
mod sysfs;

#[cfg(test)]
mod tests_support;
