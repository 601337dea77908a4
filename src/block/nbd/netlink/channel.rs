// SPDX-License-Identifier: MIT OR Apache-2.0
//! A generic-netlink socket: one request, its replies, its end.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::message::{self, Content, Request};
use crate::engine::error::{Error, Kind, Result};

/// `SOL_NETLINK` options of `include/uapi/linux/netlink.h`.
const OPTION_ADD_MEMBERSHIP: i32 = 1;
const OPTION_CAP_ACK: i32 = 10;
const OPTION_EXT_ACK: i32 = 11;

/// The kernel answers inside the send, so an answer that is not there by now was
/// lost.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Room for any answer; the largest is STATUS with 20 bytes a device.
const BUFFER_BYTES: usize = 64 * 1024;

/// A socket of its own port; the kernel is its peer.
pub(super) struct Channel {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub(super) enum Failure {
    /// The kernel said no: a positive errno and its reason, if it gave one.
    Refused { errno: i32, reason: Option<String> },
    /// The channel itself failed.
    Broken(Error),
}

impl Failure {
    /// An error that says `what` could not be done and why.
    pub(super) fn into_error(self, what: String) -> Error {
        let (errno, reason) = match self {
            Self::Broken(error) => return error,
            Self::Refused { errno, reason } => (errno, reason),
        };
        let kind = match errno {
            libc::EPERM | libc::EACCES => Kind::Denied,
            libc::EBUSY | libc::EEXIST => Kind::Busy,
            libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP => Kind::Missing,
            libc::ENOMEM | libc::ENOBUFS => Kind::NoSpace,
            libc::EINVAL | libc::EBADF | libc::ENOTSOCK | libc::ERANGE => Kind::Invalid,
            _ => Kind::Io,
        };
        let hint = match kind {
            Kind::Denied => Some("run as root or with CAP_SYS_ADMIN in the initial namespaces"),
            // The driver rarely uses extended acknowledgements; it logs instead.
            Kind::Invalid if reason.is_none() => Some("the driver logs its reason: see dmesg"),
            _ => None,
        };
        let what = match reason {
            Some(reason) => format!("{what}: {reason}"),
            None => what,
        };
        let error = Error::new(kind, what).with_source(std::io::Error::from_raw_os_error(errno));
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl Channel {
    pub(super) fn open() -> Result<Self> {
        let failed = |errno: Errno| {
            Error::new(Kind::Io, "cannot open a generic-netlink socket").with_source(errno)
        };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        )
        .map_err(failed)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_DEADLINE)).map_err(failed)?;
        let channel = Self { fd, buffer: vec![0; BUFFER_BYTES], sequence: 0 };
        channel.option(OPTION_CAP_ACK, 1)?;
        channel.option(OPTION_EXT_ACK, 1)?;
        Ok(channel)
    }

    /// Joins a multicast group.
    pub(super) fn join(&self, group: u32) -> Result<()> {
        self.option(OPTION_ADD_MEMBERSHIP, group)
    }

    fn option(&self, option: i32, value: u32) -> Result<()> {
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: an open socket and a value that outlives the call, with its size.
        let answer = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                (&raw const value).cast(),
                bytes,
            )
        };
        if answer == 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Io, format!("cannot set netlink option {option} to {value}"))
            .with_source(std::io::Error::last_os_error()))
    }

    /// Sends `request` and returns the attributes of its replies once the kernel
    /// has acknowledged it. Blocks for as long as the kernel works on it.
    pub(super) fn ask(&mut self, request: Request) -> std::result::Result<Vec<Vec<u8>>, Failure> {
        let broken = |what: &str, errno: Errno| {
            let kind = if errno == Errno::AGAIN { Kind::TimedOut } else { Kind::Io };
            Failure::Broken(Error::new(kind, what).with_source(errno))
        };
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let bytes = request.into_bytes(sequence);
        rustix::net::send(&self.fd, &bytes, SendFlags::empty())
            .map_err(|errno| broken("cannot send a netlink request", errno))?;
        let mut replies = Vec::new();
        loop {
            let received = self
                .receive(RecvFlags::empty())
                .map_err(|errno| broken("no answer to a netlink request", errno))?;
            for message in message::messages(received).map_err(Failure::Broken)? {
                // An answer to an earlier request that was given up.
                if message.sequence != sequence {
                    continue;
                }
                match message.content {
                    Content::Done => return Ok(replies),
                    Content::Refused { errno, reason } => {
                        return Err(Failure::Refused { errno, reason });
                    }
                    Content::Data { attributes, .. } => replies.push(attributes.to_vec()),
                }
            }
        }
    }

    /// What has arrived already; `AGAIN` if nothing has.
    pub(super) fn receive_waiting(&mut self) -> std::result::Result<&[u8], Errno> {
        self.receive(RecvFlags::DONTWAIT)
    }

    fn receive(&mut self, flags: RecvFlags) -> std::result::Result<&[u8], Errno> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.buffer[..], flags | RecvFlags::TRUNC) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok((_, bytes)) if bytes > self.buffer.len() => return Err(Errno::MSGSIZE),
                Ok((_, bytes)) => return Ok(&self.buffer[..bytes]),
            }
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
