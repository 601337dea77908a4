// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and simple replies (proto.md "Request message", "Simple reply
//! message", "Values: Transmission phase").

use super::{Malformed, be16, be32, be64, check_magic};

/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of every simple reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;
/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its payload.
pub const REPLY_BYTES: usize = 16;

/// Request types.
pub mod cmd {
    /// Bytes of the export follow the reply.
    pub const READ: u16 = 0;
    /// Bytes for the export follow the request: the only type with a payload.
    pub const WRITE: u16 = 1;
    /// Handle what is open, answer nothing more, close.
    pub const DISC: u16 = 2;
    /// What was answered before becomes durable.
    pub const FLUSH: u16 = 3;
    /// The range's contents are no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    /// The range becomes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is allocated in the range; needs structured replies.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod cmd_flag {
    /// Durable before the reply; accepted on every command.
    pub const FUA: u16 = 1 << 0;
    /// `WRITE_ZEROES`: later writes to the range must not fail for lack of room.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `READ` with structured replies: one chunk.
    pub const DF: u16 = 1 << 2;
    /// `BLOCK_STATUS`: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES`: fail at once unless it is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Transmission flags: what the server says an export can do.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes fail.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The `FUA` command flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The `DF` command flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// All connections see one cache, and `FLUSH` on one covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The `FAST_ZERO` command flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Error values of replies. They look like Linux errno and are fixed by the
/// protocol.
pub mod errno {
    /// Not permitted, e.g. a write to a read-only export.
    pub const EPERM: u32 = 1;
    /// Input/output error.
    pub const EIO: u32 = 5;
    /// Out of memory.
    pub const ENOMEM: u32 = 12;
    /// Misaligned, unknown, or a read or trim beyond the end.
    pub const EINVAL: u32 = 22;
    /// A write beyond the end.
    pub const ENOSPC: u32 = 28;
    /// Too long.
    pub const EOVERFLOW: u32 = 75;
    /// `FAST_ZERO` cannot be honoured.
    pub const ENOTSUP: u32 = 95;
    /// The server is stopping.
    pub const ESHUTDOWN: u32 = 108;
}

/// One request, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`cmd_flag`].
    pub flags: u16,
    /// See [`cmd`]; any value parses.
    pub kind: u16,
    /// The client's name for the request, given back in its reply.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range; for `WRITE` also of the payload that follows.
    pub bytes: u32,
}

impl Request {
    /// The request's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }

    /// Reads a request. Fails on a wrong magic only.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        check_magic(REQUEST_MAGIC.into(), be32(bytes, 0).into())?;
        Ok(Self {
            flags: be16(bytes, 4),
            kind: be16(bytes, 6),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            bytes: be32(bytes, 24),
        })
    }
}

/// One simple reply, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 0, or one of [`errno`]. Only a `READ` with 0 has a payload.
    pub error: u32,
    /// The cookie of the request that this answers.
    pub cookie: u64,
}

impl Reply {
    /// The reply's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0; REPLY_BYTES];
        out[0..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// Reads a reply. Fails on a wrong magic only.
    pub fn parse(bytes: &[u8; REPLY_BYTES]) -> Result<Self, Malformed> {
        check_magic(REPLY_MAGIC.into(), be32(bytes, 0).into())?;
        Ok(Self { error: be32(bytes, 4), cookie: be64(bytes, 8) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_has_the_documented_bytes() {
        let request = Request {
            flags: cmd_flag::FUA,
            kind: cmd::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            bytes: 0x2000,
        };
        let expected = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 0x20, 0,
        ];
        assert_eq!(request.encode(), expected);
    }

    #[test]
    fn a_reply_has_the_documented_bytes() {
        let reply = Reply { error: errno::EIO, cookie: 7 };
        assert_eq!(reply.encode(), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    proptest! {
        #[test]
        fn every_request_survives_the_wire(
            flags: u16, kind: u16, cookie: u64, offset: u64, bytes: u32,
        ) {
            let request = Request { flags, kind, cookie, offset, bytes };
            prop_assert_eq!(Request::parse(&request.encode()), Ok(request));
        }

        #[test]
        fn every_reply_survives_the_wire(error: u32, cookie: u64) {
            let reply = Reply { error, cookie };
            prop_assert_eq!(Reply::parse(&reply.encode()), Ok(reply));
        }

        #[test]
        fn a_request_parses_exactly_when_its_magic_is_right(bytes: [u8; REQUEST_BYTES]) {
            let right = bytes[..4] == REQUEST_MAGIC.to_be_bytes();
            prop_assert_eq!(Request::parse(&bytes).is_ok(), right);
        }

        #[test]
        fn a_reply_parses_exactly_when_its_magic_is_right(bytes: [u8; REPLY_BYTES]) {
            let right = bytes[..4] == REPLY_MAGIC.to_be_bytes();
            prop_assert_eq!(Reply::parse(&bytes).is_ok(), right);
        }
    }
}
