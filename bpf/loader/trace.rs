// SPDX-License-Identifier: GPL-2.0-only
//! `trace`: what programs ask of the CUDA driver library, told by uprobes on
//! it; the events are those of `bpf/probes/cuda.h`. With `--memory` those of
//! [`trace_memory`].

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use libbpf_rs::{Map, MapCore, MapFlags, Object, ObjectBuilder, RingBufferBuilder, UprobeOpts};
use serde_json::json;

use crate::args::TraceArgs;
use crate::failure::Failure;
use crate::trace_memory;

const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
];
const PROBE: &str = "/usr/lib/sluice/probes/cuda.bpf.o";
const EVENT_BYTES: usize = 64;

/// One call.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    time_ns: u64,
    cgroup_id: u64,
    bytes: u64,
    address: u64,
    tgid: u32,
    tid: u32,
    call: u32,
    result: i32,
    comm: String,
}

impl Event {
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; EVENT_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| bytes[at..].first_chunk().map(|part| u64::from_ne_bytes(*part));
        let half = |at: usize| bytes[at..].first_chunk().map(|part| u32::from_ne_bytes(*part));
        let comm = &bytes[48..];
        let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
        Some(Self {
            time_ns: word(0)?,
            cgroup_id: word(8)?,
            bytes: word(16)?,
            address: word(24)?,
            tgid: half(32)?,
            tid: half(36)?,
            call: half(40)?,
            result: half(44)?.cast_signed(),
            comm: String::from_utf8_lossy(&comm[..end]).into_owned(),
        })
    }

    fn call(&self) -> &'static str {
        match self.call {
            1 => "alloc",
            2 => "free",
            3 => "launch",
            _ => "unknown",
        }
    }

    fn line(&self, as_json: bool) -> String {
        if as_json {
            return json!({
                "time_ns": self.time_ns, "call": self.call(), "pid": self.tgid, "tid": self.tid,
                "comm": self.comm, "cgroup_id": self.cgroup_id, "bytes": self.bytes,
                "address": self.address, "result": self.result,
            })
            .to_string();
        }
        let who = format!("{} {}", self.tgid, escaped(&self.comm));
        match self.call {
            1 if self.result == 0 => {
                format!("{who}: has {} bytes at {:#x}", self.bytes, self.address)
            }
            1 => format!("{who}: is refused {} bytes (CUresult {})", self.bytes, self.result),
            2 => format!("{who}: gives back {:#x}", self.address),
            _ => format!("{who}: {} kernels", self.bytes),
        }
    }
}

/// A process names itself, and the line may go to root's terminal: no control characters.
fn escaped(comm: &str) -> String {
    comm.chars().fold(String::new(), |mut text, letter| {
        if letter.is_control() {
            text.extend(letter.escape_default());
        } else {
            text.push(letter);
        }
        text
    })
}

fn library_path(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_path_buf());
    }
    LIBRARIES.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
        Failure::new(
            format!("there is no libcuda.so.1: {}", LIBRARIES.join(", ")),
            "give the path of the library with --library",
        )
        .into()
    })
}

