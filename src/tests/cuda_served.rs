// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve` on the fake driver, as it is shipped, over its socket: right
//! pages, errors at the start, and each failure of a card while it serves. A
//! client may get an I/O error then, and never a wrong page.

mod cuda_rounds;
mod cuda_support;

use std::path::{Path, PathBuf};

use cuda_support::fake_folder;
use cuda_support::served::{Ended, Served, spill_in};
use fake_cuda::control::{Control, VARIABLE, Word};
use fake_cuda::{CALLS, Call};
use sluice::block::nbd::client::Client;
use sluice::engine::error::Kind;

const PAGE: usize = 4096;

/// A fake card of its own for each test.
struct World {
    folder: tempfile::TempDir,
    driver: PathBuf,
    control: Control,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let driver = fake_folder(folder.path());
        let control = Control::create(&folder.path().join("control")).unwrap();
        Self { folder, driver, control }
    }

    fn try_serve(&self, arguments: &[&str]) -> Result<Served, Ended> {
        let control = self.folder.path().join("control");
        let environment: [(&str, &Path); 2] =
            [("LD_LIBRARY_PATH", &self.driver), (VARIABLE, &control)];
        Served::start(self.folder.path(), arguments, &environment)
    }

    fn serve(&self) -> Served {
        self.try_serve(&["--size", "128M"]).unwrap_or_else(|ended| panic!("{}", ended.stderr))
    }

    /// Nothing is held of the driver, and it was used rightly throughout.
    fn is_left_as_found(&self) {
        let words = [
            Word::Handles,
            Word::Mappings,
            Word::Reservations,
            Word::Registrations,
            Word::Streams,
            Word::Events,
            Word::Contexts,
            Word::Misuses,
        ];
        let left = words.map(|word| (word, self.control.get(word)));
        assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
    }
}

fn page_of(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

/// Writes a page full of its own number to each of `pages`.
fn write_pages(client: &mut Client, pages: std::ops::Range<usize>) {
    for page in pages {
        client.write((page * PAGE) as u64, &page_of(page as u8 | 1)).unwrap();
    }
}

/// Reads the pages that `write_pages` wrote: how many were right. The others
/// were I/O errors; a wrong one fails the test.
fn right_pages(client: &mut Client, pages: std::ops::Range<usize>) -> usize {
    pages
        .filter(|page| {
            let mut found = page_of(0);
            match client.read((page * PAGE) as u64, &mut found) {
                Ok(()) => {
                    assert_eq!(found, page_of(*page as u8 | 1), "page {page} is wrong");
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Io, "{error}");
                    false
                }
            }
        })
        .count()
}

#[test]
fn pages_are_right_over_one_and_four_and_eight_connections_and_all_is_given_back() {
    let world = World::new();
    world.control.set(Word::NotReadyAnswers, 2);
    let served = world.serve();
    for connections in ["1", "4", "8"] {
        let (code, report) = served.bench(&["--connections", connections, "--seconds", "1"]);
        let result = &report["results"][0]["median"];
        let wrong = (&result["mismatches"], &result["errors"]);
        assert_eq!((code, wrong), (0, (&0.into(), &0.into())), "{report}");
        assert!(result["verified"].as_u64() > Some(0), "{report}");
    }
    let (code, report) = served.bench(&["--block", "1M", "--depth", "4", "--seconds", "1"]);
    assert_eq!(code, 0, "{report}");
    let ended = served.stop();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    assert!(world.control.get(Word::CopiesDone) > 1000);
    world.is_left_as_found();
}

/// Functions whose failure at the start may be survived, and those that no
/// start calls.
fn is_optional(call: Call) -> bool {
    matches!(
        call,
        Call::DeviceGetUuid
            | Call::DeviceGetPCIBusId
            | Call::ModuleLoadData
            | Call::StreamWriteValue32
    )
}

#[test]
fn whichever_call_fails_first_serve_ends_with_one_error_and_no_panic() {
    let world = World::new();
    let mut failed = 0;
    for (call, name) in CALLS {
        world.control.set(Word::CallFails, *call as u64);
        world.control.set(Word::CallFailAt, 1);
        world.control.set(Word::CallFailCode, 801);
        let outcome = world.try_serve(&["--size", "64M"]);
        let was_called = world.control.get(Word::CallFailAt) == 0;
        match outcome {
            Ok(served) => {
                assert!(!was_called || is_optional(*call), "{name} failed and it serves");
                assert!(served.stop().status.success(), "{name}");
            }
            Err(Ended { status, stderr }) => {
                assert_eq!(status.code(), Some(1), "{name}: {stderr}");
                assert!(was_called && !stderr.contains("panicked"), "{name}: {stderr}");
                assert!(
                    stderr.starts_with("sluice: ") && stderr.contains("801"),
                    "{name}: {stderr}"
                );
                failed += 1;
            }
        }
    }
    // From cuInit to the access of the first slab; a served client needs more.
    assert!(failed >= 12, "only {failed} calls were reached");
}

#[test]
fn a_card_without_room_is_refused_with_the_arithmetic() {
    let world = World::new();
    world.control.set_others(0, 900 << 20);
    let Err(Ended { status, stderr }) = world.try_serve(&["--size", "512M"]) else {
        panic!("it serves more than there is");
    };
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("free") && stderr.contains("\n  next: "), "{stderr}");
    world.is_left_as_found();
}

