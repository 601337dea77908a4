// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of the CUDA tier share. The driver's library is the one that
//! `SLUICE_TEST_CUDA_LIBRARY` names, else the fake that is built beside every
//! test program; the programs are those of `SLUICE_BIN_DIR`, else of this build.
//!
//! One process has one driver, so a test that uses it runs in a process of its
//! own: the test program again, with that test alone.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use fake_cuda::control::{Control, VARIABLE};

pub mod bed;
#[cfg(feature = "cli")]
pub mod custody;
pub mod reconnecting;
#[cfg(feature = "cli")]
pub mod served;

/// Names the driver's library for the tests.
pub const LIBRARY: &str = "SLUICE_TEST_CUDA_LIBRARY";

/// Names the way of copying that a process is to test.
pub const WAY: &str = "SLUICE_TEST_CUDA_COPYING";

/// The library under test.
pub fn library() -> PathBuf {
    std::env::var_os(LIBRARY).map_or_else(fake_library, PathBuf::from)
}

/// The fake one, which the build puts beside the test programs.
pub fn fake_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libfake_cuda.so");
    assert!(
        path.is_file(),
        "{} is missing: set {LIBRARY} to a libcuda.so.1, or build it with cargo build -p sluice-fake-cuda",
        path.display()
    );
    path
}

/// A folder that has the fake as `libcuda.so.1`, for a loader's path.
pub fn fake_folder(folder: &Path) -> PathBuf {
    let place = folder.join("driver");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink(fake_library(), place.join("libcuda.so.1")).unwrap();
    place
}

/// Runs `body` on the fake for each way of copying, in a process and with a
/// control file of its own; `test` is the calling test's full name.
pub fn alone(test: &str, body: impl FnOnce(Control)) {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return body(Control::open(Path::new(&path)).unwrap());
    }
    for way in ["calls", "kernel"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        Control::create(&path).unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        again(test, program.env(VARIABLE, &path).env(WAY, way));
    }
}

/// Runs one test of this program in a new process.
pub fn again(test: &str, command: &mut Command) {
    let output = command.args(["--exact", test, "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