/// Prints events until it is ended, or has printed as many as were asked for.
pub fn run(args: &TraceArgs) -> Result<()> {
    // libbpf complains of each function that a library lacks.
    libbpf_rs::set_print(None);
    if args.memory {
        let (object, links) = trace_memory::attach(args.probe.as_deref())?;
        let printed = print_events(args, &object, |bytes| {
            let event = trace_memory::Event::read(bytes)?;
            let wanted = args.pid.is_none_or(|pid| pid == event.tgid);
            Some(wanted.then(|| event.line(args.json)))
        });
        drop(links);
        return printed;
    }
    let library = library_path(args.library.as_deref())?;
    let probe = args.probe.as_deref().unwrap_or(Path::new(PROBE));
    let object = ObjectBuilder::default()
        .open_file(probe)
        .with_context(|| format!("{} is no probe", probe.display()))?
        .load()
        .with_context(|| format!("the kernel refuses {}", probe.display()))?;
    let pid = args.pid.map_or(-1, u32::cast_signed);
    let mut links = Vec::new();
    let mut watched = Vec::new();
    for program in object.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let (kind, function) =
            section.split_once('/').with_context(|| format!("section {section:?} of the probe"))?;
        let options = UprobeOpts {
            func_name: Some(function.to_owned()),
            retprobe: kind == "uretprobe",
            ..UprobeOpts::default()
        };
        // Libraries of other ages lack one or the other function.
        if let Ok(link) = program.attach_uprobe_with_opts(pid, &library, 0, options) {
            links.push(link);
            watched.push(function.to_owned());
        }
    }
    if links.is_empty() {
        return Err(Failure::new(
            format!(
                "none of the functions is found in {}, or no probe may be set",
                library.display()
            ),
            "check that it is the CUDA driver library, and run as root",
        )
        .into());
    }
    watched.dedup();
    eprintln!("watching {} of {}", watched.join(", "), library.display());
    print_events(args, &object, |bytes| Some(Some(Event::read(bytes)?.line(args.json))))
}

/// Events of a probe that found no room in its ring, and how many of them have
/// been told of.
struct Lost<'object> {
    map: Map<'object>,
    told: u64,
}

impl<'object> Lost<'object> {
    fn of(object: &'object Object) -> Result<Self> {
        let map = object.maps().find(|map| map.name() == "lost").context("no map lost")?;
        Ok(Self { map, told: 0 })
    }

    /// Says how many there are by now, if it has become more.
    fn tell(&mut self) -> Result<()> {
        let by_cpu = self.map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let count = by_cpu.iter().flatten().filter_map(|bytes| bytes.first_chunk());
        let count = count.map(|bytes| u64::from_ne_bytes(*bytes)).sum();
        if count > self.told {
            eprintln!("{count} events were lost so far: they come faster than they are printed");
            self.told = count;
        }
        Ok(())
    }
}

/// `line` makes a line of an event: `Some(None)` of one that is not wanted,
/// `None` of one that is too short.
fn print_events(
    args: &TraceArgs,
    object: &Object,
    line: impl Fn(&[u8]) -> Option<Option<String>>,
) -> Result<()> {
    let events = object.maps().find(|map| map.name() == "events").context("no map events")?;
    let mut lost = Lost::of(object)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut builder = RingBufferBuilder::new();
    builder.add(&events, |bytes| {
        // The receiver lives as long as the ring.
        i32::from(sender.send(line(bytes)).is_err())
    })?;
    let ring = builder.build()?;
    let mut out = std::io::stdout().lock();
    while left > 0 {
        match ring.poll(Duration::from_millis(200)) {
            // It was stopped and goes on.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            polled => polled?,
        }
        for line in receiver.try_iter() {
            let Some(line) = line else { bail!("an event of the probe is too short") };
            let Some(line) = line else { continue };
            if left == 0 {
                break;
            }
            writeln!(out, "{line}")?;
            left -= 1;
        }
        out.flush()?;
        lost.tell()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_the_probe_lays_it_out() {
        let mut bytes = [0u8; EVENT_BYTES];
        for (at, value) in [(0, 1u64), (8, 2), (16, 3), (24, 4)] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(32, 5u32), (36, 6), (40, 1), (44, 2)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[48..51].copy_from_slice(b"abc");
        let event = Event::read(&bytes).expect("long enough");
        assert_eq!((event.tgid, event.tid, event.comm.as_str()), (5, 6, "abc"));
        assert_eq!(event.line(false), "5 abc: is refused 3 bytes (CUresult 2)");
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        let mut bytes = [0u8; EVENT_BYTES];
        bytes[48..62].copy_from_slice("Köln\u{1b}[2J\n\u{9b}b\r".as_bytes());
        let event = Event::read(&bytes).expect("long enough");
        assert_eq!(event.line(false), "0 Köln\\u{1b}[2J\\n\\u{9b}b\\r: 0 kernels");
    }

    #[test]
    fn a_short_event_is_none() {
        assert_eq!(Event::read(&[0; EVENT_BYTES - 1]), None);
    }
}
