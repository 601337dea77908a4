// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold on every card, real or fake: on the driver library that
//! `SLUICE_TEST_CUDA_LIBRARY` names, else on the fake one. Nothing is skipped.

mod conformance;
mod cuda_support;
mod outlive;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use cuda_support::bed::{PAGE, open};
use cuda_support::custody::{Held, arguments};
use cuda_support::reconnecting::Reconnecting;
use sluice::engine::error::Kind;
use sluice::engine::units::SLAB_BYTES;

#[test]
fn slabs_survive_the_killing_of_their_exporter() {
    outlive::slabs_survive_their_process("slabs_survive_the_killing_of_their_exporter", |slabs| {
        open(0, "0", slabs).unwrap()
    });
}

#[test]
fn every_gpu_conforms() {
    let mut known = 0;
    loop {
        let tier = match open(known, &known.to_string(), 2) {
            Ok(tier) => tier,
            Err(error) if known > 0 && error.kind() == Kind::Missing => break,
            Err(error) => panic!("{error}"),
        };
        conformance::conforms(&tier);
        known += 1;
    }
}

/// A number that the environment sets, else `usual`.
fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().expect(name))
}

#[test]
fn a_store_that_is_killed_again_and_again_under_load_loses_no_page() {
    const CLIENTS: usize = 4;
    /// Requests answered between two kills.
    const BETWEEN: u64 = 2000;
    let kills = setting("SLUICE_TEST_KILLS", 5);
    let mebibytes = setting("SLUICE_TEST_KILL_MIB", 256);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut store = Held::start(arguments(&socket, &format!("{mebibytes}M")));
    let pages = (mebibytes << 20) / PAGE / CLIENTS;
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let totals = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let mut client = Reconnecting::new(&socket, number * pages, pages);
                let (answered, stop) = (&answered, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.step();
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    (client.verify_all(), client.resent, client.longest)
                })
            })
            .collect();
        let more_is_answered = || {
            let goal = answered.load(Ordering::Relaxed) + BETWEEN;
            while answered.load(Ordering::Relaxed) < goal {
                assert!(!clients.iter().any(ScopedJoinHandle::is_finished), "a client gave up");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for kill in 1..=kills {
            more_is_answered();
            let slabs = store.kill();
            println!("kill {kill}: {slabs} slabs were held");
            assert_eq!(slabs, (mebibytes << 20) / SLAB_BYTES);
        }
        more_is_answered();
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let written: usize = totals.iter().map(|(written, ..)| written).sum();
    let resent: u64 = totals.iter().map(|(_, resent, _)| resent).sum();
    let longest = totals.iter().map(|(.., longest)| *longest).max().unwrap();
    println!(
        "{kills} kills: {written} pages written and right, 0 lost, 0 wrong; {resent} requests sent \
         again, the longest answered after {} ms",
        longest.as_millis()
    );
    assert!(resent >= kills as u64, "{resent} requests were in flight at {kills} kills");
    store.stop();
}
