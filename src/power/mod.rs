// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the machine says about power and sleep: the supply ([`upower`], else
//! [`supplies`] and [`uevent`]), sleep and shutdown ([`logind`]), memory
//! pressure ([`pressure`]), and whether a GPU sleeps ([`gpu_sleep`]).
//!
//! It observes; the engine's arbiter decides. No file is read that would wake a
//! sleeping GPU. Every path is below a root that the caller gives.
#![forbid(unsafe_code)]

pub mod gpu_sleep;
pub mod logind;
pub mod pressure;
pub mod supplies;
pub mod uevent;
pub mod upower;

use std::path::Path;

/// A file's content without blanks around it; `None` where there is none.
fn attribute(directory: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

/// The folders in a folder, by name; none where it is not there.
fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    let listed = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = listed.map(|entry| entry.path()).collect();
    found.sort();
    found
}
