// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice top`: its screen as text, what it prints for programs, and the program
//! on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use sluice::cli::top::{Seen, draw};
use sluice::engine::error::{Error, Kind};
use sluice::engine::view::rates::Rates;
use sluice::engine::view::{ControlState, Status};

use super::{TREES, expect, sluice};

const REPLY: &str = include_str!("trees/status/reply.json");

fn status() -> Box<Status> {
    Box::new(serde_json::from_str(REPLY).unwrap())
}

/// What there is to see two seconds after something that was done less often.
fn seen() -> Seen {
    let (mut before, now) = (status(), status());
    (before.requests.read_bytes, before.requests.written_bytes) = (0, 819_200_000);
    (before.requests.parked, before.moves.bytes, before.moves.promoted) = (7, 0, 1);
    let activity = &mut before.tiers[0].activity;
    (activity.reads, activity.writes) = (200, 200_000);
    activity.read_times.buckets = vec![0, 0, 0, 500];
    activity.write_times.buckets.clear();
    let control = ControlState {
        rule: "battery".to_owned(),
        sentence: "at most 2 GiB of GPU memory: the machine runs on battery".to_owned(),
        progress: "settled".to_owned(),
        ..ControlState::default()
    };
    let rates = Rates::between(&before, &now, std::time::Duration::from_secs(2));
    Seen { store: Ok(now), rates: Some(rates), control: Ok(control) }
}

fn screen(seen: &Seen, width: usize, height: usize) -> String {
    let lines = draw::screen(seen, width, height);
    assert_eq!(lines.len(), height);
    let widest = lines.iter().map(|line| line.text.chars().count()).max();
    assert!(widest <= Some(width), "{widest:?}");
    let text: Vec<&str> = lines.iter().map(|line| line.text.trim_end()).collect();
    text.join("\n") + "\n"
}

#[test]
fn the_screen_is_laid_out_for_its_size() {
    let goldens = Path::new(TREES).join("top");
    expect(&goldens.join("80x24"), &screen(&seen(), 80, 24));
    expect(&goldens.join("40x10"), &screen(&seen(), 40, 10));
    // The least there can be; nothing is cut in the middle of a letter or panics.
    for (width, height) in [(1, 1), (3, 2), (200, 60)] {
        screen(&seen(), width, height);
    }
}

#[test]
fn a_first_look_has_no_rates_and_one_that_finds_nobody_says_so() {
    let goldens = Path::new(TREES).join("top");
    let mut first = seen();
    first.rates = None;
    first.control = Err(Error::new(Kind::Missing, "sluiced does not run"));
    let store = first.store.as_mut().unwrap();
    // All is well, and only a socket is served.
    (store.message, store.devices) = (String::new(), Vec::new());
    (store.errors.checksum, store.moves.lost_pages) = (0, 0);
    (store.tiers[0].faulty, store.tiers[0].quarantined_bytes) = (false, 0);
    store.tiers[0].open = false;
    expect(&goldens.join("first"), &draw::block(&first));
    let gone = Error::new(Kind::Missing, "cannot reach the store at /run/x");
    expect(&goldens.join("gone"), &draw::block(&Seen { store: Err(gone), rates: None, ..seen() }));
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let lines = draw::screen(&seen(), 40, 10);
    let painted = draw::paint(&lines, true);
    assert!(painted.contains("\x1b[1;31m") && painted.contains("\x1b[0m"), "{painted:?}");
    let plain = draw::paint(&lines, false);
    // The same text: each line erased, then written.
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(plain, format!("\x1b[H\x1b[2K{}", texts.join("\r\n\x1b[2K")));
}

/// A store that answers for as long as the test runs, each time with 100 pages
/// more read.
struct Store {
    socket: PathBuf,
    /// By which it calls itself.
    pid: Arc<AtomicU64>,
}

impl Store {
    fn start(dir: &Path) -> Self {
        let socket = dir.join("store.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let pid = Arc::new(AtomicU64::new(812));
        let shared = Arc::clone(&pid);
        std::thread::spawn(move || {
            let mut pages = 1200;
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 64];
                let _ = stream.read(&mut request);
                pages += 100;
                let mut status = status();
                status.pid = shared.load(Ordering::Relaxed) as u32;
                status.requests.read_bytes = pages * 4096;
                let _ = writeln!(stream, "{}", serde_json::to_string(&status).unwrap());
            }
        });
        Self { socket, pid }
    }

    fn words<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["top", "--interval", "100ms", "--socket", self.socket.to_str().unwrap()], more].concat()
    }
}

