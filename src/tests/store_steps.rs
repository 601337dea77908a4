// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store sleep`, `wake` and `shutdown`, against a store that says what
//! the test wants: what they ask, what they leave behind, and how they end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

const STORE: &str = env!("CARGO_BIN_EXE_sluice-store");
const TARGET: u64 = 2_147_483_648;

/// A store of one tier, as its status shows it.
fn status(tier: &str, open: bool, held: u64, pid: u32) -> Value {
    let mut status: Value = serde_json::from_str(include_str!("trees/status/reply.json")).unwrap();
    status["devices"] = json!([]);
    status["pid"] = json!(pid);
    let tiers = status["tiers"].as_array_mut().unwrap();
    tiers.truncate(1);
    (tiers[0]["name"], tiers[0]["open"]) = (json!(tier), json!(open));
    (tiers[0]["held_bytes"], tiers[0]["target_bytes"]) = (json!(held), json!(TARGET));
    status
}

fn outcome(ended: &str) -> Value {
    let done = include_str!("trees/order/done.json");
    let mut outcome: Value = serde_json::from_str(done).unwrap();
    outcome["outcome"] = json!(ended);
    outcome
}

/// A store that answers each command; what it was asked but for its status.
struct World {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl World {
    fn new(answer: impl Fn(&str) -> Value + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("store.sock")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        // Ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                let request: Value = serde_json::from_str(&line).unwrap();
                let command = request["command"].as_str().unwrap().to_owned();
                if command != "status" {
                    heard.lock().unwrap().push(request);
                }
                // Who asked may have gone away.
                let _ = writeln!(stream, "{}", answer(&command));
            }
        });
        Self { folder, asked }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("store.sock")
    }

    /// Exit code and standard error.
    fn run(&self, verb: &str) -> (i32, String) {
        run(&[verb, "--socket", self.socket().to_str().unwrap()])
    }

    fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn note(&self) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join("store.asleep")).ok()
    }
}

fn run(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(STORE)
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("NOTIFY_SOCKET")
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn back_to_before() -> Value {
    json!({"command": "target", "bytes": TARGET, "deadline_ms": 0})
}

#[test]
fn a_store_without_a_gpu_sleeps_as_it_is() {
    let world = World::new(|_| status("ram", true, TARGET, 1));
    let (code, said) = world.run("sleep");
    assert_eq!((code, world.asked(), world.note()), (0, vec![], None), "{said}");
    assert_eq!((world.run("wake"), world.asked()), ((0, String::new()), vec![]));
}

#[test]
fn the_gpu_is_closed_before_sleep_and_may_be_used_as_before_after() {
    let closed = Arc::new(Mutex::new(false));
    let world = World::new(move |command| {
        let mut closed = closed.lock().unwrap();
        match command {
            "status" if *closed => status("cuda:0", false, 0, 1),
            "status" => status("cuda:0", true, TARGET, 1),
            _ => {
                *closed = true;
                outcome("done")
            }
        }
    });
    let (code, said) = world.run("sleep");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the GPUs are closed"), "{said}");
    assert_eq!(world.asked(), [json!({"command": "close_gpu", "deadline_ms": 600_000})]);
    assert_eq!(world.note(), Some(TARGET.to_string()));
    assert_eq!(world.run("wake").0, 0);
    assert_eq!((world.asked(), world.note()), (vec![back_to_before()], None));
    // Once is enough: a second wake would undo what was ordered since.
    assert_eq!((world.run("wake").0, world.asked()), (0, vec![]));
}

#[test]
fn a_gpu_that_cannot_be_closed_forbids_sleep_and_is_used_as_before() {
    let refusal = json!({"error": "there is no spill for 2 GiB"});
    for (answer, says) in [
        (refusal, "no spill"),
        (outcome("continues"), "are still on GPUs"),
        // It says so, and the status says otherwise.
        (outcome("done"), "cuda:0 is still open"),
    ] {
        let given = answer.clone();
        let world = World::new(move |command| match command {
            "status" => status("cuda:0", true, TARGET, 1),
            "close_gpu" => given.clone(),
            _ => outcome("done"),
        });
        let (code, said) = world.run("sleep");
        assert_eq!(code, 1, "{answer}: {said}");
        assert!(said.contains(says) && said.contains("must not sleep"), "{answer}: {said}");
        assert_eq!((world.asked().pop(), world.note()), (Some(back_to_before()), None), "{said}");
    }
}

/// Killed when the test fails.
struct Stand(Child);

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_whose_swap_is_off_is_told_to_end_at_shutdown() {
    let mut store = Stand(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = store.0.id();
    let world = World::new(move |_| status("cuda:0", true, TARGET, pid));
    let (code, said) = world.run("shutdown");
    assert_eq!((code, world.asked()), (0, vec![]), "{said}");
    assert!(said.contains("the store has ended"), "{said}");
    let ended = store.0.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15));
}

#[test]
fn without_a_store_a_shutdown_has_nothing_to_do_and_sleep_fails() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("store.sock");
    let at = ["--socket", socket.to_str().unwrap()];
    let (code, said) = run(&[&["shutdown"], &at[..]].concat());
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("no store runs"), "{said}");
    for verb in ["sleep", "freeze"] {
        let (code, said) = run(&[&[verb], &at[..]].concat());
        assert_eq!(code, 1, "{verb}: {said}");
        assert!(said.contains("no store is running there"), "{verb}: {said}");
    }
    for verb in ["wake", "thaw"] {
        assert_eq!(run(&[&[verb], &at[..]].concat()), (0, String::new()), "{verb}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_argument_of_another_command_or_out_of_range_is_wrong_usage() {
    for words in [
        &["sleep", "--within", "0"][..],
        &["sleep", "--within", "3601"],
        &["sleep", "--within", "soon"],
        &["sleep", "--spare", "a.service"],
        &["wake", "--within", "5"],
        &["thaw", "--spare", "a.service"],
        &["shutdown", "--force"],
        &["shutdown", "/dev/nbd0"],
        &["freeze", "--config", "/x"],
        &["detach", "--within", "5"],
        &["hold", "--spare", "a.service"],
        &["hibernate"],
        &[],
    ] {
        let (code, said) = run(words);
        assert_eq!(code, 2, "{words:?}: {said}");
        assert!(said.contains("next: sluice-store --help"), "{words:?}: {said}");
    }
}
