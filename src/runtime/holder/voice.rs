// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a holder speaks: to standard error and to systemd, never waiting for
//! either (both may be swapped out to the store that is to be brought back),
//! and without memory.

use std::fmt::{Arguments, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The longest line.
const LINE: usize = 400;

/// See the module.
pub struct Voice {
    manager: Option<OwnedFd>,
}

impl Voice {
    /// Finds systemd, if it started us.
    pub fn new() -> Self {
        Self { manager: manager() }
    }

    /// A line for the journal. Lost if nobody reads it now.
    #[allow(clippy::unused_self)]
    pub fn say(&self, what: Arguments<'_>) {
        let line = Line::of(format_args!("sluice-hold: {what}\n"));
        let stderr = std::io::stderr();
        // The journal's stream is a socket, for which this is not to wait.
        if let Err(rustix::io::Errno::NOTSOCK) =
            rustix::net::send(&stderr, line.bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        {
            let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::write(&stderr, line.bytes());
            }
        }
    }

    /// Tells systemd, in its own words.
    pub fn notify(&self, what: Arguments<'_>) {
        if let Some(manager) = &self.manager {
            let line = Line::of(what);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(manager.as_fd(), line.bytes(), flags);
        }
    }
}

fn manager() -> Option<OwnedFd> {
    let name = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match name.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name).ok()?,
        None => SocketAddrUnix::new(&name).ok()?,
    };
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::DGRAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

/// A text of bounded length; what does not fit is left out.
struct Line {
    text: [u8; LINE],
    length: usize,
}

impl Line {
    fn of(what: Arguments<'_>) -> Self {
        let mut line = Self { text: [0; LINE], length: 0 };
        let _ = line.write_fmt(what);
        line
    }

    fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl Write for Line {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let room = (LINE - self.length).min(part.len());
        self.text[self.length..self.length + room].copy_from_slice(&part.as_bytes()[..room]);
        self.length += room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_too_long_is_cut() {
        let line = Line::of(format_args!("{}{}", "a".repeat(LINE - 1), "bc"));
        assert_eq!(line.bytes().len(), LINE);
        assert_eq!(line.bytes()[LINE - 2..], *b"ab");
    }
}
