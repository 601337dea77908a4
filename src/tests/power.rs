// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines as their sysfs shows them, and what is made of it.

use std::path::{Path, PathBuf};

use sluice::engine::arbiter::Power;
use sluice::power::{gpu_sleep, supplies};
use sluice::vram::Gpus;

fn trees(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/trees/power").join(kind);
    let mut found: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn expected(tree: &Path) -> String {
    std::fs::read_to_string(tree.join("expected")).unwrap().trim_end().to_owned()
}

#[test]
fn the_vote_is_right_for_each_machine() {
    for tree in trees("supplies") {
        let said = match supplies::read(&tree.join("root")) {
            Power { on_battery: false, level: None } => "AC".to_owned(),
            Power { on_battery: true, level: None } => "battery".to_owned(),
            Power { on_battery: false, level: Some(level) } => format!("AC, battery at {level} %"),
            Power { on_battery: true, level: Some(level) } => format!("battery at {level} %"),
        };
        assert_eq!(said, expected(&tree), "{}", tree.display());
    }
}

#[test]
fn a_gpu_that_stays_awake_is_reported_with_what_to_do() {
    for tree in trees("gpus") {
        let said = gpu_sleep::complaint(&gpu_sleep::read(&tree.join("root")));
        let said = said.unwrap_or_else(|| "nothing to say".to_owned());
        assert_eq!(said, expected(&tree), "{}", tree.display());
    }
}

#[test]
fn what_others_leave_of_a_gpu_is_read_from_control_groups() {
    // Nothing but the trees is asked: there is no NVML beside this library.
    let nowhere = Some(Path::new("/nowhere/libcuda.so.1"));
    for tree in trees("vram") {
        let root = tree.join("root");
        let gpus = Gpus::open(&root, nowhere);
        let asked = std::fs::read_to_string(tree.join("asked")).unwrap();
        let say = |device: &str| match gpus.memory(device.parse().unwrap()) {
            Ok(None) => format!("{device}: nothing is known"),
            Ok(Some(memory)) => {
                let user = memory.largest.map(|user| format!("; {} uses {}", user.who, user.bytes));
                format!("{device}: {} free{}", memory.free, user.unwrap_or_default())
            }
            Err(error) => format!("{device}: error: {error}"),
        };
        let said: Vec<_> = asked.lines().map(say).collect();
        let said = said.join("\n").replace(&root.display().to_string(), "{root}");
        assert_eq!(said, expected(&tree), "{}", tree.display());
    }
}

#[test]
fn a_machine_without_sysfs_is_a_desktop() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(supplies::read(root.path()), Power::default());
    assert_eq!(gpu_sleep::read(root.path()), Vec::new());
}
