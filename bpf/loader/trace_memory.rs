// SPDX-License-Identifier: GPL-2.0-only
//! `trace --memory`: faults, prefetches and evictions of a GPU memory manager,
//! told by probes on its functions; the events are those of
//! `bpf/probes/memory.h`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_rs::{Link, Object, ObjectBuilder};
use serde_json::json;

use crate::failure::Failure;

const FOLDER: &str = "/usr/lib/sluice/probes";
/// The managers that there are probes for: module, probe, what people call it.
const MANAGERS: [(&str, &str, &str); 2] = [
    ("nvidia_uvm", "uvm.bpf.o", "NVIDIA's unified memory"),
    ("sluice_sim", "sim.bpf.o", "the simulated GPU"),
];
const EVENT_BYTES: usize = 48;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    time_ns: u64,
    address: u64,
    bytes: u64,
    cgroup_id: u64,
    /// The owner, 0 if it is not known.
    pub tgid: u32,
    what: u32,
    by_cpu: bool,
    writes: bool,
}

impl Event {
    /// Reads an event as the probe lays it out.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; EVENT_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| bytes[at..].first_chunk().map(|part| u64::from_ne_bytes(*part));
        let half = |at: usize| bytes[at..].first_chunk().map(|part| u32::from_ne_bytes(*part));
        Some(Self {
            time_ns: word(0)?,
            address: word(8)?,
            bytes: word(16)?,
            cgroup_id: word(24)?,
            tgid: half(32)?,
            what: half(36)?,
            by_cpu: half(40)? != 0,
            writes: half(44)? != 0,
        })
    }

    fn what(&self) -> &'static str {
        match self.what {
            1 => "fault",
            2 => "prefetch",
            3 => "evict",
            _ => "unknown",
        }
    }

    /// The event in one line.
    pub fn line(&self, as_json: bool) -> String {
        let by = if self.by_cpu { "cpu" } else { "gpu" };
        if as_json {
            return json!({
                "time_ns": self.time_ns, "event": self.what(), "pid": self.tgid,
                "cgroup_id": self.cgroup_id, "address": self.address, "bytes": self.bytes,
                "by": by, "writes": self.writes,
            })
            .to_string();
        }
        let writes = if self.writes { ", writing" } else { "" };
        let (pid, pages) = (self.tgid, self.bytes >> 12);
        format!("{pid}: {} of {pages} pages from {:#x} on, {by}{writes}", self.what(), self.address)
    }
}

/// Which probe is for this machine, and what it watches.
fn probe() -> Result<(PathBuf, &'static str)> {
    for (module, probe, title) in MANAGERS {
        if Path::new("/sys/kernel/btf").join(module).exists() {
            return Ok((Path::new(FOLDER).join(probe), title));
        }
        if Path::new("/sys/module").join(module).exists() {
            return Err(Failure::new(
                format!("the kernel module {module} was built without type information (BTF)"),
                "rebuild it for this very kernel, with pahole installed",
            )
            .into());
        }
    }
    Err(Failure::new(
        "no GPU memory manager is loaded that there is a probe for",
        "modprobe nvidia_uvm, or sluice_sim where there is no GPU",
    )
    .into())
}

/// Sets the probes; they are there as long as the links are.
pub fn attach(given: Option<&Path>) -> Result<(Object, Vec<Link>)> {
    let (path, title) = match given {
        Some(path) => (path.to_path_buf(), "what the probe is for"),
        None => probe()?,
    };
    let object = ObjectBuilder::default()
        .open_file(&path)
        .with_context(|| format!("{} is no probe", path.display()))?
        .load()
        .with_context(|| {
            format!(
                "the kernel refuses {}: it may lack fentry, or the module one of the functions",
                path.display()
            )
        })?;
    let mut links = Vec::new();
    for program in object.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        links.push(program.attach().with_context(|| format!("cannot set the probe {section}"))?);
    }
    eprintln!("watching {title}");
    Ok((object, links))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_the_probe_lays_it_out() {
        let mut bytes = [0u8; EVENT_BYTES];
        for (at, value) in [(0, 1u64), (8, 0x2000), (16, 8192), (24, 4)] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(32, 5u32), (36, 1), (40, 0), (44, 1)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let event = Event::read(&bytes).expect("long enough");
        assert_eq!(event.line(false), "5: fault of 2 pages from 0x2000 on, gpu, writing");
        assert_eq!(
            event.line(true),
            "{\"address\":8192,\"by\":\"gpu\",\"bytes\":8192,\"cgroup_id\":4,\"event\":\"fault\",\
             \"pid\":5,\"time_ns\":1,\"writes\":true}"
        );
        assert_eq!(Event::read(&bytes[1..]), None);
    }
}
