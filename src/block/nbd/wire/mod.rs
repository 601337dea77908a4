// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NBD wire format, both directions, as pure functions over bytes.
//!
//! The source is the protocol document of the reference implementation
//! (`doc/proto.md` of `NetworkBlockDevice/nbd`, called *proto.md* here); names
//! are its names without the `NBD_` prefix. All numbers are big-endian.
//!
//! This module knows no socket, no export and no policy: it says what bytes
//! mean, not what is allowed. [`Request`] and [`Reply`] allocate nothing; the
//! option structures append to a `Vec` that the caller owns. Parsing takes any
//! bytes and never panics.

mod option;
mod transmission;

pub(super) use option::text;
pub use option::{
    CLIENT_FLAGS_BYTES, EXPORT_NAME_REPLY_BYTES, EXPORT_NAME_ZEROES, ExportNameReply,
    GREETING_BYTES, OPTION_HEADER_BYTES, OPTION_REPLY_BYTES,
};
pub use option::{
    Greeting, Info, InfoRequest, OptionHeader, OptionReply, ServerEntry, encode_client_flags,
    parse_client_flags,
};
pub use option::{client, handshake, info, opt, rep};
pub use transmission::{
    REPLY_BYTES, REPLY_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, Reply, Request, cmd, cmd_flag, errno,
    flag,
};

/// Bytes that are not what their place in the protocol asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A magic number is another one: the stream is out of step.
    #[error("magic number {found:#x} where {expected:#x} belongs")]
    Magic {
        /// What the protocol says.
        expected: u64,
        /// What was there.
        found: u64,
    },
    /// The structure's data is shorter or longer than its fields say.
    #[error("{what}: {bytes} bytes do not match the lengths in it")]
    Length {
        /// The structure.
        what: &'static str,
        /// How many bytes were given.
        bytes: usize,
    },
    /// A string is not UTF-8 without NUL of at most 4096 bytes (proto.md "Conventions").
    #[error("{0} is not a string of at most 4096 bytes of UTF-8 without NUL")]
    Text(&'static str),
}

/// The longest string the protocol allows, in bytes (proto.md "Conventions").
pub const MAX_STRING_BYTES: usize = 4096;

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

fn check_magic(expected: u64, found: u64) -> Result<(), Malformed> {
    if expected == found { Ok(()) } else { Err(Malformed::Magic { expected, found }) }
}
