// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page store, pure: numbers in, numbers out.
//!
//! It knows no clock, file, GPU, socket, D-Bus, log or unsafe code. Time and
//! memory come in as arguments and traits ([`tier`]); data never passes through
//! its hands, only ranges of host memory and places in slabs.
#![forbid(unsafe_code)]

pub mod error;
pub mod io;
pub mod tier;
pub mod units;
pub mod view;
