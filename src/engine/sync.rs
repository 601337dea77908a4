// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomics that the lock protocols are written with. The model checker's
//! member (`src/tests/loom`) compiles the same protocol files over its own.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
