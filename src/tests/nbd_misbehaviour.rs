// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that break the rules: what they send, what comes back, and that the
//! stream is in step afterwards.

use std::io::{ErrorKind, Write};

use sluice::block::nbd::connection::{MAX_CLAIMED_PAYLOAD, Reason};
use sluice::block::nbd::wire::{Malformed, Request, cmd, cmd_flag, errno};

use crate::nbd_support::memory_io::{MemoryIo, Style};
use crate::nbd_support::served::{DISK_BYTES, Served};
use crate::nbd_support::{PAGE, pattern};

const END: u64 = DISK_BYTES as u64;
const P: u32 = PAGE as u32;

fn bare(kind: u16, flags: u16, offset: u64, bytes: u32) -> Vec<u8> {
    Request { flags, kind, cookie: 77, offset, bytes }.encode().to_vec()
}

fn write(flags: u16, offset: u64, bytes: u32) -> Vec<u8> {
    let mut request = bare(cmd::WRITE, flags, offset, bytes);
    request.resize(request.len() + bytes as usize, 0xee);
    request
}

#[test]
fn each_broken_request_is_refused_and_the_next_one_is_served() {
    let over = MemoryIo::MAX_PAYLOAD + P;
    let table = [
        ("read of nothing", bare(cmd::READ, 0, 0, 0), errno::EINVAL),
        ("write of nothing", write(0, 0, 0), errno::EINVAL),
        ("trim of nothing", bare(cmd::TRIM, 0, 0, 0), errno::EINVAL),
        ("read inside a page", bare(cmd::READ, 0, 512, 512), errno::EINVAL),
        ("write inside a page", write(0, 0, 513), errno::EINVAL),
        ("write at an odd offset", write(0, 3, P), errno::EINVAL),
        ("read beyond the end", bare(cmd::READ, 0, END, P), errno::EINVAL),
        ("read over the end", bare(cmd::READ, 0, END - u64::from(P), 2 * P), errno::EINVAL),
        ("read past 2^64", bare(cmd::READ, 0, 0u64.wrapping_sub(4096), 2 * P), errno::EINVAL),
        ("write beyond the end", write(0, END, P), errno::ENOSPC),
        ("write over the end", write(0, END - u64::from(P), 2 * P), errno::ENOSPC),
        ("write past 2^64", write(0, 0u64.wrapping_sub(4096), 2 * P), errno::ENOSPC),
        ("zeroes over the end", bare(cmd::WRITE_ZEROES, 0, END, P), errno::ENOSPC),
        ("trim over the end", bare(cmd::TRIM, 0, 0, 0xffff_f000), errno::EINVAL),
        ("read over the limit", bare(cmd::READ, 0, 0, over), errno::EINVAL),
        ("largest read", bare(cmd::READ, 0, 0, u32::MAX), errno::EINVAL),
        ("write over the limit", write(0, 0, over), errno::EINVAL),
        ("much over the limit", write(0, 0, 33 << 20), errno::EINVAL),
        ("flush of a range", bare(cmd::FLUSH, 0, 0, P), errno::EINVAL),
        ("unknown flag on write", write(1 << 9, 0, 3 * P), errno::EINVAL),
        ("DF without structured replies", bare(cmd::READ, cmd_flag::DF, 0, P), errno::EINVAL),
        ("NO_HOLE on trim", bare(cmd::TRIM, cmd_flag::NO_HOLE, 0, P), errno::EINVAL),
        ("cache", bare(cmd::CACHE, 0, 0, P), errno::EINVAL),
        ("block status", bare(cmd::BLOCK_STATUS, 0, 0, P), errno::EINVAL),
        ("unknown command", bare(4711, 0, 0, 123), errno::EINVAL),
    ];
    let mut served = Served::new(Style::Prompt);
    let data = pattern(1);
    for (what, sent, errno) in &table {
        let written = served.client.write(0, &data);
        served.client.expect(written, 0);
        served.client.send(sent);
        let (reply, _) = served.client.reply().unwrap_or_else(|| panic!("{what}: closed"));
        assert_eq!((reply.cookie, reply.error), (77, *errno), "{what}");
        assert_eq!(served.client.read(0, P), data, "{what}: the page after it");
    }
    // All at once, behind each other, the answers still match.
    let everything: Vec<u8> = table.iter().flat_map(|(_, sent, _)| sent.clone()).collect();
    let mut writer = served.client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&everything));
    for (what, _, errno) in &table {
        assert_eq!(served.client.reply().unwrap().0.error, *errno, "{what}");
    }
    sender.join().unwrap().unwrap();
    assert_eq!(served.client.read(0, P), data);
    let (ended, _) = served.hang_up();
    assert_eq!((ended.reason, ended.open), (Reason::Closed, 0));
}

