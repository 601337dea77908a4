// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transmission loop with well-behaved clients: order, size, sleep, end.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sluice::block::nbd::connection::{Connection, Ended, Heartbeat, Options, Reason, Sockets};
use sluice::block::nbd::waker::EventWaker;
use sluice::block::nbd::wire::{cmd, cmd_flag, errno};
use sluice::engine::io::Failure;

use crate::nbd_support::client::Client;
use crate::nbd_support::memory_io::{Disk, MemoryIo, Style};
use crate::nbd_support::served::{DISK_BYTES, Served, options};
use crate::nbd_support::{Dice, PAGE, pattern};

const P: u32 = PAGE as u32;
const STYLES: [Style; 3] = [Style::Prompt, Style::Shuffled(11), Style::Woken(12)];

fn page(index: usize) -> u64 {
    (index * PAGE) as u64
}

#[test]
fn random_requests_at_depth_agree_with_a_model() {
    for (style, seed) in STYLES.into_iter().zip(1u64..) {
        let mut served = Served::new(style);
        let client = &mut served.client;
        let mut dice = Dice(seed * 0x9e37_79b9);
        let pages = DISK_BYTES / PAGE;
        let mut model = vec![0u8; DISK_BYTES];
        // The pages of requests in flight do not overlap, as with any sane client.
        let mut flying: HashMap<u64, (u16, std::ops::Range<usize>)> = HashMap::new();
        for _ in 0..3000 {
            while flying.len() >= 24 {
                settle(client, &mut flying, &model);
            }
            let count = if dice.below(20) == 0 { 1 + dice.below(200) } else { 1 + dice.below(4) };
            let first = dice.below(pages - count);
            let range = first * PAGE..(first + count) * PAGE;
            if flying.values().any(|(_, other)| other.start < range.end && range.start < other.end)
            {
                continue;
            }
            let (offset, bytes) = (range.start as u64, range.len() as u32);
            let (kind, cookie) = match dice.below(8) {
                0..3 => (cmd::READ, client.ask(cmd::READ, offset, bytes)),
                3..6 => {
                    let data: Vec<u8> = (0..count).flat_map(|_| pattern(dice.roll())).collect();
                    model[range.clone()].copy_from_slice(&data);
                    (cmd::WRITE, client.write(offset, &data))
                }
                6 => {
                    model[range.clone()].fill(0);
                    (cmd::TRIM, client.ask(cmd::TRIM, offset, bytes))
                }
                _ => {
                    model[range.clone()].fill(0);
                    (cmd::WRITE_ZEROES, client.ask(cmd::WRITE_ZEROES, offset, bytes))
                }
            };
            flying.insert(cookie, (kind, range));
        }
        while !flying.is_empty() {
            settle(client, &mut flying, &model);
        }
        let flushed = client.ask(cmd::FLUSH, 0, 0);
        client.expect(flushed, 0);
        assert!(*served.disk.bytes() == model, "{style:?}: the disk differs from the model");
        let (ended, _) = served.hang_up();
        assert_eq!((ended.reason, ended.open), (Reason::Closed, 0), "{style:?}");
    }
}

fn settle(
    client: &mut Client,
    flying: &mut HashMap<u64, (u16, std::ops::Range<usize>)>,
    model: &[u8],
) {
    let (reply, data) = client.reply().unwrap();
    assert_eq!(reply.error, 0);
    let (kind, range) = flying.remove(&reply.cookie).expect("a reply nobody asked for");
    if kind == cmd::READ {
        assert!(data == model[range.clone()], "{range:?} reads back wrong");
    }
}

#[test]
fn a_request_that_is_stuck_holds_up_no_other() {
    for style in STYLES {
        let mut served = Served::new(style);
        served.disk.hold(page(5));
        let stuck = served.client.ask(cmd::READ, page(5), P);
        for other in 0..100 {
            served.client.read(page(other % 4), P);
        }
        served.disk.let_go();
        served.client.expect(stuck, 0);
        served.hang_up();
    }
}

