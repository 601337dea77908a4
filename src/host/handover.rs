// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passing descriptors from process to process, one record at a time.
//!
//! Sequenced-packet Unix sockets: a record arrives whole or not at all, and the
//! end of the peer is seen. At most one descriptor goes with a record (the
//! kernel's own limit is 253). Nothing here allocates once its caller's socket
//! exists; errors are the kernel's numbers, for callers that may not allocate.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Both ends of a link, closed on exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Listens on `path`, for processes of our own user only: whoever could connect
/// gets everything. A file that is there already is replaced.
///
/// # Errors
/// `ADDRINUSE` while somebody listens there.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    if connect(path).is_ok() {
        return Err(Errno::ADDRINUSE);
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    // Before bind, so that nobody ever sees it open to others.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

/// Takes one who waits. `AGAIN`: nobody does.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
}

/// Connects to whoever listens on `path`.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The link whose number this process was given when it was executed; closed on
/// exec from now on.
///
/// # Errors
/// `BADF` or `NOTSOCK` if the number is of no socket.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    // The first three are the process's standard files, and not ours to own.
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: only asked what it is; nobody else closes it meanwhile, for this
    // is called once, before the first thread.
    let found = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_type(found)?;
    rustix::io::fcntl_setfd(found, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: an open socket that was passed to this process to own.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn socket(flags: SocketFlags) -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Process and user of the other end, as they were when it was connected.
pub fn peer(link: BorrowedFd<'_>) -> Result<(u32, u32)> {
    let peer = rustix::net::sockopt::socket_peercred(link)?;
    Ok((peer.pid.as_raw_nonzero().get().cast_unsigned(), peer.uid.as_raw()))
}

/// Sends one record without waiting. `AGAIN`: the other end has not read what
/// was sent before.
pub fn send(link: BorrowedFd<'_>, record: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Some(fd) = passed {
        fds = [fd];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(link, &[IoSlice::new(record)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A record received: its length (0: the other end is gone) and the descriptor
/// that came with it, closed on exec.
pub type Received = (usize, Option<OwnedFd>);

/// Takes one record without waiting. `AGAIN`: there is none.
pub fn receive(link: BorrowedFd<'_>, record: &mut [u8]) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        let parts = &mut [IoSliceMut::new(record)];
        match rustix::net::recvmsg(link, parts, &mut ancillary, flags) {
            // The other end died with records of ours unread: told once, before
            // what it sent itself. Its end comes after that.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut passed = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            // One at most; a second would be closed right here.
            passed = fds.last();
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((got.bytes, passed))
}

/// Waits until the link can be read, or its end is seen. False: it took longer.
pub fn wait_readable(link: BorrowedFd<'_>, patience: Duration) -> Result<bool> {
    wait(link, PollFlags::IN, patience)
}

/// Waits until the link takes another record, or its end is seen.
pub fn wait_writable(link: BorrowedFd<'_>, patience: Duration) -> Result<bool> {
    wait(link, PollFlags::OUT, patience)
}

fn wait(link: BorrowedFd<'_>, what: PollFlags, patience: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(patience).ok();
    loop {
        match poll(&mut [PollFd::new(&link, what)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the other end of a link is gone.
pub fn is_gone(link: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&link, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Ends a stream for both sides, whoever else holds a copy of its descriptor.
pub fn cut(socket: &impl AsFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_record_arrives_whole_with_its_descriptor_and_the_end_is_seen() {
        let (ours, theirs) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"page").unwrap();
        send(ours.as_fd(), b"one", Some(file.as_fd())).unwrap();
        send(ours.as_fd(), b"two", None).unwrap();
        let mut record = [0; 16];
        let (bytes, passed) = receive(theirs.as_fd(), &mut record).unwrap();
        assert_eq!(&record[..bytes], b"one");
        let mut passed = File::from(passed.unwrap());
        passed.rewind().unwrap();
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "page");
        assert_eq!(receive(theirs.as_fd(), &mut record).unwrap().0, 3);
        assert_eq!(receive(theirs.as_fd(), &mut record).unwrap_err(), Errno::AGAIN);
        assert!(!is_gone(theirs.as_fd()));
        drop(ours);
        assert!(is_gone(theirs.as_fd()));
        assert_eq!(receive(theirs.as_fd(), &mut record).unwrap().0, 0);
        assert_eq!(send(theirs.as_fd(), b"late", None).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn a_record_longer_than_its_room_is_an_error_and_not_a_part_of_one() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), &[7; 32], None).unwrap();
        assert_eq!(receive(theirs.as_fd(), &mut [0; 16]).unwrap_err(), Errno::MSGSIZE);
    }

    #[test]
    fn a_reader_that_stands_still_costs_the_sender_no_wait() {
        let (ours, theirs) = pair().unwrap();
        let full = std::iter::repeat_with(|| send(ours.as_fd(), &[0; 256], None))
            .take(1 << 20)
            .find_map(std::result::Result::err);
        assert_eq!(full, Some(Errno::AGAIN));
        assert!(!wait_writable(ours.as_fd(), Duration::ZERO).unwrap());
        drop(theirs);
        assert!(wait_writable(ours.as_fd(), Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn a_number_that_is_of_no_socket_is_not_taken_for_a_link() {
        use std::os::fd::AsRawFd;
        for number in [-1, 0, 2, i32::MAX] {
            assert_eq!(inherited(number).unwrap_err(), Errno::BADF, "{number}");
        }
        let file = tempfile::tempfile().unwrap();
        assert_eq!(inherited(file.as_raw_fd()).unwrap_err(), Errno::NOTSOCK);
    }

    #[test]
    fn a_listener_is_for_its_own_user_and_says_who_connected() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hold");
        assert_eq!(connect(&path).unwrap_err(), Errno::NOENT);
        drop(listen(&path).unwrap());
        assert_eq!(connect(&path).unwrap_err(), Errno::CONNREFUSED);
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(accept(listener.as_fd()).unwrap_err(), Errno::AGAIN);
        let link = connect(&path).unwrap();
        let taken = accept(listener.as_fd()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(peer(taken.as_fd()).unwrap(), (std::process::id(), user));
        assert_eq!(peer(link.as_fd()).unwrap().0, std::process::id());
    }
}
