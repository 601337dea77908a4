// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has the driver's device nodes open, and which of its libraries are there.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::doctor::{LIBRARY_DIRS, names};
use crate::driver::facts::is_release;

/// The libraries that only work with the module of their own release.
const LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];
const NODES: &str = "/dev/nvidia";

/// A library of the driver, by its file's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Library {
    pub path: PathBuf,
    pub release: String,
}

/// Processes that have a device node of the driver open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Users {
    pub users: Vec<User>,
    /// How many processes could not be looked into.
    pub hidden_processes: usize,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub pid: u32,
    pub name: String,
    pub nodes: Vec<String>,
}

/// The libraries below `root`, in the order of the folders that are looked into.
pub(super) fn libraries(root: &Path) -> Vec<Library> {
    let mut found = Vec::new();
    for folder in LIBRARY_DIRS {
        for name in names(&root.join(folder)) {
            let release = LIBRARIES.iter().find_map(|library| name.strip_prefix(library));
            if let Some(release) = release.filter(|release| is_release(release)) {
                let path = Path::new("/").join(folder).join(&name);
                found.push(Library { path, release: release.to_owned() });
            }
        }
    }
    found
}

impl Users {
    /// Looks at the open files of every process below `root`.
    pub fn read(root: &Path) -> Self {
        let proc = root.join("proc");
        let mut all = Self::default();
        let mut pids: Vec<u32> = names(&proc).iter().filter_map(|name| name.parse().ok()).collect();
        pids.sort_unstable();
        for pid in pids {
            let folder = proc.join(pid.to_string());
            let Ok(files) = fs::read_dir(folder.join("fd")) else {
                // The kernel's own threads have no command line, and no node open; a
                // process that has ended has none either.
                let has_command = fs::read(folder.join("cmdline")).is_ok_and(|c| !c.is_empty());
                all.hidden_processes += usize::from(has_command);
                continue;
            };
            let mut nodes: Vec<String> = files
                .filter_map(|file| {
                    fs::read_link(file.ok()?.path()).ok()?.into_os_string().into_string().ok()
                })
                .filter(|path| path.starts_with(NODES))
                .collect();
            nodes.sort();
            nodes.dedup();
            if !nodes.is_empty() {
                let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
                all.users.push(User { pid, name: name.trim().to_owned(), nodes });
            }
        }
        all
    }
}
