// SPDX-License-Identifier: GPL-2.0-only
//! Traces that were recorded elsewhere, as text: one event a line, described in
//! `docs/reference/trace-format.md`. Besides, the JSON lines of `sluice policy
//! trace` on GPU memory, of which the faults are taken.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::trace::{BLOCK_PAGES, Class, Kind, Trace};

const PAGE_BYTES: u64 = 4096;
/// `SLUICE_SIM_TENANTS`.
const TENANTS: usize = 64;

/// What a line says. Addresses and sizes in bytes, as they were recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Gpu { chunks: u32, link_bytes_per_s: u64, number: u32 },
    Process { class: Class },
    Memory { kind: Kind, address: u64, bytes: u64, writes: bool },
    Task { kind: Kind, runlist: u64, tsg: u32, value: u64 },
    Tick,
}

#[derive(Clone, Debug)]
struct Line {
    number: usize,
    time_ns: u64,
    process: u32,
    event: Event,
}

/// Reads a recorded trace. `chunks` and `gpu` say what GPU it is played on if
/// the trace has no line of its own for that. The first line is at time 0.
pub fn import(text: &str, chunks: Option<u32>, gpu: u32, cgroups: &[(u16, u64)]) -> Result<Trace> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = if line.starts_with('{') { json_line(line) } else { csv_line(line).map(Some) };
        if let Some((time_ns, process, event)) = read.with_context(|| format!("line {number}"))? {
            lines.push(Line { number, time_ns, process, event });
        }
    }
    let first = lines.first().context("the trace has no event")?;
    let begin_ns = first.time_ns;
    let mut trace = match (&first.event, chunks) {
        (Event::Gpu { .. }, Some(_)) => {
            bail!(
                "line {}: the trace says how much memory the GPU has; leave out --chunks",
                first.number
            )
        }
        (Event::Gpu { chunks, link_bytes_per_s, number }, None) => {
            Trace::on(*number, *chunks, *link_bytes_per_s, cgroups)
        }
        (_, Some(chunks)) => Trace::new(gpu, chunks, cgroups),
        (_, None) => {
            bail!("the trace does not begin with a gpu line: say --chunks, in units of 2 MiB")
        }
    };
    let mut owners = Owners::of(&lines);
    for line in &lines {
        let place = || format!("line {}", line.number);
        let at = line.time_ns.checked_sub(begin_ns).filter(|at| *at >= trace.now_ns());
        let at = at.ok_or_else(|| anyhow!("time {} is before the line above", line.time_ns));
        trace.wait_until(at.with_context(place)?);
        owners.add(&mut trace, line).with_context(place)?;
    }
    Ok(trace)
}

/// The processes of a trace and their tenants, numbered as they appear.
struct Owners {
    tenant: HashMap<u32, u16>,
    /// Blocks that processes without an alloc line touch.
    touched: HashMap<u32, BTreeSet<u64>>,
}

impl Owners {
    fn of(lines: &[Line]) -> Self {
        let mut touched: HashMap<u32, BTreeSet<u64>> = HashMap::new();
        let mut declared = BTreeSet::new();
        for line in lines {
            match line.event {
                Event::Memory { kind: Kind::Alloc, .. } => {
                    declared.insert(line.process);
                }
                Event::Memory { address, bytes, .. } => {
                    let (first, pages) = pages(address, bytes);
                    touched
                        .entry(line.process)
                        .or_default()
                        .extend(first / BLOCK_PAGES..=(first + pages - 1) / BLOCK_PAGES);
                }
                _ => {}
            }
        }
        touched.retain(|process, _| !declared.contains(process));
        Self { tenant: HashMap::new(), touched }
    }

    fn tenant(&mut self, trace: &mut Trace, process: u32, class: Class) -> Result<u16> {
        if let Some(tenant) = self.tenant.get(&process) {
            return Ok(*tenant);
        }
        let next = self.tenant.len();
        ensure!(next < TENANTS, "more than {TENANTS} processes");
        let tenant = next as u16;
        trace.owner(tenant, process, class);
        self.tenant.insert(process, tenant);
        for (first, count) in runs(self.touched.remove(&process).unwrap_or_default()) {
            trace.memory(Kind::Alloc, tenant, first * BLOCK_PAGES, count * BLOCK_PAGES, false);
        }
        Ok(tenant)
    }

