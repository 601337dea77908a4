// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve --tier vulkan` as it is shipped, on the GPU of `vulkan_support`.

mod vulkan_support;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice::block::nbd::client::Client;
use sluice::engine::view::Status;

const PAGE: usize = 4096;

fn program() -> PathBuf {
    std::env::var_os("SLUICE_BIN_DIR")
        .map(|folder| Path::new(&folder).join("sluice"))
        .or_else(|| option_env!("CARGO_BIN_EXE_sluice").map(PathBuf::from))
        .expect("SLUICE_BIN_DIR names the folder of the program under test")
}

/// Runs the program to its end: exit code, and all that it said.
fn ask(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(program()).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text + &said)
}

/// A server that runs; killed when dropped.
struct Served {
    child: Child,
    folder: tempfile::TempDir,
}

impl Served {
    /// Starts it; `Err` is what it said if it ends before it serves.
    fn start(arguments: &[&str]) -> Result<Self, (ExitStatus, String)> {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(program())
            .args(["serve", "--socket"])
            .arg(folder.path().join("socket"))
            .arg("--control")
            .arg(folder.path().join("control"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It says so when it listens, and closes its output when it ends.
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("serving ") {
            return Ok(Self { child, folder });
        }
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        Err((child.wait().unwrap(), said))
    }

    fn on_the_gpu(arguments: &[&str]) -> Self {
        let device = vulkan_support::device().to_string();
        let library = vulkan_support::library();
        let mut all = vec!["--tier", "vulkan", "--vulkan-device", &device];
        if let Some(library) = &library {
            all.extend(["--vulkan-library", library.to_str().unwrap()]);
        }
        all.extend(arguments);
        Self::start(&all).unwrap_or_else(|(status, said)| panic!("{status}: {said}"))
    }

    fn client(&self) -> Client {
        Client::connect(&self.folder.path().join("socket"), "").unwrap()
    }

    /// A verified workload of `sluice bench`: how many reads were compared.
    fn bench(&self, arguments: &[&str]) -> u64 {
        let socket = format!("unix:{}", self.folder.path().join("socket").display());
        let (code, text) = ask(&[&["bench", &socket, "--json"], arguments].concat());
        assert_eq!(code, 0, "{text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let result = &report["results"][0]["median"];
        assert_eq!((&result["mismatches"], &result["errors"]), (&0.into(), &0.into()), "{text}");
        result["verified"].as_u64().unwrap()
    }

    fn status(&self) -> Status {
        let control = self.folder.path().join("control");
        let (code, text) = ask(&["status", "--json", "--socket", control.to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pages_are_right_over_one_and_four_connections_of_small_and_large_requests() {
    let served = Served::on_the_gpu(&["--size", "128M"]);
    for work in [
        &["--connections", "1", "--depth", "1", "--write", "50"][..],
        &["--connections", "4", "--depth", "32", "--write", "50"],
        &["--block", "1M", "--depth", "4", "--write", "50"],
    ] {
        let verified = served.bench(&[work, &["--seconds", "1"]].concat());
        assert!(verified > 0, "{work:?} read nothing");
    }
    served.stop();
}

#[test]
fn the_status_names_the_tier_and_what_it_holds() {
    let served = Served::on_the_gpu(&["--size", "128M"]);
    let mut client = served.client();
    client.write(0, &vec![7; PAGE]).unwrap();
    let status = served.status();
    assert_eq!(status.tiers[0].name, "vulkan:0");
    assert_eq!((status.tiers[0].kind.as_str(), status.tiers[0].slabs_held), ("fast", 2));
    let about = &status.tiers[0].about;
    assert!(about.contains("GPU-") && about.contains("128 MiB of it mapped"), "{about}");
    assert!(about.contains("pages move by the CPU by "), "{about}");
    let mut found = vec![0; PAGE];
    client.read(0, &mut found).unwrap();
    assert_eq!(found, vec![7; PAGE]);
    drop(client);
    served.stop();
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let absent = ["--tier", "vulkan", "--vulkan-device", "99", "--size", "64M"];
    let Err((status, said)) = Served::start(&absent) else { panic!("there is a GPU 99") };
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("no GPU 99 here; the Vulkan drivers have 0 ("), "{said}");
    assert!(said.contains("\n  next: ") && said.contains("--vulkan-device"), "{said}");
    let nowhere = ["--tier", "vulkan", "--vulkan-library", "/nonexistent/v.so", "--size", "64M"];
    let Err((status, said)) = Served::start(&nowhere) else { panic!("there is such a loader") };
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("the Vulkan loader /nonexistent/v.so does not exist"), "{said}");
}
