// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading the file, below a root directory so that tests and image builders
//! can point it at another tree.

use std::path::Path;

use super::check;
use super::policies::Policies;
use super::problem::ConfigError;
use super::schema::Config;

/// Where the configuration is unless a path is given.
pub const DEFAULT_PATH: &str = "/etc/sluice/sluice.toml";

/// Reads and checks `path`, taken below `root`. Errors name `path` itself.
pub fn load(root: &Path, path: &Path) -> Result<Config, ConfigError> {
    parse(path, read(root, path)?)
}

/// As [`load`], but of `[policies]` alone: a machine without swap may have policies.
pub fn load_policies(root: &Path, path: &Path) -> Result<Option<Policies>, ConfigError> {
    let text = read(root, path)?;
    check::policies(&text).map_err(|problems| ConfigError::Invalid {
        path: path.to_path_buf(),
        text,
        problems,
    })
}

/// The file's text, unchecked.
pub fn read(root: &Path, path: &Path) -> Result<String, ConfigError> {
    let place = below(root, path);
    std::fs::read_to_string(&place)
        .map_err(|source| ConfigError::Unreadable { path: place, source })
}

/// Checks a text that was read from `path` once.
pub fn parse(path: &Path, text: String) -> Result<Config, ConfigError> {
    check::check(&text).map_err(|problems| ConfigError::Invalid {
        path: path.to_path_buf(),
        text,
        problems,
    })
}

/// `path` as it is called below `root`; a relative path is the caller's own.
fn below(root: &Path, path: &Path) -> std::path::PathBuf {
    match path.strip_prefix("/") {
        Ok(relative) => root.join(relative),
        Err(_) => path.to_path_buf(),
    }
}