#[test]
fn a_copy_that_fails_is_an_error_for_its_client_and_never_a_wrong_page() {
    let world = World::new();
    let mut served = world.serve();
    let mut client = served.client();
    write_pages(&mut client, 0..64);
    assert_eq!(right_pages(&mut client, 0..64), 64);
    world.control.set(Word::CopyFailCode, 999);
    world.control.set(Word::CopyFailAt, 5);
    assert!(right_pages(&mut client, 0..64) < 64);
    assert!(served.is_alive());
    // The card is not lost: somebody else's stream still reaches it.
    assert_eq!(right_pages(&mut served.client(), 0..64), 64);
    drop(client);
    assert!(served.stop().status.success());
    world.is_left_as_found();
}

#[test]
fn a_card_lost_at_a_completion_is_io_errors_and_the_server_lives() {
    let world = World::new();
    let mut served = world.serve();
    let mut client = served.client();
    write_pages(&mut client, 0..64);
    world.control.set(Word::AsyncFailAt, 10);
    assert_eq!(right_pages(&mut client, 0..64), 9);
    assert_eq!(right_pages(&mut client, 0..64), 0);
    let error = client.write(0, &page_of(1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Io, "{error}");
    // What was never written needs no card.
    let mut zeros = page_of(1);
    client.read(100 << 20, &mut zeros).unwrap();
    assert_eq!(zeros, page_of(0));
    drop(client);
    // Who comes now is served, too, as far as there is anything to serve.
    let mut late = served.client();
    assert_eq!(right_pages(&mut late, 0..64), 0);
    late.read(100 << 20, &mut zeros).unwrap();
    drop(late);
    assert!(served.is_alive());
    let ended = served.stop();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    assert_eq!(world.control.get(Word::Misuses), 0);
}

#[test]
fn a_driver_without_any_memory_refuses_two_clients_and_leaves_the_spill_to_the_third() {
    let world = World::new();
    let spill = spill_in(world.folder.path());
    let arguments = ["--size", "64M", "--spill", spill.to_str().unwrap()];
    let mut served = world.try_serve(&arguments).unwrap_or_else(|ended| panic!("{}", ended.stderr));
    let mut early = served.client();
    write_pages(&mut early, 0..8);
    world.control.set(Word::LostCode, 2);
    world.control.set(Word::LostDevices, 1);
    for _ in 0..2 {
        assert!(Client::connect(&served.socket, "").is_err());
    }
    let mut late = served.client();
    let elsewhere = 40 << 20;
    let mut found = page_of(1);
    late.read(elsewhere, &mut found).unwrap();
    assert_eq!(found, page_of(0));
    late.write(elsewhere, &page_of(9)).unwrap();
    late.read(elsewhere, &mut found).unwrap();
    assert_eq!(found, page_of(9));
    // The card's own are errors, until they are written anew.
    assert_eq!(right_pages(&mut late, 0..8), 0);
    write_pages(&mut late, 0..8);
    assert_eq!((right_pages(&mut late, 0..8), right_pages(&mut early, 0..8)), (8, 8));
    assert!(served.is_alive());
}

#[test]
fn wrong_data_from_a_card_are_errors_and_not_one_wrong_page() {
    let world = World::new();
    world.control.set(Word::NotReadyAnswers, 1);
    let served = world.serve();
    for direction in [1, 2] {
        // A new client's lane is tried out, and is tried with a card that is well.
        let clients: Vec<Client> = (0..4).map(|_| served.client()).collect();
        world.control.set(Word::FaultDirection, direction);
        world.control.set(Word::CorruptEvery, 7);
        let right: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .enumerate()
                .map(|(number, mut client)| {
                    let pages = number * 256..number * 256 + 128;
                    scope.spawn(move || {
                        let mut right = 0;
                        for page in pages.clone() {
                            // What cannot be placed on a slab with a bad page is an error.
                            let byte = page_of(page as u8 | 1);
                            if client.write((page * PAGE) as u64, &byte).is_ok() {
                                right += right_pages(&mut client, page..page + 1);
                            }
                        }
                        right
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(right.iter().sum::<usize>() < 4 * 128, "{right:?}: nothing was spoiled");
        assert!(world.control.get(Word::CopiesCorrupted) > 0);
        world.control.set(Word::CorruptEvery, 0);
    }
    assert!(served.stop().status.success());
    world.is_left_as_found();
}

#[test]
fn a_card_that_stalls_is_an_error_at_the_deadline_and_harmless_when_it_goes_on() {
    let world = World::new();
    let mut served = world.serve();
    let mut client = served.client();
    write_pages(&mut client, 0..32);
    world.control.set(Word::StalledDevices, 1);
    let mut found = page_of(0);
    let error = client.read(0, &mut found).unwrap_err();
    assert_eq!(error.kind(), Kind::Io, "{error}");
    world.control.set(Word::StalledDevices, 0);
    // The late copy arrives in a buffer that nobody else was given.
    for _ in 0..20 {
        right_pages(&mut client, 0..32);
    }
    assert!(served.is_alive());
    right_pages(&mut served.client(), 0..32);
    assert_eq!(world.control.get(Word::Misuses), 0);
}

#[test]
fn a_copy_call_that_never_returns_holds_up_its_own_client_only() {
    let world = World::new();
    let mut served = world.serve();
    let mut client = served.client();
    write_pages(&mut client, 0..32);
    world.control.set(Word::HangCopyAt, 1);
    let hung = std::thread::spawn(move || {
        let mut found = page_of(0);
        client.read(0, &mut found)
    });
    while world.control.get(Word::HangCopyAt) != 0 {
        std::thread::yield_now();
    }
    assert_eq!(right_pages(&mut served.client(), 1..32), 31);
    assert!(served.is_alive());
    drop(served);
    hung.join().unwrap().unwrap_err();
}
