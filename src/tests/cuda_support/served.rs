// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve` as it is shipped, on a socket of its own.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice::block::nbd::client::Client;

/// A program under test.
pub fn program(name: &str) -> PathBuf {
    let built = match name {
        "sluice" => option_env!("CARGO_BIN_EXE_sluice"),
        _ => option_env!("CARGO_BIN_EXE_sluice-store"),
    };
    std::env::var_os("SLUICE_BIN_DIR")
        .map(|folder| Path::new(&folder).join(name))
        .or_else(|| built.map(PathBuf::from))
        .expect("SLUICE_BIN_DIR names the folder of the programs under test")
}

/// A spill of 64 MiB in `folder`.
pub fn spill_in(folder: &Path) -> PathBuf {
    let spill = folder.join("spill");
    let made = Command::new(program("sluice"))
        .args(["spill", "create", "--size", "64M"])
        .arg(&spill)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    spill
}

/// What a program that ended had to say.
pub struct Ended {
    pub status: ExitStatus,
    pub stderr: String,
}

/// A server that runs; killed when dropped.
pub struct Served {
    child: Child,
    pub socket: PathBuf,
}

impl Served {
    /// Starts `sluice serve --tier cuda`; `Err` if it ends before it serves.
    pub fn start(
        folder: &Path,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> Result<Self, Ended> {
        let socket = folder.join("socket");
        let mut child = Command::new(program("sluice"))
            .args(["serve", "--tier", "cuda", "--socket"])
            .arg(&socket)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It says so when it listens, and closes its output when it ends.
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("serving ") {
            return Ok(Self { child, socket });
        }
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Err(Ended { status: child.wait().unwrap(), stderr })
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::connect(&self.socket, "").unwrap()
    }

    /// Whether the process lives and lets a new client in.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none() && Client::connect(&self.socket, "").is_ok()
    }

    /// A verified workload of `sluice bench`: exit code and report.
    pub fn bench(&self, arguments: &[&str]) -> (i32, Value) {
        let output = Command::new(program("sluice"))
            .arg("bench")
            .arg(format!("unix:{}", self.socket.display()))
            .arg("--json")
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let report = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
        });
        (output.status.code().unwrap(), report)
    }

    /// Asks it to end, and waits.
    pub fn stop(mut self) -> Ended {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Ended { status: self.child.wait().unwrap(), stderr }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already after `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