#[test]
fn more_requests_than_tickets_are_all_answered_once() {
    for style in STYLES {
        let mut served = Served::new(style);
        served.disk.hold(page(0));
        let mut waiting: Vec<u64> =
            (0..MemoryIo::MAX_REQUESTS * 5).map(|_| served.client.ask(cmd::READ, 0, P)).collect();
        served.disk.await_open(MemoryIo::MAX_REQUESTS);
        served.disk.let_go();
        while !waiting.is_empty() {
            let (reply, _) = served.client.reply().unwrap();
            let at = waiting.iter().position(|&cookie| cookie == reply.cookie).unwrap();
            waiting.swap_remove(at);
        }
        served.hang_up();
    }
}

#[test]
fn the_largest_payload_arrives_in_any_pieces() {
    for style in STYLES {
        let mut served = Served::new(style);
        let bytes = MemoryIo::MAX_PAYLOAD;
        let data: Vec<u8> = (0..u64::from(bytes / P)).flat_map(|at| pattern(at + 9)).collect();
        let request = served.client.request(cmd::WRITE, cmd_flag::FUA, page(3), bytes);
        let mut sent = [&request.encode()[..], &data].concat();
        // The next request sits right behind the payload.
        let next = served.client.request(cmd::READ, 0, page(3), bytes);
        sent.extend_from_slice(&next.encode());
        let mut dice = Dice(5);
        let mut rest = &sent[..];
        for _ in 0..40 {
            let (piece, left) = rest.split_at(1);
            served.client.send(piece);
            rest = left;
        }
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(rest.len().min(1 + dice.below(70_000)));
            served.client.send(piece);
            rest = left;
        }
        let mut got = HashMap::new();
        for _ in 0..2 {
            let (reply, read) = served.client.reply().unwrap();
            assert_eq!(reply.error, 0);
            got.insert(reply.cookie, read);
        }
        // Unordered requests may see either state; a read after the reply may not.
        assert_eq!(got.len(), 2);
        assert!(served.client.read(page(3), bytes) == data, "{style:?}");
        served.hang_up();
    }
}

#[test]
fn every_failure_reaches_the_client_and_the_next_request_works() {
    let mut served = Served::new(Style::Prompt);
    let failures = [
        (Failure::Io, errno::EIO),
        (Failure::Checksum, errno::EIO),
        (Failure::TimedOut, errno::EIO),
        (Failure::OutOfRange, errno::EINVAL),
    ];
    for (at, (failure, errno)) in failures.into_iter().enumerate() {
        served.disk.fail(page(at), failure);
        let read = served.client.ask(cmd::READ, page(at), P);
        served.client.expect(read, errno);
        let write = served.client.write(page(at), &pattern(1));
        served.client.expect(write, errno);
        let trim = served.client.ask(cmd::TRIM, page(at), P);
        served.client.expect(trim, errno);
        assert_eq!(served.client.read(page(100), P), vec![0; PAGE]);
    }
    served.hang_up();
}

#[test]
fn a_goodbye_is_followed_by_the_open_replies_and_the_end() {
    for style in STYLES {
        let mut served = Served::new(style);
        served.disk.hold(page(7));
        let open = served.client.write(page(7), &pattern(7));
        served.client.ask(cmd::DISC, 0, 0);
        served.disk.await_open(1);
        served.disk.let_go();
        served.client.expect(open, 0);
        served.client.expect_closed();
        let (ended, _, disk) = served.join();
        assert_eq!((ended.reason, ended.open), (Reason::Disconnected, 0), "{style:?}");
        assert_eq!(disk.bytes()[7 * PAGE..8 * PAGE], pattern(7));
    }
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let mut served = Served::new(Style::Woken(3));
    let asked: Vec<u64> = (0..20).map(|at| served.client.ask(cmd::READ, page(at), P)).collect();
    served.client.stream.shutdown(Shutdown::Write).unwrap();
    let mut answered: Vec<u64> =
        std::iter::from_fn(|| served.client.reply()).map(|(reply, _)| reply.cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, asked);
    assert_eq!(served.join().0.reason, Reason::Closed);
}

