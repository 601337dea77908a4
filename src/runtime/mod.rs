// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only layer that sees all others: it wires and runs the programs.

#[cfg(feature = "cli")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod demo;
pub mod serve;