    fn add(&mut self, trace: &mut Trace, line: &Line) -> Result<()> {
        match line.event {
            // The trace was begun with it.
            Event::Gpu { .. } if trace.len() == 1 => Ok(()),
            Event::Gpu { .. } => bail!("the gpu line must be the first"),
            Event::Process { class } => {
                ensure!(
                    !self.tenant.contains_key(&line.process),
                    "process {} has appeared before",
                    line.process
                );
                self.tenant(trace, line.process, class).map(|_| ())
            }
            Event::Memory { kind, address, bytes, writes } => {
                let tenant = self.tenant(trace, line.process, Class::Normal)?;
                let (first, pages) = pages(address, bytes);
                trace.memory(kind, tenant, first, pages, writes);
                Ok(())
            }
            Event::Task { kind, runlist, tsg, value } => {
                let tenant = self.tenant(trace, line.process, Class::Normal)?;
                trace.task_event(kind, tenant, tsg, runlist, value);
                Ok(())
            }
            Event::Tick => {
                trace.tick();
                Ok(())
            }
        }
    }
}

/// The pages that a range of bytes touches.
fn pages(address: u64, bytes: u64) -> (u64, u64) {
    let first = address / PAGE_BYTES;
    (first, (address + bytes).div_ceil(PAGE_BYTES) - first)
}

/// Numbers in a row: the first of each run, and how many.
fn runs(numbers: BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match all.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            _ => all.push((number, 1)),
        }
    }
    all
}

/// The fields of one line, taken from the left.
struct Fields<'t>(std::iter::Peekable<std::str::Split<'t, char>>);

impl<'t> Fields<'t> {
    fn word(&mut self, what: &str) -> Result<&'t str> {
        self.0.next().map(str::trim).with_context(|| format!("there is no {what}"))
    }

    /// A number, decimal or after 0x.
    fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let word = self.word(what)?;
        let value = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let value = value.with_context(|| format!("{what} {word:?}"))?;
        T::try_from(value).map_err(|_| anyhow!("{what} {word}: too large"))
    }

    fn optional<T: TryFrom<u64>>(&mut self, what: &str, default: T) -> Result<T> {
        if self.0.peek().is_some() { self.number(what) } else { Ok(default) }
    }
}

fn range_of(address: u64, bytes: u64) -> Result<(u64, u64)> {
    ensure!(bytes > 0, "0 bytes");
    let end = address.checked_add(bytes).filter(|end| *end < 1 << 63);
    ensure!(end.is_some(), "{address:#x} and {bytes} bytes: beyond any address space");
    ensure!(bytes / PAGE_BYTES < u64::from(u32::MAX), "{bytes} bytes: too many for one event");
    Ok((address, bytes))
}

fn csv_line(line: &str) -> Result<(u64, u32, Event)> {
    let mut fields = Fields(line.split(',').peekable());
    let time_ns = fields.number("time")?;
    let word = fields.word("event")?;
    if word == "gpu" {
        let event = Event::Gpu {
            chunks: fields.number("number of chunks")?,
            link_bytes_per_s: fields.optional("bytes per second", 0)?,
            number: fields.optional("GPU", 0)?,
        };
        return ended(fields, (time_ns, 0, event));
    }
    if word == "tick" {
        return ended(fields, (time_ns, 0, Event::Tick));
    }
    let (kind, writes) = match word {
        "process" => (Kind::Tenant, false),
        "alloc" => (Kind::Alloc, false),
        "free" => (Kind::Free, false),
        "read" => (Kind::Access, false),
        "write" => (Kind::Access, true),
        "take" => (Kind::Take, false),
        "task" => (Kind::Task, false),
        "bind" => (Kind::Bind, false),
        "timeslice" => (Kind::Timeslice, false),
        "submit" => (Kind::Submit, false),
        "destroy" => (Kind::Destroy, false),
        _ => bail!("{word:?} is no event"),
    };
    let process = fields.number("process")?;
    let event = match kind {
        Kind::Tenant => Event::Process { class: class_of(fields.word("class")?)? },
        Kind::Alloc | Kind::Free | Kind::Access | Kind::Take => {
            let (address, bytes) =
                range_of(fields.number("address")?, fields.number("number of bytes")?)?;
            Event::Memory { kind, address, bytes, writes }
        }
        _ => Event::Task {
            kind,
            runlist: fields.number("runlist")?,
            tsg: fields.number("task")?,
            value: match kind {
                Kind::Task => fields.optional("engine", 0)?,
                Kind::Timeslice => fields.number("number of microseconds")?,
                Kind::Submit => fields.number("number of nanoseconds")?,
                _ => 0,
            },
        },
    };
    ended(fields, (time_ns, process, event))
}

fn ended<T>(mut fields: Fields<'_>, line: T) -> Result<T> {
    match fields.0.next() {
        None => Ok(line),
        Some(more) => bail!("{more:?} is more than the event has"),
    }
}

