// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching the kernel's nbd driver through generic netlink
//! (`include/uapi/linux/nbd-netlink.h`, read at Linux 6.12).
//!
//! No handshake happens: the kernel is told size and flags and given the other
//! ends of our sockets. It takes a reference of its own to each, so the caller
//! closes its copy afterwards; the server then sees end of file exactly when the
//! kernel lets go. The device belongs to no process: it lives until
//! [`Family::disconnect`], whatever dies.
//!
//! Two client flags exist and we set neither. `DISCONNECT_ON_CLOSE` would end
//! the device when the last opener closes it, and udev opens and closes it
//! before swapon does. `DESTROY_ON_DISCONNECT` would remove the node under a
//! swap area that is still on, which leaves a `(deleted)` ghost that no swapoff
//! reaches.
//!
//! Requests run in the caller's `send`, under the device's configuration lock:
//! `connect`, `reconfigure` and `disconnect` write to or shut down sockets, so
//! they must not be called from the thread that serves the device.

mod channel;
mod device;
mod message;
mod protocol;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::engine::error::{Error, Kind, Result};
use channel::{Channel, Failure};
pub use device::{Attachment, attached_as, attachment};
pub use protocol::ConnectSpec;

/// How often an index that is open is tried again.
const OPEN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An open channel to the kernel's nbd driver.
#[derive(Debug)]
pub struct Family {
    root: PathBuf,
    socket: Channel,
    id: u16,
    group: u32,
}

impl Family {
    /// Finds the driver. `root` is where `/sys` and `/proc` are looked up for
    /// error texts. The kernel may load the module by itself here.
    ///
    /// Errors: `Missing` without the nbd driver.
    pub fn open(root: &Path) -> Result<Self> {
        let mut socket = Channel::open()?;
        let reply = socket.ask(protocol::family()).map_err(|failure| match failure {
            Failure::Refused { errno: libc::ENOENT, .. } => Error::new(
                Kind::Missing,
                "the kernel has no netlink family \"nbd\": its nbd driver is not loaded",
            )
            .with_hint("modprobe nbd"),
            other => other.into_error("cannot look up the netlink family \"nbd\"".to_owned()),
        })?;
        let (id, group) = protocol::family_ids(&reply)?;
        Ok(Self { root: root.to_owned(), socket, id, group })
    }

    /// Attaches a device and returns its index. The size is live and udev told
    /// when this returns.
    ///
    /// Errors: `Invalid` for a bad `spec`, `Busy` (naming by whom) if the index is
    /// taken, or still open after `spec.patience`, `Denied` without `CAP_SYS_ADMIN`.
    pub fn connect(&mut self, spec: &ConnectSpec<'_>) -> Result<u32> {
        let deadline = Instant::now() + spec.patience;
        loop {
            let failure = match self.socket.ask(protocol::connect(self.id, spec)?) {
                Ok(reply) => return protocol::connected_index(&reply),
                Err(failure) => failure,
            };
            if !self.is_merely_open(spec, &failure)? || Instant::now() >= deadline {
                return Err(self.not_attached(spec, failure));
            }
            std::thread::sleep(OPEN_POLL_INTERVAL);
        }
    }

    /// Gives an attached device new sockets in place of dead ones; what was in
    /// flight on those is sent again once the queue's `io_timeout` has passed.
    ///
    /// The kernel says success even if it takes none of the sockets because the
    /// old ones still live (it learns of a dead peer a little later): close the
    /// caller's copies and ask [`was_adopted`] of each server's end, and if not,
    /// call again with new sockets. Timeouts are left as they are, for setting
    /// one would reset `io_timeout`.
    ///
    /// Errors: `Invalid` if the device is not attached or has another identifier.
    pub fn reconfigure(
        &mut self,
        index: u32,
        backend_identifier: &str,
        sockets: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let request = protocol::reconfigure(self.id, index, backend_identifier, sockets)?;
        self.socket.ask(request).map(drop).map_err(|failure| {
            let mut what = format!("cannot give /dev/nbd{index} new sockets");
            match attachment(&self.root, index) {
                Ok(None) => what.push_str(": it is not attached"),
                Ok(Some(found)) if found.backend.as_deref() != Some(backend_identifier) => {
                    what =
                        format!("{what} as back-end {backend_identifier}: it belongs to {found}");
                }
                _ => {}
            }
            failure.into_error(what)
        })
    }

