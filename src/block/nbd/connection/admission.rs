// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which requests are taken, and what the others are told. Pure.
//!
//! Where proto.md leaves room, the choice here is:
//! - offset and length are whole pages, else `EINVAL` ("Size constraints");
//! - length 0 is `EINVAL` for every command with a range ("unspecified although
//!   the server SHOULD NOT disconnect"): nothing sane sends it, and success
//!   would hide a broken client;
//! - a range beyond the end is `ENOSPC` for what writes and `EINVAL` for the
//!   rest ("Error values");
//! - a payload over the limit is `EINVAL`, because `EOVERFLOW` is reserved there
//!   for commands without payload; a `WRITE` that claims more than
//!   [`MAX_CLAIMED_PAYLOAD`] is a denial of service and drops the connection;
//! - `FUA` is accepted on every command and is free: what is answered is done;
//! - `NO_HOLE` is accepted and is free: room is never taken back;
//! - `FAST_ZERO` is accepted: zeroing forgets pages and moves no data.

use crate::engine::io::{Command, Failure};
use crate::engine::units::PAGE_BYTES;

use super::super::wire::{Request, cmd, cmd_flag, errno, flag};

/// What an export can do (proto.md "Transmission flags"), for the handshake
/// and for the kernel. Multi-connection is honest: a write is visible on every
/// connection once it is answered, and nothing is cached per connection.
pub const TRANSMISSION_FLAGS: u16 = flag::HAS_FLAGS
    | flag::SEND_FLUSH
    | flag::SEND_FUA
    | flag::SEND_TRIM
    | flag::SEND_WRITE_ZEROES
    | flag::CAN_MULTI_CONN
    | flag::SEND_FAST_ZERO;

/// The longest `WRITE` payload that is read past; proto.md asks for at least 32 MiB.
pub const MAX_CLAIMED_PAYLOAD: u32 = 64 << 20;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Reserve `payload` bytes and start.
    Take { command: Command, payload: u32 },
    /// Read past `skip` bytes, then answer `errno`.
    Refuse { errno: u32, skip: u32 },
    /// The client says goodbye.
    Leave,
    /// Too much to even read past: drop the connection.
    Drop,
}

/// The limits that requests are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub device_bytes: u64,
    pub max_payload: u32,
}

/// Judges a request by its header alone.
pub(super) fn admit(request: &Request, limits: &Limits) -> Verdict {
    let (command, flags, payload) = match request.kind {
        cmd::READ => (Command::Read, 0, request.bytes),
        cmd::WRITE => (Command::Write, 0, request.bytes),
        cmd::FLUSH => (Command::Flush, 0, 0),
        cmd::TRIM => (Command::Trim, 0, 0),
        cmd::WRITE_ZEROES => (Command::WriteZeroes, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO, 0),
        cmd::DISC => return Verdict::Leave,
        _ => return Verdict::Refuse { errno: errno::EINVAL, skip: 0 },
    };
    let skip = if command == Command::Write { request.bytes } else { 0 };
    if skip > MAX_CLAIMED_PAYLOAD {
        return Verdict::Drop;
    }
    if request.flags & !(cmd_flag::FUA | flags) != 0 || payload > limits.max_payload {
        return Verdict::Refuse { errno: errno::EINVAL, skip };
    }
    match range_error(command, request, limits.device_bytes) {
        Some(errno) => Verdict::Refuse { errno, skip },
        None => Verdict::Take { command, payload },
    }
}

fn range_error(command: Command, request: &Request, device_bytes: u64) -> Option<u32> {
    let (offset, bytes) = (request.offset, u64::from(request.bytes));
    let page = PAGE_BYTES as u64;
    if command == Command::Flush {
        return (offset != 0 || bytes != 0).then_some(errno::EINVAL);
    }
    if bytes == 0 || !offset.is_multiple_of(page) || !bytes.is_multiple_of(page) {
        return Some(errno::EINVAL);
    }
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= device_bytes);
    match command {
        _ if inside => None,
        Command::Write | Command::WriteZeroes => Some(errno::ENOSPC),
        _ => Some(errno::EINVAL),
    }
}

