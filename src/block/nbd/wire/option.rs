// SPDX-License-Identifier: MIT OR Apache-2.0
//! Greeting and option haggling of the fixed newstyle handshake (proto.md
//! "Newstyle negotiation", "Fixed newstyle negotiation", "Values: Handshake
//! phase").

use super::{MAX_STRING_BYTES, Malformed, be16, be32, be64, check_magic};

/// `NBDMAGIC`, the first eight bytes a server sends.
const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, in the greeting and before every option.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every option reply.
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of a [`Greeting`].
pub const GREETING_BYTES: usize = 18;
/// Bytes of the client flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an [`OptionReply`] without its data.
pub const OPTION_REPLY_BYTES: usize = 20;
/// Bytes of an [`ExportNameReply`] without the zeros.
pub const EXPORT_NAME_REPLY_BYTES: usize = 10;
/// Zeros after an [`ExportNameReply`] unless `NO_ZEROES` was negotiated.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Handshake flags, sent by the server.
pub mod handshake {
    /// Options other than `EXPORT_NAME` are answered.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros can be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Client flags; any other bit makes the server close.
pub mod client {
    /// The client knows fixed newstyle.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The client wants no zeros.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Option types.
pub mod opt {
    /// Choose an export and start; cannot be refused but by closing.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Tell about an export.
    pub const INFO: u32 = 6;
    /// Tell about an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 10;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 11;
    /// Use 64-bit lengths (extension).
    pub const EXTENDED_HEADERS: u32 = 12;
}

/// Option reply types.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export, in answer to `LIST`.
    pub const SERVER: u32 = 2;
    /// One piece of information, in answer to `INFO` or `GO`.
    pub const INFO: u32 = 3;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is known and not allowed.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data breaks its format.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option's data is too long to be looked at.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Information types, in requests and in [`Info`].
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The first bytes on a connection, sent by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// See [`handshake`].
    pub flags: u16,
}

impl Greeting {
    /// The greeting's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[0..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..18].copy_from_slice(&self.flags.to_be_bytes());
        out
    }

    /// Reads a greeting; fails on anything that is not newstyle NBD.
    pub fn parse(bytes: &[u8; GREETING_BYTES]) -> Result<Self, Malformed> {
        check_magic(INIT_MAGIC, be64(bytes, 0))?;
        check_magic(OPTION_MAGIC, be64(bytes, 8))?;
        Ok(Self { flags: be16(bytes, 16) })
    }
}

/// The bytes of the client's flags ([`client`]), its answer to the greeting.
#[must_use]
pub fn encode_client_flags(flags: u32) -> [u8; CLIENT_FLAGS_BYTES] {
    flags.to_be_bytes()
}

/// Reads the client's flags.
#[must_use]
pub fn parse_client_flags(bytes: &[u8; CLIENT_FLAGS_BYTES]) -> u32 {
    u32::from_be_bytes(*bytes)
}

/// What stands before an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// See [`opt`]; any value parses.
    pub option: u32,
    /// Bytes of data that follow.
    pub bytes: u32,
}

impl OptionHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OPTION_HEADER_BYTES] {
        let mut out = [0; OPTION_HEADER_BYTES];
        out[0..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..16].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }

    /// Reads a header. Fails on a wrong magic only.
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> Result<Self, Malformed> {
        check_magic(OPTION_MAGIC, be64(bytes, 0))?;
        Ok(Self { option: be32(bytes, 8), bytes: be32(bytes, 12) })
    }
}

/// What stands before the data of an option's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The option that this answers.
    pub option: u32,
    /// See [`rep`]; any value parses.
    pub kind: u32,
    /// Bytes of data that follow; for errors a text for people.
    pub bytes: u32,
}

impl OptionReply {
    /// The reply's bytes, without its data.
    #[must_use]
    pub fn encode(&self) -> [u8; OPTION_REPLY_BYTES] {
        let mut out = [0; OPTION_REPLY_BYTES];
        out[0..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..16].copy_from_slice(&self.kind.to_be_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }

    /// Reads a reply's head. Fails on a wrong magic only.
    pub fn parse(bytes: &[u8; OPTION_REPLY_BYTES]) -> Result<Self, Malformed> {
        check_magic(OPTION_REPLY_MAGIC, be64(bytes, 0))?;
        Ok(Self { option: be32(bytes, 8), kind: be32(bytes, 12), bytes: be32(bytes, 16) })
    }
}

/// The answer to `EXPORT_NAME`; [`EXPORT_NAME_ZEROES`] zeros may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportNameReply {
    /// Size of the export in bytes.
    pub bytes: u64,
    /// See [`flag`](super::flag).
    pub flags: u16,
}

