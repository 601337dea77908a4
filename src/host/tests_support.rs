// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines that are not this one, and refusals on purpose, for this layer's tests.

use std::fs;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// A root with the given files below it.
pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// Taken by tests that change or depend on what the process as a whole may do.
pub(super) static PROCESS: Mutex<()> = Mutex::new(());

/// Runs `test` on a thread without the `dropped` capabilities and with a small
/// soft limit on locked memory.
pub(super) fn without(dropped: CapabilitySet, test: impl FnOnce() + Send) {
    let _alone = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Memlock);
    let small = Rlimit { current: Some(64 << 10), maximum: before.maximum };
    setrlimit(Resource::Memlock, small).unwrap();
    let run = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= dropped;
        set_capabilities(None, sets).unwrap();
        test();
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    setrlimit(Resource::Memlock, before).unwrap();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