#[test]
fn open_requests_outlive_a_client_that_is_gone() {
    for style in STYLES {
        let mut served = Served::new(style);
        served.disk.hold(page(2));
        served.client.write(page(2), &pattern(2));
        served.disk.await_open(1);
        let disk = served.disk.clone();
        let releaser = std::thread::spawn(move || {
            // Either order is right; this makes the interesting one likely.
            std::thread::sleep(Duration::from_millis(20));
            disk.let_go();
        });
        let (ended, disk) = served.hang_up();
        releaser.join().unwrap();
        assert_eq!((ended.reason, ended.open), (Reason::Closed, 0), "{style:?}");
        assert_eq!(Arc::strong_count(&disk), 1, "{style:?}: the store was not freed");
        assert_eq!(disk.bytes()[2 * PAGE..3 * PAGE], pattern(2));
    }
}

#[test]
fn a_request_that_never_finishes_comes_back_as_unclean() {
    for style in STYLES {
        let linger = Duration::from_millis(30);
        let mut served = Served::with(style, Options { linger, ..options() }, |run| run());
        served.disk.hold(page(2));
        served.client.write(page(2), &pattern(2));
        served.client.write(page(3), &pattern(3));
        served.disk.await_open(1);
        let (ended, disk) = served.hang_up();
        assert_eq!((ended.reason, ended.open), (Reason::Closed, 1), "{style:?}");
        // Its memory is kept: the store's reference to the disk is still there.
        assert_eq!(Arc::strong_count(&disk), 2, "{style:?}");
        assert_eq!(disk.bytes()[2 * PAGE..3 * PAGE], vec![0; PAGE]);
        assert_eq!(disk.bytes()[3 * PAGE..4 * PAGE], pattern(3));
    }
}

#[test]
fn one_connection_serves_one_stream_after_another() {
    let disk = Disk::new(DISK_BYTES);
    let wake = Arc::new(EventWaker::new().unwrap());
    let stop = EventWaker::new().unwrap();
    let io = MemoryIo::new(disk.clone(), Style::Prompt, wake.clone());
    let mut connection = Connection::new(io, options());
    for round in 0..5 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = std::thread::spawn(move || {
            let mut client = Client::new(ours);
            let written = client.write(page(round), &pattern(round as u64));
            client.expect(written, 0);
            // Cut off inside a payload: nothing of it may leak into the next stream.
            let cut = client.request(cmd::WRITE, 0, 0, 8 * P);
            client.send(&[&cut.encode()[..], &[9; 5000]].concat());
        });
        let sockets = Sockets { socket: theirs.into(), wake: wake.as_fd(), stop: stop.as_fd() };
        let ended = connection.run(sockets, &Heartbeat::default());
        assert_eq!(ended, Ended { reason: Reason::Closed, open: 0 });
        client.join().unwrap();
        assert_eq!(disk.bytes()[round * PAGE..][..PAGE], pattern(round as u64));
    }
}

#[test]
fn stop_answers_what_is_open_and_closes_an_idle_or_busy_connection() {
    for style in STYLES {
        let mut idle = Served::new(style);
        idle.client.read(0, P);
        idle.stop();
        idle.client.expect_closed();
        assert_eq!(idle.join().0.reason, Reason::Stopped);

        let mut open = Served::new(style);
        open.disk.hold(page(1));
        let cookie = open.client.ask(cmd::READ, page(1), P);
        open.disk.await_open(1);
        open.stop();
        open.disk.let_go();
        open.client.expect(cookie, 0);
        open.client.expect_closed();
        assert_eq!(open.join().0.open, 0);

        let mut busy = Served::new(style);
        let mut writer = busy.client.stream.try_clone().unwrap();
        let read = busy.client.request(cmd::READ, 0, 0, P).encode().repeat(200);
        let sender = std::thread::spawn(move || while writer.write_all(&read).is_ok() {});
        busy.client.expect(0xc00c_1e01, 0);
        busy.stop();
        std::io::copy(&mut busy.client.stream, &mut std::io::sink()).ok();
        sender.join().unwrap();
        let ended = busy.join().0;
        assert_eq!((ended.reason, ended.open), (Reason::Stopped, 0), "{style:?}");
    }
}

