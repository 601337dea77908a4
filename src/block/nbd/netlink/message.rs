// SPDX-License-Identifier: MIT OR Apache-2.0
//! Netlink messages as bytes: building requests, taking replies apart. Pure.
//!
//! Layout (`netlink(7)`, host byte order): a 16-byte header (length, type,
//! flags, sequence, port), for generic netlink 4 more (command, version, 0),
//! then attributes: length, type, payload, padded to 4 bytes; nested ones hold
//! attributes again. An error or acknowledgement (type 2) holds an errno and
//! the request's header and, with extended acknowledgements on, attributes.

use std::ffi::CStr;

use crate::engine::error::{Error, Kind, Result};

/// `NLMSG_ERROR`.
const TYPE_ERROR: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_ACK`: every request wants an answer.
const REQUEST_AND_ACK: u16 = 0x1 | 0x4;
/// `NLM_F_CAPPED`: the error does not repeat the request's payload.
const FLAG_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: the error carries attributes.
const FLAG_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's reason, a string.
const ERROR_ATTR_REASON: u16 = 1;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`.
const TYPE_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;

/// A request under construction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request to generic-netlink `family` for `command`.
    pub(super) fn new(family: u16, command: u8, version: u8) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(family.to_ne_bytes());
        bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([command, version, 0, 0]);
        Self { bytes }
    }

    pub(super) fn u32(self, attribute: u16, value: u32) -> Self {
        self.raw(attribute, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, attribute: u16, value: u64) -> Self {
        self.raw(attribute, &value.to_ne_bytes())
    }

    pub(super) fn text(self, attribute: u16, value: &CStr) -> Self {
        self.raw(attribute, value.to_bytes_with_nul())
    }

    pub(super) fn nested(mut self, attribute: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((attribute | NESTED).to_ne_bytes());
        self = inside(self);
        let bytes = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&bytes.to_ne_bytes());
        self
    }

    fn raw(mut self, attribute: u16, payload: &[u8]) -> Self {
        self.bytes.extend((4 + payload.len() as u16).to_ne_bytes());
        self.bytes.extend(attribute.to_ne_bytes());
        self.bytes.extend(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// The finished message, numbered `sequence`.
    pub(super) fn into_bytes(mut self, sequence: u32) -> Vec<u8> {
        let bytes = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message from the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received<'a> {
    /// The request's number; 0 for a multicast.
    pub(super) sequence: u32,
    pub(super) content: Content<'a>,
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// The request was carried out; its replies came before.
    Done,
    /// It was not: a positive errno and the kernel's reason, if it gave one.
    Refused { errno: i32, reason: Option<String> },
    /// A reply or an event of family `family`.
    Data { family: u16, command: u8, attributes: &'a [u8] },
}

/// Splits what one receive returned into messages.
pub(super) fn messages(mut bytes: &[u8]) -> Result<Vec<Received<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = u32_at(bytes, 0)? as usize;
        if length < HEADER_BYTES || length > bytes.len() {
            return Err(broken(&format!("a message of {length} bytes in {}", bytes.len())));
        }
        all.push(message(&bytes[..length])?);
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(all)
}

fn message(bytes: &[u8]) -> Result<Received<'_>> {
    let (kind, flags, sequence) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?, u32_at(bytes, 8)?);
    let payload = &bytes[HEADER_BYTES..];
    let content = if kind == TYPE_ERROR {
        error(payload, flags)?
    } else {
        let attributes = payload
            .get(GENERIC_BYTES..)
            .ok_or_else(|| broken(&format!("a reply of {} bytes", bytes.len())))?;
        Content::Data { family: kind, command: payload[0], attributes }
    };
    Ok(Received { sequence, content })
}

fn error(payload: &[u8], flags: u16) -> Result<Content<'static>> {
    let errno = u32_at(payload, 0)?.cast_signed();
    if errno == 0 {
        return Ok(Content::Done);
    }
    let request_bytes = u32_at(payload, 4)? as usize;
    let mut reason = None;
    if flags & FLAG_ACK_TLVS != 0 {
        let repeated = if flags & FLAG_CAPPED != 0 { HEADER_BYTES } else { request_bytes };
        let start = repeated.next_multiple_of(4).saturating_add(4);
        let details = payload
            .get(start..)
            .ok_or_else(|| broken(&format!("an error of {} bytes", payload.len())))?;
        for (kind, value) in attributes(details)? {
            if kind == ERROR_ATTR_REASON {
                reason = Some(String::from_utf8_lossy(without_nul(value)).into_owned());
            }
        }
    }
    Ok(Content::Refused { errno: errno.saturating_neg(), reason })
}

/// The attributes in `bytes`, in order: type without flags, and payload.
pub(super) fn attributes(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, kind) = (u16_at(bytes, 0)? as usize, u16_at(bytes, 2)?);
        if length < 4 || length > bytes.len() {
            return Err(broken(&format!("an attribute of {length} bytes in {}", bytes.len())));
        }
        all.push((kind & TYPE_MASK, &bytes[4..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(all)
}

/// The value of a 16-bit attribute.
pub(super) fn as_u16(payload: &[u8]) -> Result<u16> {
    exactly(payload).map(u16::from_ne_bytes)
}

/// The value of a 32-bit attribute.
pub(super) fn as_u32(payload: &[u8]) -> Result<u32> {
    exactly(payload).map(u32::from_ne_bytes)
}

/// A string attribute without its terminator.
pub(super) fn without_nul(payload: &[u8]) -> &[u8] {
    payload.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn exactly<const N: usize>(payload: &[u8]) -> Result<[u8; N]> {
    payload
        .try_into()
        .map_err(|_| broken(&format!("a value of {} bytes where {N} belong", payload.len())))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    as_u16(bytes.get(at..at + 2).unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    as_u32(bytes.get(at..at + 4).unwrap_or_default())
}

/// The kernel does not do this; a message that breaks the format is refused whole.
pub(super) fn broken(what: &str) -> Error {
    Error::new(Kind::Protocol, format!("broken netlink message: {what}"))
}