impl ExportNameReply {
    /// The answer's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; EXPORT_NAME_REPLY_BYTES] {
        let mut out = [0; EXPORT_NAME_REPLY_BYTES];
        out[0..8].copy_from_slice(&self.bytes.to_be_bytes());
        out[8..10].copy_from_slice(&self.flags.to_be_bytes());
        out
    }

    /// Reads an answer.
    #[must_use]
    pub fn parse(bytes: &[u8; EXPORT_NAME_REPLY_BYTES]) -> Self {
        Self { bytes: be64(bytes, 0), flags: be16(bytes, 8) }
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Appends the data that asks about `name` for the [`info`] types in `wanted`.
    pub fn encode_into(name: &str, wanted: &[u16], out: &mut Vec<u8>) {
        out.extend_from_slice(&(name.len() as u32).to_be_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
        for kind in wanted {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }

    /// Reads the data; every byte must be accounted for.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        const WHAT: &str = "information request";
        let wrong = Malformed::Length { what: WHAT, bytes: data.len() };
        let (name, rest) = counted(data).ok_or(wrong)?;
        let (count, wanted) = rest.split_at_checked(2).ok_or(wrong)?;
        if wanted.len() != usize::from(be16(count, 0)) * 2 {
            return Err(wrong);
        }
        Ok(Self { name: text(name, "export name")?, wanted })
    }

    /// The [`info`] types asked for, in order.
    pub fn wanted(&self) -> impl Iterator<Item = u16> + 'a {
        self.wanted.chunks_exact(2).map(|pair| be16(pair, 0))
    }
}

/// The data of a [`rep::INFO`] reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// Size in bytes and transmission flags.
    Export {
        /// Size of the export in bytes.
        bytes: u64,
        /// See [`flag`](super::flag).
        flags: u16,
    },
    /// The canonical name.
    Name(&'a str),
    /// Text for people.
    Description(&'a str),
    /// Size constraints (proto.md "Size constraints"), all in bytes.
    BlockSize {
        /// Unit of offset and length.
        minimum: u32,
        /// Unit at which no read-modify-write happens.
        preferred: u32,
        /// Largest payload.
        maximum: u32,
    },
    /// A type that this module does not know; to be ignored.
    Other(u16),
}

impl<'a> Info<'a> {
    /// Appends the data. [`Info::Other`] appends its type alone.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Export { bytes, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&ExportNameReply { bytes, flags }.encode());
            }
            Self::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::Description(text) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            Self::BlockSize { minimum, preferred, maximum } => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [minimum, preferred, maximum] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Other(kind) => out.extend_from_slice(&kind.to_be_bytes()),
        }
    }

    /// Reads the data.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed::Length { what: "information", bytes: data.len() };
        let (kind, rest) = data.split_at_checked(2).ok_or(wrong)?;
        match (be16(kind, 0), rest.len()) {
            (info::EXPORT, 10) => Ok(Self::Export { bytes: be64(rest, 0), flags: be16(rest, 8) }),
            (info::NAME, _) => Ok(Self::Name(text(rest, "export name")?)),
            (info::DESCRIPTION, _) => Ok(Self::Description(text(rest, "export description")?)),
            (info::BLOCK_SIZE, 12) => Ok(Self::BlockSize {
                minimum: be32(rest, 0),
                preferred: be32(rest, 4),
                maximum: be32(rest, 8),
            }),
            (info::EXPORT | info::BLOCK_SIZE, _) => Err(wrong),
            (other, _) => Ok(Self::Other(other)),
        }
    }
}

/// The data of a [`rep::SERVER`] reply: one line of the list of exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerEntry<'a> {
    /// The export's name.
    pub name: &'a str,
    /// Text for people; may be empty.
    pub description: &'a str,
}

impl<'a> ServerEntry<'a> {
    /// Appends the data.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.name.len() as u32).to_be_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(self.description.as_bytes());
    }

    /// Reads the data.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed::Length { what: "export list entry", bytes: data.len() };
        let (name, description) = counted(data).ok_or(wrong)?;
        Ok(Self {
            name: text(name, "export name")?,
            description: text(description, "export description")?,
        })
    }
}

/// Splits `data` after a 32-bit length and that many bytes.
fn counted(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    rest.split_at_checked(be32(length, 0) as usize)
}

/// Checks a string of the protocol.
pub(in crate::block::nbd) fn text<'a>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<&'a str, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed::Text(what))?;
    if text.len() > MAX_STRING_BYTES || text.contains('\0') {
        return Err(Malformed::Text(what));
    }
    Ok(text)
}

#[cfg(test)]
#[path = "option_tests.rs"]
mod tests;
