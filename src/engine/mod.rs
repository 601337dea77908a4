// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page store, pure: numbers in, numbers out.
//!
//! It knows no clock, file, GPU, socket, D-Bus, log or unsafe code. Time and
//! memory come in as arguments and traits ([`tier`]); data never passes through
//! its hands, only ranges of host memory and places in slabs.
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod counters;
pub mod error;
mod extent_set;
pub mod gpu;
pub mod heat;
pub mod housekeeping;
pub mod index;
pub mod io;
pub mod keeper;
pub mod layout;
mod lost_lane;
pub mod mover;
pub mod orders;
pub mod pins;
mod ranges;
pub mod recovery;
pub mod session;
pub mod slots;
pub mod store;
mod sync;
pub mod tier;
pub mod units;
pub mod view;
pub mod window;

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