fn class_of(word: &str) -> Result<Class> {
    Ok(match word {
        "normal" => Class::Normal,
        "guaranteed" => Class::Guaranteed,
        "preemptible" => Class::Preemptible,
        _ => bail!("{word:?} is no class; the classes are normal, guaranteed and preemptible"),
    })
}

/// A line of `sluice policy trace --json`; none if it is no fault.
fn json_line(line: &str) -> Result<Option<(u64, u32, Event)>> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    let event = value["event"].as_str().context("no event")?;
    if event != "fault" {
        return Ok(None);
    }
    let number = |name: &str| value[name].as_u64().with_context(|| format!("no number {name}"));
    let (address, bytes) = range_of(number("address")?, number("bytes")?)?;
    let writes = value["writes"].as_bool().context("writes is neither true nor false")?;
    let process = u32::try_from(number("pid")?)?;
    let event = Event::Memory { kind: Kind::Access, address, bytes, writes };
    Ok(Some((number("time_ns")?, process, event)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(u16, u16, u32, u64, u64)> {
        import(text, None, 0, &[])
            .expect("a good trace")
            .bytes()
            .chunks(32)
            .map(|record| {
                let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
                let long = |at: usize| u64::from_le_bytes(*record[at..].first_chunk().unwrap());
                let word = u32::from_le_bytes(*record[12..].first_chunk().unwrap());
                (half(8), half(10), word, long(16), long(24))
            })
            .collect()
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", import(text, Some(4), 0, &[]).expect_err("a bad trace"))
    }

    #[test]
    fn each_event_becomes_its_record() {
        let text = "\
# a comment
100,gpu,128,16000000000,2
100,process,4711,guaranteed
100,alloc,4711,0x200000,4194304

200,write,4711,0x200800,4096
300,take,4711,0x201000,4096
300,task,4711,1,7
300,submit,4711,1,7,5000
400,tick
400,free,4711,0x200000,4194304
";
        assert_eq!(
            words(text),
            [
                (1, 0, 128, 16_000_000_000, 2),
                (2, 0, 4711, 0, 1),
                (3, 0, 1024, 512, 0),
                (5, 0, 2, 512, 1),
                (6, 0, 1, 513, 0),
                (7, 0, 7, 1, 0),
                (10, 0, 7, 1, 5000),
                (12, 0, 0, 0, 0),
                (4, 0, 1024, 512, 0),
            ]
        );
    }

    #[test]
    fn the_first_line_is_at_time_0() {
        let trace = import("5000,read,1,0,1\n6000,read,1,0,1\n", Some(4), 0, &[]).expect("good");
        let bytes = trace.bytes();
        assert_eq!(bytes[bytes.len() - 32..][..8], 1000u64.to_le_bytes());
    }

    #[test]
    fn a_process_without_allocations_has_what_it_touches() {
        let text = "0,gpu,8\n0,read,9,0x400000,1\n0,read,9,0x5fffff,2\n0,read,9,0x80000000,1\n";
        assert_eq!(
            words(text)[1..4],
            [(2, 0, 9, 0, 0), (3, 0, 1024, 1024, 0), (3, 0, 512, 1024 * 512, 0)]
        );
    }

    #[test]
    fn faults_of_a_trace_by_this_project_are_taken_and_nothing_else() {
        let text = r#"
{"time_ns":10,"event":"fault","pid":3,"address":2097152,"bytes":8192,"writes":true}
{"time_ns":11,"event":"evict","pid":3}
"#;
        let trace = import(text, Some(4), 0, &[]).expect("good");
        assert_eq!(trace.len(), 4, "GPU, process, memory, fault");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, words) in [
            ("", "the trace has no event"),
            ("0,read,1,0,0", "line 1: 0 bytes"),
            ("0,read,1,0", "line 1: there is no number of bytes"),
            ("0,read,1,0,1,2", "line 1: \"2\" is more than the event has"),
            ("0,reed,1,0,1", "line 1: \"reed\" is no event"),
            ("1,tick\n0,tick", "line 2: time 0 is before the line above"),
            ("0,tick\n0,gpu,4", "line 2: the gpu line must be the first"),
            ("0,gpu,4", "line 1: the trace says how much memory"),
            ("0,process,1,rich", "line 1: \"rich\" is no class"),
            ("0,process,5000000000,normal", "line 1: process 5000000000: too large"),
            ("0,read,1,0xffffffffffffffff,2", "beyond any address space"),
            ("{\"event\":\"fault\"}", "line 1: no number address"),
        ] {
            assert!(refusal(text).contains(words), "{text}: {}", refusal(text));
        }
        let said = format!("{:#}", import("0,tick", None, 0, &[]).expect_err("no GPU"));
        assert!(said.contains("say --chunks"), "{said}");
    }
}