#[test]
fn stop_is_seen_by_a_thread_that_never_sleeps() {
    // It looks for work for an hour before it would sleep.
    let restless = Options { spin: Duration::from_secs(3600), ..options() };
    let mut served = Served::with(Style::Prompt, restless, |run| run());
    served.client.read(0, P);
    served.stop();
    served.client.expect_closed();
    assert_eq!(served.join().0.reason, Reason::Stopped);
}

#[test]
fn an_idle_connection_sleeps_and_says_so() {
    for style in STYLES {
        let mut served = Served::new(style);
        for at in 0..50 {
            served.client.read(page(at), P);
        }
        while served.heartbeat.is_busy() {
            std::thread::yield_now();
        }
        let passes = served.heartbeat.passes();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(served.heartbeat.passes(), passes, "{style:?}: it looked around");
        served.client.read(0, P);
        assert!(served.heartbeat.passes() > passes);
        served.hang_up();
    }
}

#[test]
fn a_waiting_connection_gives_signs_of_life() {
    for style in STYLES {
        let mut served = Served::new(style);
        served.disk.hold(0);
        let stuck = served.client.ask(cmd::READ, 0, P);
        served.disk.await_open(1);
        let passes = served.heartbeat.passes();
        while served.heartbeat.passes() < passes + 3 {
            assert!(served.heartbeat.is_busy(), "{style:?}");
            std::thread::yield_now();
        }
        served.disk.let_go();
        served.client.expect(stuck, 0);
        served.hang_up();
    }
}

/// Counts what an armed thread allocates or frees.
struct Counting;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    if ARMED.try_with(Cell::get).unwrap_or(false) {
        COUNT.with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: everything is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn serving_allocates_nothing() {
    for style in [Style::Prompt, Style::Shuffled(4)] {
        let (report, counted) = std::sync::mpsc::channel();
        let mut served = Served::with(style, options(), move |run| {
            let probe = Box::new(0);
            ARMED.set(true);
            drop(std::hint::black_box(probe));
            ARMED.set(false);
            assert_eq!(COUNT.replace(0), 1, "the counter does not count");
            ARMED.set(true);
            run();
            ARMED.set(false);
            report.send(COUNT.get()).unwrap();
        });
        for at in 0..300 {
            let data = pattern(at);
            let big = data.repeat(64);
            let written = served.client.write(page(at as usize % 9), &big);
            served.client.expect(written, 0);
            served.client.read(0, 64 * P);
            let refused = served.client.ask(cmd::READ, 1, 1);
            served.client.expect(refused, errno::EINVAL);
            let trimmed = served.client.ask(cmd::TRIM, 0, P);
            served.client.expect(trimmed, 0);
        }
        let asked: Vec<u64> = (0..90).map(|at| served.client.ask(cmd::READ, page(at), P)).collect();
        for _ in asked {
            assert_eq!(served.client.reply().unwrap().0.error, 0);
        }
        assert_eq!(served.hang_up().0.open, 0);
        assert_eq!(counted.recv().unwrap(), 0, "{style:?}");
    }
}

#[test]
fn an_independent_client_reads_back_what_it_wrote() {
    for style in STYLES {
        let served = Served::new(style);
        let stream = served.client.stream.try_clone().unwrap();
        let export = nbd::Export { size: DISK_BYTES as u64, ..Default::default() };
        let mut oracle = nbd::client::NbdClient::new(stream, &export);
        let mut dice = Dice(99);
        let mut model = vec![0u8; DISK_BYTES];
        for round in 0..300 {
            let pages = 1 + dice.below(16);
            let at = dice.below(DISK_BYTES / PAGE - pages) * PAGE;
            let range = at..at + pages * PAGE;
            oracle.seek(SeekFrom::Start(at as u64)).unwrap();
            if dice.below(2) == 0 {
                let data = pattern(round).repeat(pages);
                model[range].copy_from_slice(&data);
                oracle.write_all(&data).unwrap();
            } else {
                let mut data = vec![0; range.len()];
                oracle.read_exact(&mut data).unwrap();
                assert!(data == model[range], "{style:?}: round {round}");
            }
        }
        oracle.flush().unwrap();
        assert!(*served.disk.bytes() == model, "{style:?}");
        drop(oracle);
        served.hang_up();
    }
}
