// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nbd family's requests and replies as attributes. Pure: numbers and bytes.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::Event;
use super::message::{self, Content, Request};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::PAGE_BYTES;

/// `GENL_ID_CTRL`, the family that knows the others; its commands and attributes
/// are in `include/uapi/linux/genetlink.h`.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_VERSION: u8 = 2;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_ATTR_FAMILY_ID: u16 = 1;
const CONTROL_ATTR_FAMILY_NAME: u16 = 2;
const CONTROL_ATTR_GROUPS: u16 = 7;
const CONTROL_ATTR_GROUP_NAME: u16 = 1;
const CONTROL_ATTR_GROUP_ID: u16 = 2;

const VERSION: u8 = 1;
const COMMAND_CONNECT: u8 = 1;
const COMMAND_DISCONNECT: u8 = 2;
const COMMAND_RECONFIGURE: u8 = 3;
const COMMAND_LINK_DEAD: u8 = 4;
const COMMAND_STATUS: u8 = 5;
const ATTR_INDEX: u16 = 1;
const ATTR_SIZE_BYTES: u16 = 2;
const ATTR_BLOCK_BYTES: u16 = 3;
const ATTR_TIMEOUT: u16 = 4;
const ATTR_SERVER_FLAGS: u16 = 5;
const ATTR_CLIENT_FLAGS: u16 = 6;
const ATTR_SOCKETS: u16 = 7;
const ATTR_DEAD_CONN_TIMEOUT: u16 = 8;
const ATTR_DEVICE_LIST: u16 = 9;
const ATTR_BACKEND: u16 = 10;
const ATTR_SOCKET_ITEM: u16 = 1;
const ATTR_SOCKET_FD: u16 = 1;
const ATTR_DEVICE_INDEX: u16 = 1;
const ATTR_DEVICE_IN_USE: u16 = 2;
const GROUP: &[u8] = b"nbd_mc_group";
/// `NBD_FLAG_CAN_MULTI_CONN`, without which the kernel takes one socket only.
const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;

/// What a device is attached with.
#[derive(Debug)]
pub struct ConnectSpec<'a> {
    /// The number in `/dev/nbd<index>`; `None` lets the kernel choose a free one.
    pub index: Option<u32>,
    /// Size, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Logical and physical block size: a power of two, 512 to 4096.
    pub block_bytes: u32,
    /// The transmission flags of the NBD protocol, as a handshake would give them.
    pub server_flags: u16,
    /// Seconds until the kernel gives a request up. 0, the only safe value for
    /// swap over one socket: never, a slow request is only logged.
    pub timeout_s: u32,
    /// Seconds without any live socket until the device fails all I/O for good;
    /// at least 1 (the kernel takes 0 for "at once").
    pub dead_conn_timeout_s: u32,
    /// Compared by the kernel on [`Family::reconfigure`] and shown in
    /// `/sys/block/nbd<index>/backend`, so that nobody takes over another's device.
    pub backend_identifier: String,
    /// The kernel's ends, TCP or Unix stream. More than one needs the
    /// multi-connection server flag.
    pub sockets: &'a [BorrowedFd<'a>],
    /// How long to wait for an index that somebody merely has open. udev opens a
    /// device for a moment after each change, a detach included, and the kernel
    /// attaches nothing to an open device.
    pub patience: Duration,
}

/// The request for the driver's family id and event group.
pub(super) fn family() -> Request {
    Request::new(CONTROL_FAMILY, CONTROL_GET_FAMILY, CONTROL_VERSION)
        .text(CONTROL_ATTR_FAMILY_NAME, c"nbd")
}

