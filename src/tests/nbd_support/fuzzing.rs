// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes against the parsers, the handshake and a served connection, and a
//! mutator that makes them from a corpus. Shared by the tests and by the
//! long-running `sluice-fuzz`.
//!
//! The first byte of an input chooses what it is thrown at.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use sluice::block::nbd::connection::MAX_CLAIMED_PAYLOAD;
use sluice::block::nbd::handshake::{Export, Handshake, Progress};
use sluice::block::nbd::wire::{
    Info, InfoRequest, REPLY_BYTES, REQUEST_BYTES, Reply, Request, ServerEntry, cmd, cmd_flag,
};

use super::memory_io::{MemoryIo, Style};
use super::served::{DISK_BYTES, Served};
use super::{Dice, PAGE};

/// Inputs are kept below what a socket buffers, so that sending never waits.
const MAX_INPUT: usize = 100_000;

/// Throws an input at its target; panics on any fault.
pub fn throw(input: &[u8]) {
    let Some((&target, bytes)) = input.split_first() else { return };
    match target % 5 {
        0 => at_the_parsers(bytes),
        1 => at_the_handshake(bytes),
        2 => at_a_connection(bytes, Style::Prompt),
        3 => at_a_connection(bytes, Style::Shuffled(7)),
        _ => at_a_connection(bytes, Style::Woken(7)),
    }
}

/// Throws an input at everything that reads bytes without a socket: the
/// parsers, the handshake and the transmission phase's headers.
pub fn throw_at_the_codec(input: &[u8]) {
    let bytes = input.get(1..).unwrap_or_default();
    at_the_parsers(bytes);
    at_the_handshake(bytes);
    if let Some((head, _)) = bytes.split_first_chunk()
        && let Ok(request) = Request::parse(head)
    {
        assert_eq!(request.encode(), *head, "a request that parsed is another one on the wire");
    }
    if let Some((head, _)) = bytes.split_first_chunk()
        && let Ok(reply) = Reply::parse(head)
    {
        assert_eq!(reply.encode(), *head, "a reply that parsed is another one on the wire");
    }
}

fn at_the_parsers(bytes: &[u8]) {
    let _ = Info::parse(bytes);
    let _ = ServerEntry::parse(bytes);
    if let Ok(request) = InfoRequest::parse(bytes) {
        assert!(request.wanted().count() <= bytes.len());
    }
}

fn at_the_handshake(bytes: &[u8]) {
    let export = Export {
        name: "vram".into(),
        description: "text".into(),
        bytes: DISK_BYTES as u64,
        max_payload: MemoryIo::MAX_PAYLOAD,
    };
    let mut machine = Handshake::new(export);
    let mut rest = bytes;
    while machine.progress() == Progress::Haggling && !rest.is_empty() {
        let wants = machine.wants();
        assert!(wants > 0, "haggling and wants nothing");
        let (piece, left) = rest.split_at(wants.min(rest.len()));
        assert_eq!(machine.feed(piece), piece.len());
        assert!(machine.take_output().len() < 64 * 1024, "an answer out of proportion");
        rest = left;
    }
}

fn at_a_connection(bytes: &[u8], style: Style) {
    let mut served = Served::new(style);
    // The server may close before it has read all.
    let _ = served.client.stream.write_all(&bytes[..bytes.len().min(MAX_INPUT)]);
    let _ = served.client.stream.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    let _ = served.client.stream.read_to_end(&mut replies);
    let (ended, _) = served.hang_up();
    assert_eq!(ended.open, 0);
    let expected = expected_reply_bytes(&bytes[..bytes.len().min(MAX_INPUT)]);
    assert_eq!(replies.len(), expected, "replies do not match the requests");
}

/// How many bytes a server answers to a stream, whatever the order.
fn expected_reply_bytes(mut stream: &[u8]) -> usize {
    let mut total = 0;
    while let Some((head, rest)) = stream.split_first_chunk::<REQUEST_BYTES>() {
        let Ok(request) = Request::parse(head) else { break };
        let payload = if request.kind == cmd::WRITE { request.bytes } else { 0 };
        if request.kind == cmd::DISC || payload > MAX_CLAIMED_PAYLOAD {
            break;
        }
        let Some((_, rest)) = rest.split_at_checked(payload as usize) else { break };
        total += REPLY_BYTES;
        let page = PAGE as u64;
        let end = u128::from(request.offset) + u128::from(request.bytes);
        let is_data = request.kind == cmd::READ
            && request.flags & !cmd_flag::FUA == 0
            && request.bytes > 0
            && request.bytes <= MemoryIo::MAX_PAYLOAD
            && request.offset.is_multiple_of(page)
            && u64::from(request.bytes).is_multiple_of(page)
            && end <= DISK_BYTES as u128;
        if is_data {
            total += request.bytes as usize;
        }
        stream = rest;
    }
    total
}

/// The committed inputs, which lie in `folder`.
pub fn corpus(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut inputs: Vec<_> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() > 10, "{}: the corpus is missing", folder.display());
    inputs
}

/// Makes a new input from the corpus.
pub fn mutate(corpus: &[(PathBuf, Vec<u8>)], dice: &mut Dice) -> Vec<u8> {
    const TELLING: [u64; 8] = [0, 1, 0x1000, 0x10_0000, 0x7fff_ffff, 0xffff_ffff, 1 << 63, !0xfff];
    let mut input = corpus[dice.below(corpus.len())].1.clone();
    for _ in 0..=dice.below(6) {
        let at = dice.below(input.len().max(1));
        match dice.below(7) {
            0 if at < input.len() => input[at] ^= 1 << dice.below(8),
            1 if at < input.len() => input[at] = dice.roll() as u8,
            2 => input.truncate(at),
            3 => {
                let other = &corpus[dice.below(corpus.len())].1;
                let from = dice.below(other.len());
                input.extend_from_slice(&other[from..]);
            }
            4 => {
                let value = TELLING[dice.below(TELLING.len())].to_be_bytes();
                let width = [2, 4, 8][dice.below(3)];
                let end = input.len().min(at + width);
                input[at..end].copy_from_slice(&value[8 - (end - at)..]);
            }
            5 => {
                let end = input.len().min(at + dice.below(64));
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let end = input.len().min(at + dice.below(64));
                input.drain(at..end);
            }
        }
    }
    input.truncate(MAX_INPUT);
    input
}
