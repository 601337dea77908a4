// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sluice lends idle GPU memory to the Linux kernel as fast swap.
//!
//! Layers, each seeing only what is to its left (`src/tests/layering.rs` proves it):
//! `engine` (pure) ← `tier`, `block`, `host`, `power`, `vram`, `bus` (adapters, blind to
//! each other) ← `runtime`; `config`, `driver` and `cli` see `engine` and plain data,
//! `tray` sees `bus`.

pub mod config;
pub mod driver;
pub mod engine;

#[cfg(feature = "store")]
pub mod block;
#[cfg(feature = "store")]
pub mod host;
#[cfg(feature = "store")]
pub mod runtime;
#[cfg(feature = "store")]
pub mod tier;

#[cfg(feature = "bus")]
pub mod bus;
#[cfg(feature = "bus")]
pub mod power;
#[cfg(feature = "bus")]
pub mod vram;

#[cfg(feature = "cli")]
pub mod cli;

#[cfg(feature = "tray")]
pub mod tray;
