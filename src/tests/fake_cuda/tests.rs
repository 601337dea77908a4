// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fake driver itself: what it is strict about, and each fault on demand.
//! A driver is one per process, so each test runs in a process of its own.
#![allow(unsafe_code)]

mod card;
mod faults;
mod strictness;

#[test]
fn the_reference_names_every_word_and_its_number() {
    const PAGE: &str = include_str!("../../../docs/reference/fake-driver.md");
    let numbers = |cell: &str| -> Vec<usize> {
        let parts = cell.split(", ").map(|part| part.split_once('-').unwrap_or((part, part)));
        parts.flat_map(|(a, b)| a.parse().unwrap()..=b.parse().unwrap()).collect()
    };
    for (word, name, _) in fake_cuda::control::ALL {
        let number = *word as usize;
        let listed = PAGE.lines().filter(|line| line.starts_with("| `")).any(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let others = name.starts_with("others-") && cells[0].contains("`others-0` ...");
            numbers(cells[1]).contains(&number)
                && (others || cells[0].contains(&format!("`{name}`")))
        });
        assert!(listed, "{name} ({number}) is not in docs/reference/fake-driver.md");
    }
}
