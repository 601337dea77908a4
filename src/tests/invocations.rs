// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `sluice` program as a person meets it: exit codes, error texts, golden
//! outputs. `BLESS=1 cargo test` writes the golden files anew, to be reviewed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod benchmarks;
mod exposition;
mod faulty_server;
mod top;

const TREES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/trees");

/// What a run gave.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `sluice` in `dir`.
pub(crate) fn sluice_in<I: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = I>) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(args)
        .current_dir(dir)
        // Whether this machine runs sluiced is no matter.
        .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Outcome {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn sluice(args: &[&str]) -> Outcome {
    sluice_in(Path::new("/"), args)
}

fn expect(golden: &Path, found: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(golden, found).unwrap();
    }
    let expected = std::fs::read_to_string(golden)
        .unwrap_or_else(|error| panic!("{}: {error}; it was\n{found}", golden.display()));
    assert_eq!(found, expected, "differs from {}", golden.display());
}

fn entries(dir: &Path, extension: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| extension.is_none_or(|wanted| path.extension() == Some(OsStr::new(wanted))))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{} is empty", dir.display());
    found
}

const SERVE_CUDA: [&str; 7] = ["serve", "--tier", "cuda", "--size", "1G", "--socket", "/x"];

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_right() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage: sluice"),
        (&["status", "--metrics", "--json"], "cannot be used with"),
        (&["top", "--interval", "99ms"], "at least 100ms"),
        (&["top", "--count", "0"], "0 is not in 1.."),
        (&["statsu"], "similar subcommand exists: 'status'"),
        (&["status", "--jason"], "argument exists: '--json'"),
        (&[&SERVE_CUDA[..], &["--cuda-device", "GPU-1"]].concat(), "nvidia-smi -L"),
        (&[&SERVE_CUDA[..], &["--cuda-library", "libcuda.so"]].concat(), "not an absolute path"),
        (
            &["serve", "--tier", "ram", "--size", "1G", "--socket", "/x", "--cuda-device", "1"],
            "--cuda-library with --tier ram",
        ),
        (
            &[&SERVE_CUDA[..], &["--vulkan-device", "1"]].concat(),
            "--vulkan-library with --tier cuda",
        ),
        (
            &["serve", "--tier", "disk", "--size", "1G", "--socket", "/x"],
            "ram, cuda, vulkan and auto",
        ),
        (&["serve", "--tier", "ram", "--size", "65M", "--socket", "/x"], "\"64M\" and \"66M\""),
        (&["serve", "--tier", "ram", "--size", "1g", "--socket", "/x"], "512M"),
        (&["serve", "--tier", "ram", "--size", "1M", "--socket", "/x"], "the least is \"64M\""),
        (&["serve", "--tier", "ram", "--size", "1G"], "--socket <PATH>"),
        (&["bench"], "<TARGET>"),
        (&["bench", "unix:"], "no path after unix:"),
        (&["bench", "nbd://host/x"], "only nbd+unix:// is known"),
        (&["bench", "unix:/x", "--block", "5000"], "multiple of 4K"),
        (&["bench", "unix:/x", "--block", "2M"], "from 4K to 1M"),
        (&["bench", "unix:/x", "--write", "101"], "0..=100"),
        (&["bench", "unix:/x", "--sporadic", "--pause", "5"], "cannot be used with"),
        (&["bench", "unix:/x", "--sporadic", "--depth", "2"], "one at a time"),
        (&["bench", "unix:/x", "--sporadic", "--block", "8K"], "single pages"),
        (&["bench", "unix:/x", "--interval", "5"], "--sporadic"),
        (&["demo", "--seconds", "0"], "1..=3600"),
        (&["vram", "target"], "<SIZE>"),
        (&["vram", "target", "1.5G"], "512M"),
        (&["vram", "target", "-1"], "unexpected argument"),
        (&["vram", "drain", "--within", "5"], "e.g. 5s"),
        (&["vram", "drain", "--within", "61m"], "at most 60m"),
        (&["vram", "fill"], "unrecognized subcommand"),
        (&["gpu", "readmit"], "<TIER>"),
        (&["spill", "create", "/x/spill"], "--size <SIZE>"),
        (&["spill", "create", "/x/spill", "--size", "1M"], "the least is \"64M\""),
        (&["spill", "check"], "<PATH>"),
        (
            &["config", "check", "/nonexistent.toml"],
            "cannot read the configuration /nonexistent.toml",
        ),
        (&["config", "check", "--root", "/nonexistent"], "/nonexistent/etc/sluice/sluice.toml"),
    ];
    for (args, text) in cases {
        let outcome = sluice(args);
        assert_eq!(outcome.code, 2, "{args:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(text),
            "{args:?} does not say {text:?}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
}

#[test]
fn what_is_not_there_exits_with_1_and_a_next_step() {
    let cases: &[(&[&str], &str)] = &[
        (&["status", "--socket", "/nonexistent"], "cannot reach the store at /nonexistent"),
        (&["top", "--socket", "/nonexistent"], "cannot reach the store at /nonexistent"),
        (&["vram", "drain", "--socket", "/nonexistent"], "cannot reach the store"),
        (&["gpu", "readmit", "x", "--socket", "/nonexistent"], "cannot reach the store"),
        (&["spill", "create", "/nonexistent/x", "--size", "64M"], "cannot open the folder"),
        (&["spill", "create", "/dev/null", "--size", "64M"], "something of that name"),
        (&["bench", "unix:/nonexistent"], "cannot reach an NBD server at /nonexistent"),
        (&["bench", "/nonexistent"], "cannot open /nonexistent"),
        (
            &[&SERVE_CUDA[..], &["--cuda-library", "/nonexistent/libcuda.so.1"]].concat(),
            "the CUDA driver library /nonexistent/libcuda.so.1 does not exist",
        ),
    ];
    for (args, text) in cases {
        let outcome = sluice(args);
        assert_eq!(outcome.code, 1, "{args:?}");
        assert!(outcome.stderr.contains(text), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("\n  next: "), "{args:?}: {}", outcome.stderr);
    }
}

#[test]
fn every_command_teaches_with_examples() {
    let commands: &[&[&str]] = &[
        &[],
        &["demo"],
        &["serve"],
        &["bench"],
        &["status"],
        &["top"],
        &["vram", "target"],
        &["vram", "drain"],
        &["vram", "resume"],
        &["gpu", "close"],
        &["gpu", "readmit"],
        &["spill", "create"],
        &["spill", "check"],
        &["doctor"],
        &["driver", "check"],
        &["config", "check"],
        &["config", "show"],
        &["completions"],
        &["man"],
    ];
    for command in commands {
        let outcome = sluice(&[command, &["--help"][..]].concat());
        assert_eq!(outcome.code, 0, "{command:?}");
        assert!(outcome.stdout.contains("Examples:\n  sluice "), "{command:?}: {}", outcome.stdout);
    }
    let help = sluice(&["--help"]).stdout;
    for code in ["  0  done", "  1  failed", "  2  wrong usage", "  3  not done"] {
        assert!(help.contains(code), "{help}");
    }
    assert_eq!(sluice(&["--version"]).stdout, concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn manual_pages_and_completions_cover_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let dir_name = dir.path().to_str().unwrap();
    assert_eq!(sluice(&["man", "--dir", dir_name]).code, 0);
    let commands = [
        "demo",
        "serve",
        "bench",
        "status",
        "top",
        "vram",
        "gpu",
        "spill",
        "doctor",
        "driver",
        "config",
        "completions",
        "man",
    ];
    for command in
        commands.into_iter().chain(["vram-target", "gpu-close", "spill-create", "driver-check"])
    {
        let page = std::fs::read_to_string(dir.path().join(format!("sluice-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME"), "{command}");
    }
    assert!(sluice(&["man"]).stdout.contains(".TH sluice 1"));
    #[cfg(feature = "tray")]
    {
        let page = std::fs::read_to_string(dir.path().join("sluice-tray.1")).unwrap();
        assert!(page.contains(".TH sluice-tray 1"), "{page}");
        let script = sluice(&["completions", "bash", "--program", "sluice-tray"]).stdout;
        assert!(script.contains("--for"), "{script}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sluice(&["completions", shell]).stdout;
        for command in commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let outcome = sluice(&["man", "--dir", "/nonexistent"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("/nonexistent"), "{}", outcome.stderr);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn bad_configurations_say_what_is_wrong_where() {
    let dir = Path::new(TREES).join("config/bad");
    for file in entries(&dir, Some("toml")) {
        let name = file.file_name().unwrap();
        let outcome = sluice_in(&dir, ["config".as_ref(), "check".as_ref(), name]);
        assert_eq!((outcome.code, &*outcome.stdout), (2, ""), "{}", file.display());
        expect(&file.with_extension("expected"), &outcome.stderr);
        let show = sluice_in(&dir, ["config".as_ref(), "show".as_ref(), name]);
        assert_eq!((show.code, show.stderr), (2, outcome.stderr), "{}", file.display());
    }
}

#[test]
fn good_configurations_are_shown_with_every_default() {
    let dir = Path::new(TREES).join("config/good");
    for file in entries(&dir, Some("toml")) {
        let name = file.file_name().unwrap();
        let config = |args: &[&str]| {
            let args = args.iter().map(OsStr::new).chain([name]);
            let outcome = sluice_in(&dir, ["config".as_ref()].into_iter().chain(args));
            assert_eq!((outcome.code, &*outcome.stderr), (0, ""), "{}", file.display());
            outcome.stdout
        };
        expect(&file.with_extension("checked"), &config(&["check"]));
        expect(&file.with_extension("shown"), &config(&["show"]));
        expect(&file.with_extension("json"), &config(&["show", "--json"]));
    }
}

#[test]
fn the_configuration_is_found_below_a_root() {
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc/sluice");
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::copy(Path::new(TREES).join("config/good/least.toml"), etc.join("sluice.toml"))
        .unwrap();
    let outcome = sluice(&["config", "check", "--root", root.path().to_str().unwrap()]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.starts_with("/etc/sluice/sluice.toml: "), "{}", outcome.stdout);
}

#[test]
fn the_doctor_reads_machines_as_they_are() {
    let able = ["01-desktop"];
    for tree in entries(&Path::new(TREES).join("doctor"), None) {
        let root = tree.join("root");
        let doctor = |args: &[&str]| {
            sluice_in(
                Path::new("/"),
                [&["doctor", "--root", root.to_str().unwrap()], args].concat(),
            )
        };
        let report = doctor(&[]);
        let name = tree.file_name().unwrap().to_str().unwrap();
        assert_eq!(report.code, i32::from(!able.contains(&name)), "{name}");
        assert_eq!(report.stderr, "", "{name}");
        expect(&tree.join("expected"), &report.stdout);
        expect(&tree.join("expected.json"), &doctor(&["--json"]).stdout);
    }
}

#[test]
fn the_doctor_runs_on_this_machine() {
    let outcome = sluice(&["doctor"]);
    assert!([0, 1].contains(&outcome.code));
    assert!(outcome.stdout.contains("This machine can:"), "{}", outcome.stdout);
}

#[test]
fn the_driver_is_checked_as_it_is() {
    let failing = ["05-other-user-space", "06-no-driver"];
    for tree in entries(&Path::new(TREES).join("driver"), None) {
        let root = tree.join("root");
        let Some(name) = tree.file_name().and_then(OsStr::to_str).filter(|_| tree.is_dir()) else {
            continue;
        };
        let check = |args: &[&str]| {
            sluice(&[&["driver", "check", "--root", root.to_str().unwrap()], args].concat())
        };
        let report = check(&[]);
        assert_eq!(report.code, i32::from(failing.contains(&name)), "{name}: {}", report.stdout);
        assert_eq!(report.stderr, "", "{name}");
        expect(&tree.join("expected"), &report.stdout);
        expect(&tree.join("expected.json"), &check(&["--json"]).stdout);
    }
}

#[test]
fn the_driver_check_runs_on_this_machine() {
    let outcome = sluice(&["driver", "check"]);
    assert!([0, 1].contains(&outcome.code));
    assert!(outcome.stdout.contains("  nvidia "), "{}", outcome.stdout);
}

/// Answers one request with `reply` and gives back what was asked.
fn store_that_says(
    dir: &Path,
    reply: impl Into<String>,
) -> (PathBuf, std::thread::JoinHandle<String>) {
    let reply = reply.into();
    let socket = dir.join("store.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked).unwrap();
        stream.write_all(reply.as_bytes()).unwrap();
        asked
    });
    (socket, thread)
}

#[test]
fn status_shows_what_the_store_says() {
    const REPLY: &str = concat!(include_str!("trees/status/reply.json"), "\n");
    for (args, golden) in [(&[][..], "expected"), (&["--json"], "expected.json")] {
        let dir = tempfile::tempdir().unwrap();
        let (socket, store) = store_that_says(dir.path(), REPLY);
        let outcome = sluice(&[&["status", "--socket", socket.to_str().unwrap()], args].concat());
        assert_eq!((outcome.code, &*outcome.stderr), (0, ""));
        assert_eq!(store.join().unwrap(), "{\"command\":\"status\"}\n");
        expect(&Path::new(TREES).join("status").join(golden), &outcome.stdout);
    }
}

/// The store's reply, by which it was started with `running.toml` and reads `file` next.
fn reply_with(file: &str, version: &str) -> String {
    let status = Path::new(TREES).join("status");
    let config = sluice::config::load(Path::new("/"), &status.join("running.toml")).unwrap();
    let settings = sluice::config::in_force::of_store(&config);
    let mut reply: serde_json::Value =
        serde_json::from_str(include_str!("trees/status/reply.json")).unwrap();
    reply["configuration"] = serde_json::json!({ "file": file, "settings": settings });
    reply["version"] = version.into();
    format!("{reply}\n")
}

#[test]
fn status_says_what_of_the_file_is_not_in_force() {
    let tree = Path::new(TREES).join("status");
    let now = env!("CARGO_PKG_VERSION");
    for (name, version) in
        [("running", now), ("changed", now), ("changed", "0.0.1"), ("wrong", now), ("gone", now)]
    {
        let is_older = version != now;
        let golden = |kind: &str| {
            tree.join(format!("{name}{}.{kind}", if is_older { "-for-an-older-store" } else { "" }))
        };
        let reply = reply_with(&format!("{name}.toml"), version);
        let ask = |args: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            let (socket, store) = store_that_says(dir.path(), &*reply);
            let socket = socket.to_str().unwrap();
            let args = [&["status", "--socket", socket], args].concat();
            let outcome = sluice_in(&tree, args);
            store.join().unwrap();
            assert_eq!((outcome.code, &*outcome.stderr), (0, ""), "{name}");
            outcome.stdout
        };
        let report = ask(&[]);
        let (_, said) = report.split_at(report.find("\nconfig ").expect(&report) + 1);
        expect(&golden("said"), said);
        let json: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
        let pending = serde_json::to_string_pretty(&json["pending"]).unwrap() + "\n";
        expect(&golden("pending.json"), &pending);
        assert_eq!(json["configuration"]["settings"]["swap.size"], "\"8G\"", "{name}");
    }
}

#[test]
fn an_order_says_what_came_of_it_by_words_and_exit_code() {
    const DONE: &str = concat!(include_str!("trees/order/done.json"), "\n");
    const CONTINUES: &str = concat!(include_str!("trees/order/continues.json"), "\n");
    const STUCK: &str = concat!(include_str!("trees/order/stuck.json"), "\n");
    const REPLACED: &str = concat!(include_str!("trees/order/replaced.json"), "\n");
    let target = "{\"command\":\"target\",\"bytes\":536870912,\"tier\":\"cuda:1\",\
                  \"deadline_ms\":5000}\n";
    let cases: &[(&str, &[&str], &str, &str, i32)] = &[
        (
            "done",
            &["vram", "target", "512M", "--tier", "cuda:1", "--within", "5s"],
            DONE,
            target,
            0,
        ),
        (
            "continues",
            &["vram", "drain"],
            CONTINUES,
            "{\"command\":\"drain\",\"deadline_ms\":60000}\n",
            3,
        ),
        (
            "stuck",
            &["gpu", "close", "--within", "500ms"],
            STUCK,
            "{\"command\":\"close_gpu\",\"deadline_ms\":500}\n",
            3,
        ),
        (
            "replaced",
            &["vram", "resume", "--within", "0s"],
            REPLACED,
            "{\"command\":\"resume\",\"deadline_ms\":0}\n",
            1,
        ),
        (
            "readmitted",
            &["gpu", "readmit", "cuda:1"],
            DONE,
            "{\"command\":\"readmit\",\"tier\":\"cuda:1\"}\n",
            0,
        ),
    ];
    for (name, args, reply, asked, code) in cases {
        for (json, extension) in [(&[][..], "expected"), (&["--json"], "expected.json")] {
            let dir = tempfile::tempdir().unwrap();
            let (socket, store) = store_that_says(dir.path(), *reply);
            let socket = ["--socket", socket.to_str().unwrap()];
            let outcome = sluice(&[args, &socket[..], json].concat());
            assert_eq!((outcome.code, &*outcome.stderr), (*code, ""), "{name}");
            assert_eq!(store.join().unwrap(), *asked);
            let golden = format!("order/{name}.{extension}");
            expect(&Path::new(TREES).join(golden), &outcome.stdout);
        }
    }
}

#[test]
fn a_refused_order_exits_with_1_and_the_stores_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let reply = "{\"error\":\"there is no spill\",\"hint\":\"configure [spill]\"}\n";
    let (socket, store) = store_that_says(dir.path(), reply);
    let outcome = sluice(&["vram", "drain", "--json", "--socket", socket.to_str().unwrap()]);
    store.join().unwrap();
    assert_eq!((outcome.code, &*outcome.stdout), (1, ""));
    assert_eq!(outcome.stderr, "sluice: there is no spill\n  next: configure [spill]\n");
}

#[test]
fn progress_is_shown_on_request_while_an_order_waits() {
    const STATUS: &str = concat!(include_str!("trees/status/reply.json"), "\n");
    const DONE: &str = concat!(include_str!("trees/order/done.json"), "\n");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("store.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let store = std::thread::spawn(move || {
        let (mut order, mut statuses) = (None, 0);
        // The order is answered once its client has asked how far it is.
        while order.is_none() || statuses == 0 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked).unwrap();
            if asked.contains("drain") {
                order = Some(stream);
            } else {
                stream.write_all(STATUS.as_bytes()).unwrap();
                statuses += 1;
            }
        }
        order.unwrap().write_all(DONE.as_bytes()).unwrap();
    });
    let outcome = sluice(&["vram", "drain", "--progress", "--socket", socket.to_str().unwrap()]);
    store.join().unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert_eq!(outcome.stderr, "cuda:0: 1.5 GiB held, target 2 GiB\n");
    assert!(outcome.stdout.starts_with("done after"), "{}", outcome.stdout);
}

#[test]
fn a_spill_is_made_and_checked_by_hand() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let spill = dir.path().join("spill");
    let spill = spill.to_str().unwrap();
    let made = sluice(&["spill", "create", spill, "--size", "66M", "--progress"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stdout.contains("130 MiB, written in full"), "{}", made.stdout);
    assert!(made.stderr.ends_with("130 MiB of 130 MiB written\n"), "{}", made.stderr);
    let good = sluice(&["spill", "check", spill, "--size", "128M"]);
    assert_eq!((good.code, &*good.stderr), (0, ""), "{}", good.stdout);
    assert!(good.stdout.ends_with("can be a spill\n"), "{}", good.stdout);
    let small = sluice(&["spill", "check", spill, "--size", "130M"]);
    assert_eq!(small.code, 1);
    assert!(small.stdout.contains("NO  for the swap"), "{}", small.stdout);
    assert!(small.stdout.contains("64 MiB too few"), "{}", small.stdout);
    let null = sluice(&["spill", "check", "/dev/null"]);
    assert_eq!(null.code, 1);
    assert!(null.stdout.contains("next: name a partition"), "{}", null.stdout);
}

#[test]
fn status_refuses_what_is_no_store() {
    for reply in ["", "220 mail\r\n", "{\"state\":\"asleep\"}\n"] {
        let dir = tempfile::tempdir().unwrap();
        let (socket, store) = store_that_says(dir.path(), reply);
        let outcome = sluice(&["status", "--socket", socket.to_str().unwrap()]);
        store.join().unwrap();
        assert_eq!((outcome.code, &*outcome.stdout), (1, ""));
        assert!(outcome.stderr.contains("did not answer as a store"), "{}", outcome.stderr);
    }
}
