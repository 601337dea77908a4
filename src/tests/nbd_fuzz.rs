// SPDX-License-Identifier: MIT OR Apache-2.0
//! A short, reproducible fuzz run; `sluice-fuzz` is the long one.

use std::path::{Path, PathBuf};

use crate::nbd_support::Dice;
use crate::nbd_support::fuzzing::{corpus, mutate, throw, throw_at_the_codec};

fn committed() -> Vec<(PathBuf, Vec<u8>)> {
    corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/fuzz/corpus"))
}

#[test]
fn every_input_of_the_corpus_is_survived() {
    for (path, input) in committed() {
        println!("{}", path.display());
        throw(&input);
    }
}

#[test]
fn five_hundred_mutations_are_survived() {
    let corpus = committed();
    for seed in 1..=500 {
        println!("seed {seed}");
        throw(&mutate(&corpus, &mut Dice(seed << 20)));
    }
}

#[test]
fn the_codec_survives_a_hundred_thousand_mutations() {
    let corpus = committed();
    for seed in 1..=100_000 {
        throw_at_the_codec(&mutate(&corpus, &mut Dice(seed << 20)));
    }
}