/// The request to replace a device's dead sockets, and nothing else.
pub(super) fn reconfigure(
    family: u16,
    index: u32,
    backend_identifier: &str,
    sockets: &[BorrowedFd<'_>],
) -> Result<Request> {
    let request = Request::new(family, COMMAND_RECONFIGURE, VERSION)
        .u32(ATTR_INDEX, index)
        .text(ATTR_BACKEND, &identifier(backend_identifier)?);
    with_sockets(request, sockets)
}

/// The request to detach a device.
pub(super) fn disconnect(family: u16, index: u32) -> Request {
    Request::new(family, COMMAND_DISCONNECT, VERSION).u32(ATTR_INDEX, index)
}

/// The request to list every device.
pub(super) fn status(family: u16) -> Request {
    Request::new(family, COMMAND_STATUS, VERSION)
}

/// The index in the reply to an attach.
pub(super) fn connected_index(reply: &[Vec<u8>]) -> Result<u32> {
    for payload in reply {
        for (kind, value) in message::attributes(payload)? {
            if kind == ATTR_INDEX {
                return message::as_u32(value);
            }
        }
    }
    Err(message::broken("an attach without a device index"))
}

/// The lost socket a multicast of family `nbd` tells of, if it does.
pub(super) fn link_dead(nbd: u16, content: &Content<'_>) -> Result<Option<Event>> {
    let Content::Data { family, command: COMMAND_LINK_DEAD, attributes } = content else {
        return Ok(None);
    };
    if *family != nbd {
        return Ok(None);
    }
    for (kind, value) in message::attributes(attributes)? {
        if kind == ATTR_INDEX {
            return message::as_u32(value).map(|index| Some(Event::LinkDead(index)));
        }
    }
    Err(message::broken("a dead link without a device index"))
}

/// The request to attach a device.
///
/// Errors: `Invalid` for a bad `spec`.
pub(super) fn connect(family: u16, spec: &ConnectSpec<'_>) -> Result<Request> {
    check(spec)?;
    let mut request = Request::new(family, COMMAND_CONNECT, VERSION);
    if let Some(index) = spec.index {
        request = request.u32(ATTR_INDEX, index);
    }
    // All of these are sent even where 0 is the driver's default: an index
    // remembers the request timeout and flags of whoever used it before.
    let request = request
        .u64(ATTR_SIZE_BYTES, spec.size_bytes)
        .u64(ATTR_BLOCK_BYTES, spec.block_bytes.into())
        .u64(ATTR_TIMEOUT, spec.timeout_s.into())
        .u64(ATTR_DEAD_CONN_TIMEOUT, spec.dead_conn_timeout_s.into())
        .u64(ATTR_SERVER_FLAGS, spec.server_flags.into())
        .u64(ATTR_CLIENT_FLAGS, 0)
        .text(ATTR_BACKEND, &identifier(&spec.backend_identifier)?);
    with_sockets(request, spec.sockets)
}

fn check(spec: &ConnectSpec<'_>) -> Result<()> {
    let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
    let block = spec.block_bytes;
    if !block.is_power_of_two() || !(512..=PAGE_BYTES as u32).contains(&block) {
        return invalid(format!("nbd block size {block}: must be a power of two, 512 to 4096"));
    }
    if spec.size_bytes == 0 || !spec.size_bytes.is_multiple_of(block.into()) {
        return invalid(format!(
            "nbd device of {} bytes: must be whole blocks of {block}, at least one",
            spec.size_bytes
        ));
    }
    if spec.dead_conn_timeout_s == 0 {
        return invalid(
            "nbd dead-connection timeout of 0 s: one lost socket would fail all I/O at once"
                .to_owned(),
        );
    }
    if spec.sockets.len() > 1 && spec.server_flags & FLAG_CAN_MULTI_CONN == 0 {
        return invalid(format!(
            "{} nbd sockets without the multi-connection flag in {:#x}",
            spec.sockets.len(),
            spec.server_flags
        ));
    }
    Ok(())
}

fn identifier(text: &str) -> Result<CString> {
    match CString::new(text) {
        Ok(name) if !name.is_empty() && name.count_bytes() < PAGE_BYTES - 1 => Ok(name),
        _ => Err(Error::new(
            Kind::Invalid,
            format!("nbd back-end identifier {text:?}: must be 1 to 4094 bytes without NUL"),
        )),
    }
}

fn with_sockets(request: Request, sockets: &[BorrowedFd<'_>]) -> Result<Request> {
    if sockets.is_empty() {
        return Err(Error::new(Kind::Invalid, "an nbd device needs at least one socket"));
    }
    Ok(request.nested(ATTR_SOCKETS, |list| {
        sockets.iter().fold(list, |list, socket| {
            list.nested(ATTR_SOCKET_ITEM, |item| {
                item.u32(ATTR_SOCKET_FD, socket.as_raw_fd().cast_unsigned())
            })
        })
    }))
}

/// The driver's family id and event group, from the control family's reply.
pub(super) fn family_ids(reply: &[Vec<u8>]) -> Result<(u16, u32)> {
    let (mut id, mut group) = (None, None);
    for payload in reply {
        for (kind, value) in message::attributes(payload)? {
            match kind {
                CONTROL_ATTR_FAMILY_ID => id = Some(message::as_u16(value)?),
                CONTROL_ATTR_GROUPS => {
                    for (_, entry) in message::attributes(value)? {
                        group = group_id(entry)?.or(group);
                    }
                }
                _ => {}
            }
        }
    }
    id.zip(group).ok_or_else(|| message::broken("a family without id or event group"))
}

fn group_id(entry: &[u8]) -> Result<Option<u32>> {
    let (mut ours, mut id) = (false, None);
    for (kind, value) in message::attributes(entry)? {
        match kind {
            CONTROL_ATTR_GROUP_NAME => ours = message::without_nul(value) == GROUP,
            CONTROL_ATTR_GROUP_ID => id = Some(message::as_u32(value)?),
            _ => {}
        }
    }
    Ok(id.filter(|_| ours))
}

/// The devices in one payload of a status reply: index and whether in use.
pub(super) fn device_list(payload: &[u8]) -> Result<Vec<(u32, bool)>> {
    let mut devices = Vec::new();
    for (kind, list) in message::attributes(payload)? {
        if kind != ATTR_DEVICE_LIST {
            continue;
        }
        for (_, item) in message::attributes(list)? {
            let (mut index, mut in_use) = (None, None);
            for (kind, value) in message::attributes(item)? {
                match kind {
                    ATTR_DEVICE_INDEX => index = Some(message::as_u32(value)?),
                    ATTR_DEVICE_IN_USE => in_use = value.first().map(|flag| *flag != 0),
                    _ => {}
                }
            }
            devices.push(
                index
                    .zip(in_use)
                    .ok_or_else(|| message::broken("a device without index or state"))?,
            );
        }
    }
    Ok(devices)
}
