// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's lock protocols, the very files, over the model checker's
//! atomics: each test tries every interleaving of its threads, with up to
//! [`PREEMPTIONS`] of them forced, and every value that a weakly ordered
//! machine may show a load.
//!
//! This is a library, so that the files' own `cfg(test)` parts, which need no
//! model, stay out. An extent has [`units::PAGES_PER_EXTENT`] pages here: two
//! words of page map, so that runs across words are tried and scans stay short.
#![forbid(unsafe_code)]
#![allow(dead_code)]

#[path = "../../engine/error.rs"]
pub mod error;
#[path = "../../engine/index.rs"]
pub mod index;
#[path = "../../engine/layout.rs"]
pub mod layout;
#[path = "../../engine/pins.rs"]
pub mod pins;
#[path = "../../engine/slots.rs"]
pub mod slots;

#[path = "../../engine/units.rs"]
mod real_units;

/// Linters look at the files' test parts as well, which simulate crashes.
#[cfg(test)]
#[path = "../../engine/crash.rs"]
mod crash;

/// The engine's units, with short extents.
pub mod units {
    pub use super::real_units::{ExtentIndex, SlabIndex, SlotIndex};

    /// Two words of page map.
    pub const PAGES_PER_EXTENT: usize = 128;
}

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

/// Forced switches per execution. Two find every mutation listed in the test
/// files; each more multiplies the executions.
pub const PREEMPTIONS: usize = 2;

/// Runs `model` over all interleavings.
pub fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}
