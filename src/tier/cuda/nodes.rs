// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's device nodes: why they cannot be used, and which of them this
//! process still has open. Everything is looked for below a root.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use crate::engine::error::{Error, Kind, Result};

/// Without these two the driver's library can do nothing.
const NEEDED: [&str; 2] = ["dev/nvidiactl", "dev/nvidia-uvm"];

/// Why a start of the driver failed, as far as its nodes tell.
#[derive(Debug, PartialEq, Eq)]
pub struct Trouble {
    /// `Missing` or `Denied`.
    pub kind: Kind,
    /// What is wrong with which node.
    pub what: String,
    /// The next step.
    pub hint: &'static str,
}

/// What is wrong with the nodes; `None`: they are there and may be opened.
/// Asked only after the driver refused to start.
pub fn trouble(root: &Path) -> Option<Trouble> {
    NEEDED.iter().find_map(|name| {
        let node = root.join(name);
        let error = OpenOptions::new().read(true).write(true).open(&node).err()?;
        let shown = node.display();
        Some(match error.kind() {
            ErrorKind::NotFound => Trouble {
                kind: Kind::Missing,
                what: format!("{shown} does not exist"),
                hint: "load the kernel modules nvidia and nvidia-uvm and make their nodes: nvidia-modprobe -c 0 -u",
            },
            ErrorKind::PermissionDenied => Trouble {
                kind: Kind::Denied,
                what: format!("{shown} may not be opened: {error}"),
                hint: "allow it: DeviceAllow=char-nvidia* of the unit, the node's group, or the container's devices",
            },
            _ => Trouble {
                kind: Kind::Io,
                what: format!("{shown} cannot be opened: {error}"),
                hint: "look for NVRM lines in the kernel's log: journalctl -k -g NVRM",
            },
        })
    })
}

/// The device nodes of the driver that this process has open, sorted, each once.
pub fn open_nodes(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("proc/self/fd");
    let unreadable = |error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot list {}", folder.display())).with_source(error)
    };
    let ours = root.join("dev/nvidia").to_string_lossy().into_owned();
    let mut nodes = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        // A descriptor of another thread may be gone by now.
        let Ok(target) = std::fs::read_link(entry.map_err(unreadable)?.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with(&ours) {
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
    fn the_first_node_that_cannot_be_opened_is_named() {
        let root = tempfile::tempdir().unwrap();
        let trouble_now = || trouble(root.path());
        let first = trouble_now().unwrap();
        assert_eq!(first.kind, Kind::Missing);
        assert!(first.what.ends_with("dev/nvidiactl does not exist"), "{}", first.what);
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        let second = trouble_now().unwrap();
        assert!(second.what.contains("nvidia-uvm"), "{}", second.what);
        // A folder cannot be opened for writing, whoever asks.
        std::fs::create_dir(root.path().join("dev/nvidia-uvm")).unwrap();
        assert_eq!(trouble_now().unwrap().kind, Kind::Io);
        std::fs::remove_dir(root.path().join("dev/nvidia-uvm")).unwrap();
        std::fs::write(root.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(trouble_now(), None);
    }

    #[test]
    fn open_nodes_are_those_of_the_driver_each_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/self/fd");
        std::fs::create_dir_all(&folder).unwrap();
        let node = |name: &str| root.path().join("dev").join(name);
        for (fd, name) in [("3", "nvidiactl"), ("4", "null"), ("5", "nvidia0"), ("6", "nvidia0")] {
            symlink(node(name), folder.join(fd)).unwrap();
        }
        let expected = ["nvidia0", "nvidiactl"].map(|name| node(name).display().to_string());
        assert_eq!(open_nodes(root.path()).unwrap(), expected);
    }
}
