// SPDX-License-Identifier: MIT OR Apache-2.0
//! A holder in the test's own process: keeps what `sluice serve --held` hands
//! over, kills that, and starts the next one. Needs no privilege and no kernel
//! module, unlike `sluice-store hold`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use sluice::host::handover;
use sluice::host::process::{Ended, Image, Process, Program};
use sluice::runtime::holder::message::{BYTES, Kind, Message, Role};

type Kept = BTreeMap<(Role, u32), (OwnedFd, u64)>;

/// Longer than any step of a store takes.
const FOREVER: Duration = Duration::from_secs(120);

/// A store that can be killed and lives on.
pub struct Held {
    program: Program,
    running: Option<(Process, JoinHandle<Kept>)>,
}

impl Held {
    /// Starts the first one; `arguments` are those of `sluice serve`.
    pub fn start(arguments: Vec<OsString>) -> Self {
        let program = super::served::program("sluice");
        let words = ["sluice", "serve", "--held", Program::PASSED].map(OsString::from);
        let words = words.into_iter().chain(arguments).collect();
        let program = Program::new(program.into_os_string(), words).unwrap();
        let mut this = Self { program, running: None };
        this.run(Kept::new());
        this
    }

    fn run(&mut self, kept: Kept) {
        let (ours, theirs) = handover::pair().unwrap();
        let process = self.program.start(Image::AtPath, theirs.as_fd()).unwrap();
        let holder = std::thread::spawn(move || hold(&ours, kept));
        self.running = Some((process, holder));
    }

    /// Kills it, and starts the next one with what it left: how many slabs.
    pub fn kill(&mut self) -> usize {
        let (process, holder) = self.running.take().unwrap();
        process.signal(Signal::KILL).unwrap();
        assert!(handover::wait_readable(process.as_fd(), FOREVER).unwrap());
        assert_eq!(process.reap(), Ended::Killed(9), "it ended before it was killed");
        let kept = holder.join().unwrap();
        let slabs = kept.keys().filter(|(role, _)| *role == Role::Slab).count();
        self.run(kept);
        slabs
    }

    /// Has it end by itself.
    pub fn stop(mut self) {
        let (process, holder) = self.running.take().unwrap();
        process.signal(Signal::TERM).unwrap();
        assert!(handover::wait_readable(process.as_fd(), FOREVER).unwrap());
        assert_eq!(process.reap(), Ended::Exited(0));
        holder.join().unwrap();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // After a test that failed.
        if let Some((process, _)) = &self.running {
            let _ = process.signal(Signal::KILL);
            process.reap();
        }
    }
}

/// Keeps what comes until the store is gone.
fn hold(link: &OwnedFd, mut kept: Kept) -> Kept {
    let mut record = [0; BYTES];
    loop {
        handover::wait_readable(link.as_fd(), FOREVER).unwrap();
        let (bytes, passed) = match handover::receive(link.as_fd(), &mut record) {
            Err(rustix::io::Errno::AGAIN) => continue,
            other => other.unwrap(),
        };
        if bytes == 0 {
            return kept;
        }
        let message = Message::decode(&record[..bytes]).unwrap();
        let name = (message.role, message.number);
        match message.kind {
            Kind::Hello => {
                for ((role, number), (thing, bytes)) in &kept {
                    let mut item = Message::about(Kind::Item, *role, *number);
                    item.bytes = *bytes;
                    send(link, &item, Some(thing));
                }
                send(link, &Message::new(Kind::All), None);
            }
            Kind::Keep => {
                kept.insert(name, (passed.unwrap(), message.bytes));
                let mut answer = Message::about(Kind::Answer, message.role, message.number);
                answer.sequence = message.sequence;
                send(link, &answer, None);
            }
            Kind::Forget => drop(kept.remove(&name)),
            _ => {}
        }
    }
}

/// A store that was killed meanwhile hears nothing, and that is no failure.
fn send(link: &OwnedFd, message: &Message, passed: Option<&OwnedFd>) {
    loop {
        match handover::send(link.as_fd(), &message.encode(), passed.map(AsFd::as_fd)) {
            Err(rustix::io::Errno::AGAIN) => {
                handover::wait_writable(link.as_fd(), FOREVER).unwrap();
            }
            _ => return,
        }
    }
}

/// The arguments of a store on the library under test.
pub fn arguments(socket: &Path, size: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["--tier", "cuda", "--size", size].map(Into::into).into();
    words.extend(["--socket".into(), socket.into()]);
    words.extend(["--cuda-library".into(), super::library().into_os_string()]);
    words
}