    /// Detaches a device: the server gets a disconnect request and end of file,
    /// requests in flight fail. Swap off first. Succeeds if nothing was attached.
    /// The index is free again when the last opener has closed it.
    ///
    /// Errors: `Invalid` if there is no such device.
    pub fn disconnect(&mut self, index: u32) -> Result<()> {
        self.socket
            .ask(protocol::disconnect(self.id, index))
            .map(drop)
            .map_err(|failure| failure.into_error(format!("cannot detach /dev/nbd{index}")))
    }

    /// Every nbd device and whether it is in use: attached, or at least open.
    pub fn status(&mut self) -> Result<Vec<(u32, bool)>> {
        let reply = self
            .socket
            .ask(protocol::status(self.id))
            .map_err(|failure| failure.into_error("cannot list nbd devices".to_owned()))?;
        let mut devices = Vec::new();
        for payload in &reply {
            devices.extend(protocol::device_list(payload)?);
        }
        Ok(devices)
    }

    /// Subscribes to the loss of sockets, of all devices.
    pub fn events(&self) -> Result<Events> {
        let socket = Channel::open()?;
        socket.join(self.group)?;
        Ok(Events { family: self.id, socket })
    }

    fn is_merely_open(&self, spec: &ConnectSpec<'_>, failure: &Failure) -> Result<bool> {
        match (spec.index, failure) {
            (Some(index), Failure::Refused { errno: libc::EBUSY, .. }) => {
                Ok(attachment(&self.root, index)?.is_none())
            }
            _ => Ok(false),
        }
    }

    fn not_attached(&self, spec: &ConnectSpec<'_>, failure: Failure) -> Error {
        let Some(index) = spec.index else {
            return failure.into_error("cannot attach an nbd device".to_owned());
        };
        let mut what = format!("cannot attach /dev/nbd{index}");
        if matches!(failure, Failure::Refused { errno: libc::EBUSY, .. }) {
            match attachment(&self.root, index) {
                Ok(Some(found)) => what = format!("{what}: it is attached by {found}"),
                _ => what.push_str(": somebody has it open"),
            }
            return failure
                .into_error(what)
                .with_hint("choose another index, or let the kernel choose one");
        }
        failure.into_error(what)
    }
}

/// Whether the kernel holds the other end of `server`: ask once the caller's own
/// copy of that end is closed.
pub fn was_adopted(server: BorrowedFd<'_>) -> Result<bool> {
    let mut poll = [PollFd::new(&server, PollFlags::RDHUP)];
    rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(|errno| {
        Error::new(Kind::Io, "cannot ask a server socket for its other end").with_source(errno)
    })?;
    Ok(!poll[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR))
}

/// Something that happened to a socket of an nbd device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kernel gave up a socket of `/dev/nbd<index>`, not at our request.
    LinkDead(u32),
    /// Events were lost; ask for the state of the devices.
    Missed,
}

/// A subscription to [`Event`]s.
#[derive(Debug)]
pub struct Events {
    family: u16,
    socket: Channel,
}

impl Events {
    /// Takes what has happened since the last call; never waits. Empty if nothing.
    pub fn take(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            let bytes = match self.socket.receive_waiting() {
                Ok(bytes) => bytes,
                Err(Errno::AGAIN) => return Ok(events),
                Err(Errno::NOBUFS | Errno::MSGSIZE) => {
                    events.push(Event::Missed);
                    continue;
                }
                Err(errno) => {
                    return Err(Error::new(Kind::Io, "cannot read nbd events").with_source(errno));
                }
            };
            for received in message::messages(bytes)? {
                events.extend(protocol::link_dead(self.family, &received.content)?);
            }
        }
    }
}

impl AsFd for Events {
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// The bytes in them are those of a little-endian machine.
#[cfg(all(test, target_endian = "little"))]
mod tests;
