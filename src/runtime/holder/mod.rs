// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes a store outlive its own death.
//!
//! [`process`] is the holder: a tiny parent that keeps descriptors and starts
//! the store again. [`custody`] is the store's side of it: whatever must
//! survive is handed over before it is used. [`inventory`] is what a store
//! finds when it is started by a holder that has something.
//!
//! # Order
//! * A slab is kept, and the holder has said so, before any of its slots is
//!   given out ([`kept_tier`]). So no entry of the index ever names memory that
//!   would die with the store.
//! * A slab is let go of when it is retired: then all 32 slots are free, an
//!   extent's entry is emptied or flipped before its slot is freed, and a
//!   retired slab gives no slots, so no entry names it, nor can one until it is
//!   taken and kept again. Whether the tier releases it before or after that
//!   makes no difference to anybody who recovers in between: a slab that is
//!   kept and not named is an empty one.
//! * The description of a device is kept before the kernel is told of it, with
//!   the identifier that the kernel will show; so a device is never orphaned.
//! * A connection is kept before the kernel gets its other end.

pub mod custody;
pub mod description;
pub mod inventory;
pub mod kept_tier;
pub mod message;
pub mod openings;
pub mod process;
pub mod rebuild;
#[cfg(test)]
mod tests;
mod vault;
mod voice;
pub mod watch;

pub use vault::DESCRIPTORS;

use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// Where a store that lives is asked for what it holds: beside its control
/// socket.
#[must_use]
pub fn hold_socket(control: &Path) -> PathBuf {
    control.with_extension("hold")
}

/// Names this process: one that was executed from an open file has a number for
/// a name.
pub fn call_process(name: &CStr) {
    crate::host::armour::set_name(name);
}
