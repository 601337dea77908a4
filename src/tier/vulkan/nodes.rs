// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device nodes of GPUs that this process has open, below a root.

use std::path::Path;

use crate::engine::error::{Error, Kind, Result};

/// Where the nodes of GPUs are.
const GPUS: [&str; 3] = ["/dev/nvidia", "/dev/dri/", "/dev/kfd"];

/// Those that are open, sorted, each once.
pub fn open_nodes(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("proc/self/fd");
    let unreadable = |error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot list {}", folder.display())).with_source(error)
    };
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        // A descriptor of another thread may be gone by now.
        let Ok(target) = std::fs::read_link(entry.map_err(unreadable)?.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if GPUS.iter().any(|gpu| target.starts_with(gpu)) {
            nodes.push(target);
        }
    }
    nodes.sort();
    nodes.dedup();
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn open_nodes_are_those_of_gpus_each_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/self/fd");
        std::fs::create_dir_all(&folder).unwrap();
        for (fd, target) in [
            ("3", "/dev/nvidiactl"),
            ("4", "/dev/null"),
            ("5", "/dev/dri/renderD128"),
            ("6", "/dev/dri/renderD128"),
        ] {
            symlink(target, folder.join(fd)).unwrap();
        }
        let nodes = open_nodes(root.path()).unwrap();
        assert_eq!(nodes, ["/dev/dri/renderD128", "/dev/nvidiactl"]);
    }
}
