// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-fuzz SECONDS [SEED]`: mutates the corpus against the NBD server until
//! the time is up. An input that breaks something is saved and named.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nbd_support::Dice;
use nbd_support::fuzzing::{corpus, mutate, throw};

#[allow(dead_code, reason = "shared with the test suites, which use the rest")]
#[path = "../nbd_support/mod.rs"]
mod nbd_support;

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let (seconds, first) = match numbers.as_deref() {
        Ok(&[seconds]) => (seconds, 1),
        Ok(&[seconds, seed]) => (seconds, seed),
        _ => {
            eprintln!("usage: sluice-fuzz SECONDS [SEED]");
            return ExitCode::from(2);
        }
    };
    let corpus = corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = first;
    while Instant::now() < end {
        let input = mutate(&corpus, &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        if catch_unwind(AssertUnwindSafe(|| throw(&input))).is_err() {
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
