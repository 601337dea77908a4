// SPDX-License-Identifier: MIT OR Apache-2.0
//! The load generator of `sluice bench`: latency, IOPS and throughput of any
//! NBD server on a Unix socket and of any block device or file, with every
//! page's contents checked.
//!
//! [`plan`] says what to do, [`book`] chooses requests and knows what each
//! block must hold, [`contents`] is what a page looks like, [`socket`] and
//! [`device`] move the data, [`histogram`] keeps the latencies and [`report`]
//! the results. [`guard`] keeps it from overwriting somebody's data.
//!
//! # Figures contract
//! A request's latency runs from the moment its batch is built to the moment
//! its reply is in our memory; the time to check contents is not in it. Nothing
//! is allocated while the clock runs. The rate counts all requests answered over
//! the time from the start until the last answer.

pub mod book;
pub mod contents;
pub mod device;
pub mod guard;
pub mod histogram;
pub mod plan;
pub mod report;
pub mod socket;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::engine::error::Result;
use crate::engine::units::PAGE_BYTES;
use book::Book;
use contents::Difference;
use histogram::Histogram;
use plan::{Plan, Target};
use report::{Report, Round};

/// What a worker counted. Merged over the workers of a round.
#[derive(Debug, Default)]
pub struct Tally {
    /// Latencies of reads.
    pub reads: Histogram,
    /// Latencies of writes.
    pub writes: Histogram,
    /// Reads whose contents were known and compared.
    pub verified: u64,
    /// Compared, and wrong.
    pub mismatches: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// The first mismatches and errors, in words.
    pub details: Vec<String>,
}

/// More details than this tell nothing new.
const MAX_DETAILS: usize = 8;

impl Tally {
    fn note(&mut self, detail: impl FnOnce() -> String) {
        if self.details.len() < MAX_DETAILS {
            self.details.push(detail());
        }
    }

    /// Checks a block that was read.
    fn compare(&mut self, book: &Book, index: usize, version: u32, found: &[u8]) {
        self.verified += 1;
        let mut pages = found.chunks_exact(PAGE_BYTES).enumerate();
        let wrong = pages.find_map(|(within, bytes)| {
            let expected = book.page(index, within as u64, version);
            (!expected.is(bytes)).then_some((expected, bytes))
        });
        if let Some((expected, found)) = wrong {
            self.mismatches += 1;
            self.note(|| Difference { expected, found }.to_string());
        }
    }

    /// Forgets the latencies of a fill, and keeps what went wrong in it.
    fn restart(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    fn absorb(&mut self, other: Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        self.errors += other.errors;
        let room = MAX_DETAILS.saturating_sub(self.details.len());
        self.details.extend(other.details.into_iter().take(room));
    }
}

/// One stream of requests into a target, with its own part of the span.
pub(crate) trait Worker: Send {
    /// Writes every block of the worker's part once.
    fn fill(&mut self) -> Result<()>;
    /// Sends requests until `end` and waits for the last answer.
    fn run(&mut self, start: Instant, end: Instant) -> Result<()>;
    /// What was counted; emptied by a fill.
    fn into_tally(self: Box<Self>) -> Tally;
}

/// Measures the plan's targets in turns. `progress` is told before each round
/// which target it is and which round of how many.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str, u32, u32)) -> Result<Report> {
    let mut report = Report::new(plan);
    for target in &plan.targets {
        guard::allow(target, plan)?;
    }
    for number in 1..=plan.rounds {
        for (place, target) in plan.targets.iter().enumerate() {
            progress(&plan.names[place], number, plan.rounds);
            let round = measure(target, plan)?;
            report.results[place].rounds.push(round);
        }
    }
    report.conclude();
    Ok(report)
}

/// One round: fresh connections, every block's contents unknown at first.
fn measure(target: &Target, plan: &Plan) -> Result<Round> {
    let mut workers = match target {
        Target::Nbd { socket, name } => socket::workers(socket, name, plan)?,
        Target::Path(path) => device::workers(path, plan)?,
    };
    if plan.fill {
        all(&mut workers, |worker| worker.fill())?;
    }
    let start = Instant::now();
    let end = start + Duration::from_secs(plan.seconds);
    all(&mut workers, |worker| worker.run(start, end))?;
    let seconds = start.elapsed().as_secs_f64();
    let mut tally = Tally::default();
    for worker in workers {
        tally.absorb(worker.into_tally());
    }
    Ok(Round::new(&tally, seconds, plan.block_bytes))
}

/// Runs `work` on every worker at once, each in its own thread; the first failure counts.
fn all(
    workers: &mut [Box<dyn Worker>],
    work: impl Fn(&mut dyn Worker) -> Result<()> + Sync,
) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| work(worker.as_mut()))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a worker panicked"))
            .fold(Ok(()), Result::and)
    })
}

/// Sleeps until `when`, or not at all if it is past.
fn sleep_until(when: Instant) {
    std::thread::sleep(when.saturating_duration_since(Instant::now()));
}

/// The first of `start`, `start + interval`, ... that is neither `number` 0's
/// predecessor nor past: ticks that a slow answer has covered are left out.
fn tick(start: Instant, interval: Duration, number: &mut u32) -> Instant {
    *number += 1;
    let passed = start.elapsed().as_nanos() / interval.as_nanos().max(1);
    *number = (*number).max(u32::try_from(passed).unwrap_or(u32::MAX));
    start + interval * *number
}

/// A number that differs from run to run, so that what an earlier run left on
/// a target is not taken for this one's.
fn run_number() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ now.as_secs() as u32 ^ std::process::id().rotate_left(16)
}
