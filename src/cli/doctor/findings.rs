// SPDX-License-Identifier: MIT OR Apache-2.0
//! From facts to findings, each "no" with its next step. Pure.

use serde::Serialize;

use super::facts::{Facts, Memlock, Module};
use super::gpu_findings;
use crate::engine::units::ByteLen;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, and something about it will hurt.
    Warning,
    /// Does not work.
    No,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Finding {
    pub topic: &'static str,
    pub verdict: Verdict,
    pub text: String,
    /// What to do about it.
    pub next: Option<String>,
    /// The abilities that a "no" here takes away.
    #[serde(skip)]
    needed_for: &'static [Need],
}

/// What the machine may or may not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Attach,
    Gpu,
}

/// One thing the machine can do, or the topics that say why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Ability {
    pub what: &'static str,
    pub missing: Vec<&'static str>,
}

/// All that was concluded.
pub(super) struct Report {
    pub findings: Vec<Finding>,
    pub abilities: Vec<Ability>,
}

impl Report {
    /// Whether swap could be attached to this kernel now.
    pub fn can_attach(&self) -> bool {
        !self.is_missing(Need::Attach)
    }

    fn is_missing(&self, need: Need) -> bool {
        self.findings.iter().any(|finding| finding.denies(need))
    }
}

impl Finding {
    pub(in crate::cli) fn new(
        topic: &'static str,
        verdict: Verdict,
        text: impl Into<String>,
    ) -> Self {
        Self { topic, verdict, text: text.into(), next: None, needed_for: &[] }
    }

    pub(in crate::cli) fn next(mut self, step: impl Into<String>) -> Self {
        self.next = Some(step.into());
        self
    }

    pub(super) fn needed_for(mut self, needs: &'static [Need]) -> Self {
        self.needed_for = needs;
        self
    }

    fn denies(&self, need: Need) -> bool {
        self.verdict == Verdict::No && self.needed_for.contains(&need)
    }
}

/// Concludes from the facts, in the order in which things are needed.
pub(super) fn conclude(facts: &Facts) -> Report {
    let mut findings = vec![kernel(facts), nbd(facts)];
    findings.extend(capabilities(facts));
    findings.push(memlock(facts));
    findings.push(io_uring(facts));
    findings.push(ublk(facts));
    findings.extend(gpu_findings::conclude(facts));
    findings.extend(swaps(facts));
    findings.push(spill(facts));
    findings.extend(zswap(facts));
    findings.push(zram(facts));
    findings.push(memory(facts));

    let missing = |need: Need| {
        let mut topics: Vec<_> = findings
            .iter()
            .filter(|finding| finding.denies(need))
            .map(|finding| finding.topic)
            .collect();
        topics.dedup();
        topics
    };
    let abilities = vec![
        Ability {
            what: "serve a RAM tier on a socket (sluice demo, sluice serve)",
            missing: vec![],
        },
        Ability {
            what: "attach a device to the kernel and swap to it",
            missing: missing(Need::Attach),
        },
        Ability { what: "hold pages in GPU memory", missing: missing(Need::Gpu) },
    ];
    Report { findings, abilities }
}

fn kernel(facts: &Facts) -> Finding {
    let Some(release) = &facts.kernel else {
        return Finding::new("kernel", Verdict::No, "its version cannot be read")
            .next("mount /proc")
            .needed_for(&[Need::Attach]);
    };
    let mut numbers = release.split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 14) => {
            Finding::new("kernel", Verdict::Ok, release.clone())
        }
        _ => Finding::new(
            "kernel",
            Verdict::No,
            format!("{release}: 5.14 is the first that ties an nbd device to its own server"),
        )
        .next("boot a newer kernel")
        .needed_for(&[Need::Attach]),
    }
}

fn nbd(facts: &Facts) -> Finding {
    let finding = match facts.nbd {
        Module::Loaded => return Finding::new("nbd", Verdict::Ok, "the module is loaded"),
        Module::Installed => {
            return Finding::new("nbd", Verdict::Ok, "the module is installed, not loaded")
                .next("modprobe nbd (the service does it by itself)");
        }
        Module::Absent => Finding::new("nbd", Verdict::No, "this kernel has no nbd module")
            .next("install this kernel's full modules, or a kernel with CONFIG_BLK_DEV_NBD=m"),
        Module::Unknown => {
            Finding::new("nbd", Verdict::No, "not loaded, and this kernel's module list is missing")
                .next("modprobe nbd, or install the modules of the running kernel")
        }
    };
    finding.needed_for(&[Need::Attach])
}

/// Bit number, name, and what the store needs it for.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (21, "CAP_SYS_ADMIN", "to attach devices and switch swap on"),
    (14, "CAP_IPC_LOCK", "to lock its memory"),
    (24, "CAP_SYS_RESOURCE", "to be exempt from waiting for its own swap (IO_FLUSHER)"),
];