/// The protocol's error value for a request that failed.
pub(super) fn errno_of(failure: Failure) -> u32 {
    match failure {
        Failure::Io | Failure::Checksum | Failure::TimedOut => errno::EIO,
        Failure::OutOfRange => errno::EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = PAGE_BYTES as u32;
    const LIMITS: Limits = Limits { device_bytes: 1 << 30, max_payload: 1 << 20 };

    fn judge(kind: u16, flags: u16, offset: u64, bytes: u32) -> Verdict {
        admit(&Request { flags, kind, cookie: 1, offset, bytes }, &LIMITS)
    }

    #[test]
    fn whole_pages_inside_the_device_are_taken() {
        let end = LIMITS.device_bytes;
        for (kind, command, payload) in [
            (cmd::READ, Command::Read, PAGE),
            (cmd::WRITE, Command::Write, PAGE),
            (cmd::TRIM, Command::Trim, 0),
            (cmd::WRITE_ZEROES, Command::WriteZeroes, 0),
        ] {
            for flags in [0, cmd_flag::FUA] {
                for offset in [0, end - u64::from(PAGE)] {
                    let taken = Verdict::Take { command, payload };
                    assert_eq!(judge(kind, flags, offset, PAGE), taken, "{command:?} {offset}");
                }
            }
        }
        let zeroes = cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO | cmd_flag::FUA;
        let whole = Verdict::Take { command: Command::WriteZeroes, payload: 0 };
        assert_eq!(judge(cmd::WRITE_ZEROES, zeroes, 0, 1 << 30), whole);
        let flush = Verdict::Take { command: Command::Flush, payload: 0 };
        assert_eq!(judge(cmd::FLUSH, cmd_flag::FUA, 0, 0), flush);
        let largest = Verdict::Take { command: Command::Write, payload: 1 << 20 };
        assert_eq!(judge(cmd::WRITE, 0, 0, 1 << 20), largest);
    }

    #[test]
    fn each_broken_request_gets_its_error_and_its_payload_is_read_past() {
        let end = LIMITS.device_bytes;
        let page = u64::from(PAGE);
        let (inval, nospc) = (errno::EINVAL, errno::ENOSPC);
        for (what, kind, flags, offset, bytes, errno) in [
            ("read of nothing", cmd::READ, 0, 0, 0, inval),
            ("write of nothing", cmd::WRITE, 0, 0, 0, inval),
            ("trim of nothing", cmd::TRIM, 0, 0, 0, inval),
            ("zeroes over nothing", cmd::WRITE_ZEROES, 0, 0, 0, inval),
            ("offset inside a page", cmd::READ, 0, 512, PAGE, inval),
            ("length inside a page", cmd::WRITE, 0, 0, PAGE + 1, inval),
            ("trim inside a page", cmd::TRIM, 0, 0, 512, inval),
            ("zeroes inside a page", cmd::WRITE_ZEROES, 0, 1, PAGE, inval),
            ("read at the end", cmd::READ, 0, end, PAGE, inval),
            ("read over the end", cmd::READ, 0, end - page, 2 * PAGE, inval),
            ("trim over the end", cmd::TRIM, 0, end, PAGE, inval),
            ("write at the end", cmd::WRITE, 0, end, PAGE, nospc),
            ("write over the end", cmd::WRITE, 0, end - page, 2 * PAGE, nospc),
            ("zeroes over the end", cmd::WRITE_ZEROES, 0, end, PAGE, nospc),
            ("read past 2^64", cmd::READ, 0, 0u64.wrapping_sub(page), 2 * PAGE, inval),
            ("write past 2^64", cmd::WRITE, 0, 0u64.wrapping_sub(page), PAGE, nospc),
            ("read over the payload limit", cmd::READ, 0, 0, (1 << 20) + PAGE, inval),
            ("write over the payload limit", cmd::WRITE, 0, 0, (1 << 20) + PAGE, inval),
            ("largest claim that is read past", cmd::WRITE, 0, 0, MAX_CLAIMED_PAYLOAD, inval),
            ("flush with offset", cmd::FLUSH, 0, page, 0, inval),
            ("flush with length", cmd::FLUSH, 0, 0, PAGE, inval),
            ("DF on read", cmd::READ, cmd_flag::DF, 0, PAGE, inval),
            ("NO_HOLE on write", cmd::WRITE, cmd_flag::NO_HOLE, 0, PAGE, inval),
            ("FAST_ZERO on trim", cmd::TRIM, cmd_flag::FAST_ZERO, 0, PAGE, inval),
            ("unknown flag", cmd::WRITE_ZEROES, 1 << 15, 0, PAGE, inval),
            ("cache", cmd::CACHE, 0, 0, PAGE, inval),
            ("block status", cmd::BLOCK_STATUS, 0, 0, PAGE, inval),
            ("unknown command", 0xffff, 0, 0, PAGE, inval),
        ] {
            let skip = if kind == cmd::WRITE { bytes } else { 0 };
            let refused = Verdict::Refuse { errno, skip };
            assert_eq!(judge(kind, flags, offset, bytes), refused, "{what}");
        }
    }

    #[test]
    fn goodbye_and_absurd_claims_end_the_connection() {
        assert_eq!(judge(cmd::DISC, 0, 0, 0), Verdict::Leave);
        assert_eq!(judge(cmd::DISC, 0xffff, 9, 9), Verdict::Leave);
        assert_eq!(judge(cmd::WRITE, 0, 0, MAX_CLAIMED_PAYLOAD + 1), Verdict::Drop);
        assert_eq!(judge(cmd::WRITE, 0, 0, u32::MAX), Verdict::Drop);
    }

    #[test]
    fn every_failure_has_its_errno() {
        for (failure, errno) in [
            (Failure::Io, errno::EIO),
            (Failure::Checksum, errno::EIO),
            (Failure::TimedOut, errno::EIO),
            (Failure::OutOfRange, errno::EINVAL),
        ] {
            assert_eq!(errno_of(failure), errno, "{failure:?}");
        }
    }
}
