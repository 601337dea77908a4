// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVIDIA's driver on this machine: what files say of it ([`facts`]), and what a
//! configured GPU policy comes to with it ([`means`]).
//!
//! Files are read, below a root so that a tree can stand for a machine; nothing is
//! changed, and no GPU is woken.
#![forbid(unsafe_code)]

pub mod facts;
pub mod means;

pub use facts::{Asks, Facts, Module};
pub use means::{Means, Running, Standing};

#[cfg(test)]
mod tests;