fn capabilities(facts: &Facts) -> Vec<Finding> {
    let Some(held) = facts.capabilities else {
        return vec![
            Finding::new("capabilities", Verdict::No, "cannot be read")
                .next("mount /proc")
                .needed_for(&[Need::Attach]),
        ];
    };
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| held & (1 << bit) == 0).collect();
    if lacking.is_empty() {
        let names = CAPABILITIES.map(|(_, name, _)| name).join(", ");
        return vec![Finding::new("capabilities", Verdict::Ok, names)];
    }
    lacking
        .into_iter()
        .map(|(_, name, why)| {
            Finding::new("capabilities", Verdict::No, format!("{name} is missing: needed {why}"))
                .next("run as root; in a container, add the capability (the unit has it)")
                .needed_for(&[Need::Attach])
        })
        .collect()
}

fn memlock(facts: &Facts) -> Finding {
    let ipc_lock = facts.capabilities.is_some_and(|held| held & (1 << 14) != 0);
    match facts.memlock {
        _ if ipc_lock => Finding::new("memlock", Verdict::Ok, "CAP_IPC_LOCK lifts the limit"),
        Some(Memlock::Unlimited) => Finding::new("memlock", Verdict::Ok, "unlimited"),
        Some(Memlock::Bytes(bytes)) => Finding::new(
            "memlock",
            Verdict::Warning,
            format!(
                "at most {} can be locked, so nothing larger can be served safely",
                ByteLen(bytes)
            ),
        )
        .next("run as root, or set LimitMEMLOCK=infinity (ulimit -l unlimited)"),
        None => Finding::new("memlock", Verdict::Note, "the limit cannot be read"),
    }
}

fn io_uring(facts: &Facts) -> Finding {
    match facts.io_uring_disabled {
        Some(0) => Finding::new("io_uring", Verdict::Ok, "allowed"),
        Some(1) => Finding::new(
            "io_uring",
            Verdict::Note,
            "for privileged processes only; not needed by nbd",
        ),
        Some(_) => Finding::new(
            "io_uring",
            Verdict::Note,
            "switched off; not needed by nbd, ublk needs it",
        )
        .next("sysctl kernel.io_uring_disabled=0, to use ublk"),
        None => Finding::new("io_uring", Verdict::Note, "this kernel has no switch for it"),
    }
}

fn ublk(facts: &Facts) -> Finding {
    match facts.ublk {
        Module::Loaded => Finding::new("ublk", Verdict::Ok, "the module is loaded"),
        Module::Installed => Finding::new("ublk", Verdict::Ok, "the module is installed"),
        Module::Absent | Module::Unknown => {
            Finding::new("ublk", Verdict::Note, "not available; nbd does the same work")
        }
    }
}

/// Our default priority; a higher one is filled before us.
const DEFAULT_PRIORITY: i32 = 1500;

fn swaps(facts: &Facts) -> Vec<Finding> {
    if facts.swaps.is_empty() {
        return vec![Finding::new("swap", Verdict::Note, "no swap is on")];
    }
    let describe = |swap: &super::facts::Swap| {
        let text = format!("{}, priority {}: {}", swap.path, swap.priority, swap.usage());
        if swap.ghost {
            return Finding::new(
                "swap",
                Verdict::Warning,
                format!("{text}; a ghost: its device is gone, and with it the pages in use"),
            )
            .next(
                "end what still has pages there, and reboot: such an entry cannot be switched off",
            );
        }
        if swap.priority > DEFAULT_PRIORITY {
            return Finding::new(
                "swap",
                Verdict::Note,
                format!("{text}; filled before ours, whose priority is {DEFAULT_PRIORITY}"),
            )
            .next("set swap.priority above it, or its own below");
        }
        Finding::new("swap", Verdict::Ok, text)
    };
    facts.swaps.iter().map(describe).collect()
}

fn spill(facts: &Facts) -> Finding {
    let places: Vec<String> = facts
        .spill_candidates
        .iter()
        .map(|place| {
            let free = place.free_bytes.map(|free| format!(", {} free", ByteLen(free)));
            format!("{} ({}{})", place.mount, place.filesystem, free.unwrap_or_default())
        })
        .collect();
    if places.is_empty() {
        return Finding::new(
            "spill",
            Verdict::Note,
            "no writable filesystem on a disk for a spill file",
        )
        .next("give it a partition, or hold all of the swap in the fast tier");
    }
    Finding::new("spill", Verdict::Ok, format!("a spill file could be on {}", places.join(", ")))
}

fn zswap(facts: &Facts) -> Option<Finding> {
    if !facts.zswap? {
        return Some(Finding::new("zswap", Verdict::Ok, "off"));
    }
    Some(
        Finding::new(
            "zswap",
            Verdict::Note,
            "on: pages are compressed into RAM first, and only its overflow reaches swap devices",
        )
        .next("echo N > /sys/module/zswap/parameters/enabled, to swap to the GPU directly"),
    )
}

fn zram(facts: &Facts) -> Finding {
    match facts.zram {
        Module::Loaded | Module::Installed => {
            Finding::new("zram", Verdict::Ok, "available to compare with")
        }
        Module::Absent | Module::Unknown => {
            Finding::new("zram", Verdict::Note, "not available; not needed")
        }
    }
}

fn memory(facts: &Facts) -> Finding {
    match facts.memory {
        Some(memory) => Finding::new(
            "memory",
            Verdict::Ok,
            format!(
                "{} available of {}",
                ByteLen(memory.available_bytes),
                ByteLen(memory.total_bytes)
            ),
        ),
        None => Finding::new("memory", Verdict::Note, "/proc/meminfo cannot be read"),
    }
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
