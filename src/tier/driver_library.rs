// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver's library, found and opened at run time: the file that the
//! configuration names and no other, or the first that is found. Nothing is linked.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::engine::error::{Error, Kind, Result};

/// Which library, for errors.
pub struct Wanted {
    /// What it is: "CUDA driver library".
    pub what: &'static str,
    /// What to do where there is none.
    pub install: &'static str,
    /// What to do where the configured one will not do.
    pub correct: &'static str,
}

/// Opens `configured` and nothing else, or the first of `places`.
///
/// Errors: `Missing`, with every place that was looked at.
pub fn open(
    configured: Option<&Path>,
    places: &[&str],
    wanted: &Wanted,
) -> Result<(Handle, PathBuf)> {
    let Some(path) = configured else { return search(places, wanted) };
    load(path).map(|handle| (handle, path.to_path_buf())).map_err(|why| {
        let (what, shown) = (wanted.what, path.display());
        let text = if path.exists() {
            format!("cannot load the {what} {shown}: {why}")
        } else {
            format!("the {what} {shown} does not exist")
        };
        Error::new(Kind::Missing, text).with_hint(wanted.correct)
    })
}

fn search(places: &[&str], wanted: &Wanted) -> Result<(Handle, PathBuf)> {
    let mut tried = Vec::new();
    for place in places.iter().map(Path::new) {
        match load(place) {
            Ok(handle) => return Ok((handle, place.to_path_buf())),
            // A file that is there and cannot be loaded is worth its reason.
            Err(why) if place.is_absolute() && place.exists() => tried.push(why),
            Err(_) => tried.push(place.display().to_string()),
        }
    }
    let text = format!("no {}; looked for {}", wanted.what, tried.join(", "));
    Err(Error::new(Kind::Missing, text).with_hint(wanted.install))
}

fn load(path: &Path) -> std::result::Result<Handle, String> {
    // All symbols are bound now: binding one later would run the loader of
    // libraries, which may allocate, on a thread that serves swap.
    // SAFETY: a driver's initialisers are sound to run; the file is one that the
    // administrator or the distribution put there for this purpose.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}