#[test]
fn programs_get_an_object_for_each_interval_and_then_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path());
    let outcome = sluice(&store.words(&["--json", "--count", "3"]));
    assert_eq!((outcome.code, &*outcome.stderr), (0, ""));
    let objects: Vec<serde_json::Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 3);
    for object in &objects {
        assert_eq!(object["store"]["pid"], 812);
        let rates = &object["rates"];
        let (pages, seconds) = (rates["pages_in"].as_f64(), rates["seconds"].as_f64());
        let pages = pages.unwrap() * seconds.unwrap();
        assert!((pages - 100.0).abs() < 1e-6, "{pages} pages in {rates}");
        assert_eq!(rates["tiers"][0]["name"], "cuda:0");
        assert!(object.as_object().unwrap().contains_key("control"), "{object}");
    }
}

#[test]
fn without_a_terminal_it_is_blocks_of_text() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path());
    let outcome = sluice(&store.words(&["--count", "2"]));
    assert_eq!((outcome.code, &*outcome.stderr), (0, ""));
    let blocks: Vec<&str> = outcome.stdout.split("\n\n").collect();
    assert_eq!(blocks.len(), 2, "{}", outcome.stdout);
    for block in blocks {
        assert!(block.starts_with("sluice-store 0.1.0 is serving"), "{block}");
        assert!(!block.contains('\x1b'), "{block:?}");
    }
}

/// A terminal of 80 by 24, and `sluice top` on it.
struct Terminal {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Its modes before.
    before: Termios,
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(store: &Store, no_color: &str) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&name).unwrap();
        let theirs = OwnedFd::from(open());
        set_size(&ours, 80, 24);
        let before = tcgetattr(&theirs).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(store.words(&[]))
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color)
            .stdin(open())
            .stdout(open())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut reader, into) = (File::from(ours.try_clone().unwrap()), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count) = reader.read(&mut part) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..count]));
            }
        });
        Self { ours, theirs, before, child, shown }
    }

    /// Waits until what is shown is so.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begun = std::time::Instant::now();
        while !is_so(&self.shown.lock().unwrap()) {
            let shown = self.shown.lock().unwrap();
            assert!(begun.elapsed().as_secs() < 60, "never: {what}: {shown:?}");
            drop(shown);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(&self.theirs).unwrap().local_modes
    }

    fn press(&self, keys: &str) {
        rustix::io::write(&self.ours, keys.as_bytes()).unwrap();
    }
}

fn set_size(terminal: &OwnedFd, ws_col: u16, ws_row: u16) {
    tcsetwinsize(terminal, Winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// The last frame that was painted in full.
fn last_frame(shown: &str) -> Vec<&str> {
    let frames: Vec<&str> = shown.split("\x1b[H").collect();
    match frames[..] {
        [.., frame, _] => frame.split("\r\n").collect(),
        _ => Vec::new(),
    }
}

#[test]
fn on_a_terminal_it_draws_until_q_and_leaves_the_terminal_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path());
    let mut terminal = Terminal::start(&store, "1");
    terminal.until("rates are shown", |shown| {
        let frame = last_frame(shown);
        let read = frame.iter().find(|line| line.contains("pages/s"));
        frame.len() == 24 && read.is_some_and(|line| !line.contains("- pages/s"))
    });
    assert!(terminal.shown.lock().unwrap().starts_with("\x1b[?1049h"));
    assert!(!terminal.shown.lock().unwrap().contains("\x1b[1"), "NO_COLOR is set");
    assert_ne!(terminal.modes(), terminal.before.local_modes);
    // Another size, and another store in its place.
    set_size(&terminal.ours, 40, 10);
    store.pid.store(4711, Ordering::Relaxed);
    terminal.until("it fits the new size", |shown| {
        let frame = last_frame(shown);
        frame.len() == 10 && frame[0].contains("(process 4")
    });
    terminal.press("xyzq");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    terminal.until("the screen before is back", |shown| shown.ends_with("\x1b[?25h\x1b[?1049l"));
    assert_eq!(terminal.modes(), terminal.before.local_modes);
}

#[test]
fn a_signal_ends_it_as_orderly_as_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path());
    let mut terminal = Terminal::start(&store, "");
    terminal.until("it draws in colours", |shown| shown.contains("\x1b[1;31m"));
    let pid = rustix::process::Pid::from_child(&terminal.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    terminal.until("the screen before is back", |shown| shown.ends_with("\x1b[?25h\x1b[?1049l"));
    assert_eq!(terminal.modes(), terminal.before.local_modes);
}