#[test]
fn a_stream_that_cannot_be_followed_is_closed() {
    let mut no_magic = bare(cmd::READ, 0, 0, P);
    no_magic[0] = 0;
    let magic = Malformed::Magic { expected: 0x2560_9513, found: 0x0060_9513 };
    let claim = MAX_CLAIMED_PAYLOAD + 1;
    for (sent, reason) in [
        (no_magic, Reason::Malformed(magic)),
        (bare(cmd::WRITE, 0, 0, claim), Reason::Oversized(claim)),
        (bare(cmd::DISC, 0, 0, 0), Reason::Disconnected),
        (bare(cmd::DISC, 7, 7, 7), Reason::Disconnected),
    ] {
        let mut served = Served::new(Style::Prompt);
        served.client.send(&sent);
        served.client.expect_closed();
        let (ended, _, _) = served.join();
        assert_eq!((ended.reason, ended.open), (reason, 0));
    }
}

#[test]
fn a_client_that_vanishes_inside_a_request_leaves_nothing_behind() {
    let whole = write(0, 0, 2 * P);
    for sent in [0, 1, 27, 28, 29, 28 + PAGE, whole.len() - 1] {
        let mut served = Served::new(Style::Prompt);
        served.client.send(&whole[..sent]);
        let (ended, disk) = served.hang_up();
        assert_eq!((ended.reason, ended.open), (Reason::Closed, 0), "after {sent} bytes");
        assert!(disk.bytes().iter().all(|&byte| byte == 0), "half a write landed");
    }
}

#[test]
fn a_client_that_reads_no_replies_is_no_longer_read_from() {
    let refused = bare(4711, 0, 0, 0);
    let mut served = Served::new(Style::Prompt);
    served.client.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Until both directions are full and the server sleeps: if it took all and
    // kept the replies, its memory would be the client's to fill.
    loop {
        match served.client.stream.write(&refused[sent % refused.len()..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !served.heartbeat.is_busy() {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    served.client.stream.set_nonblocking(false).unwrap();
    for _ in 0..sent / refused.len() {
        let (reply, _) = served.client.reply().unwrap();
        assert_eq!((reply.cookie, reply.error), (77, errno::EINVAL));
    }
    // The one that was cut in two is completed; then all is as before.
    if sent % refused.len() > 0 {
        served.client.send(&refused[sent % refused.len()..]);
        assert_eq!(served.client.reply().unwrap().0.cookie, 77);
    }
    assert_eq!(served.client.read(0, P), vec![0; PAGE]);
    let (ended, _) = served.hang_up();
    assert_eq!(ended.open, 0);
}

#[test]
fn a_client_that_reads_late_gets_every_reply_whole() {
    let mut served = Served::new(Style::Prompt);
    let data = pattern(3);
    let written = served.client.write(0, &data);
    served.client.expect(written, 0);
    // Far more than the sockets hold, so that replies go out in parts.
    let count = 4000;
    let requests: Vec<u8> = (0..count)
        .flat_map(|at| match at % 3 {
            0 => bare(4711, 0, 0, 0),
            _ => served.client.request(cmd::READ, 0, 0, P).encode().to_vec(),
        })
        .collect();
    let mut writer = served.client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&requests));
    for _ in 0..count {
        let (reply, read) = served.client.reply().unwrap();
        if reply.cookie == 77 {
            assert_eq!(reply.error, errno::EINVAL);
        } else {
            assert_eq!(read, data);
        }
    }
    sender.join().unwrap().unwrap();
    let (ended, _) = served.hang_up();
    assert_eq!(ended.open, 0);
}
