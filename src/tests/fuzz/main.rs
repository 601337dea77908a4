// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutates the corpus for a long time: `sluice-fuzz codec CASES [SEED]` against
//! all that reads bytes without a socket, `sluice-fuzz server SECONDS [SEED]`
//! against the whole server. An input that breaks something is saved and named.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nbd_support::Dice;
use nbd_support::fuzzing::{corpus, mutate, throw, throw_at_the_codec};

#[allow(dead_code, reason = "shared with the test suites, which use the rest")]
#[path = "../nbd_support/mod.rs"]
mod nbd_support;

/// What is fuzzed, and for how long.
enum Run {
    Codec { cases: u64 },
    Server { end: Instant },
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((run, first)) = parse(&words) else {
        eprintln!("usage: sluice-fuzz codec CASES [SEED] | server SECONDS [SEED]");
        return ExitCode::from(2);
    };
    let corpus = corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let mut seed = first;
    let goes_on = |seed: u64| match run {
        Run::Codec { cases } => seed - first < cases,
        Run::Server { end } => Instant::now() < end,
    };
    while goes_on(seed) {
        let input = mutate(&corpus, &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        let attempt = AssertUnwindSafe(|| match run {
            Run::Codec { .. } => throw_at_the_codec(&input),
            Run::Server { .. } => throw(&input),
        });
        if catch_unwind(attempt).is_err() {
            let path = format!("nbd-fuzz-{seed}");
            let saved = std::fs::write(&path, &input);
            eprintln!("seed {seed} broke it; input {path}: {saved:?}");
            return ExitCode::FAILURE;
        }
        seed += 1;
    }
    println!("{} inputs survived, seeds {first} to {}", seed - first, seed - 1);
    ExitCode::SUCCESS
}

fn parse(words: &[String]) -> Option<(Run, u64)> {
    let (kind, count, seed) = match words {
        [kind, count] => (kind, count, 1),
        [kind, count, seed] => (kind, count, seed.parse().ok()?),
        _ => return None,
    };
    let count = count.parse().ok()?;
    match kind.as_str() {
        "codec" => Some((Run::Codec { cases: count }, seed)),
        "server" => Some((Run::Server { end: Instant::now() + Duration::from_secs(count) }, seed)),
        _ => None,
    }
}
