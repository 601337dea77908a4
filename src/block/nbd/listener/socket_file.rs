// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket file: made private from the first moment, never somebody else's.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::engine::error::{Error, Kind, Result};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 16;

/// A socket file that this process made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode: what [`SocketFile::remove`] may remove.
    identity: (u64, u64),
}

impl SocketFile {
    /// Makes the file and listens on it.
    pub fn bind(path: &Path) -> Result<(UnixListener, Self)> {
        let failed = |what: &str, error: io::Error| {
            Error::new(kind(&error), format!("{}: {what}", path.display())).with_source(error)
        };
        let address = SocketAddrUnix::new(path).map_err(|errno| {
            failed("not usable as a socket's path", errno.into())
                .with_hint("choose a path of at most 107 bytes")
        })?;
        // Held until the file is bound: of two starters that find an abandoned
        // file, the second must not remove the first one's new file.
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let folder =
            fs::File::open(folder).map_err(|e| failed("its folder cannot be opened", e))?;
        flock(&folder, FlockOperation::LockExclusive)
            .map_err(|errno| failed("its folder cannot be locked", errno.into()))?;
        remove_abandoned(path, &address)?;
        let listener = listen_at(&address).map_err(|e| failed("cannot be listened on", e))?;
        let made = fs::symlink_metadata(path).map_err(|e| failed("vanished after binding", e))?;
        let identity = (made.dev(), made.ino());
        Ok((listener, Self { path: path.to_owned(), identity }))
    }

    /// Removes the file, unless another one is in its place by now.
    pub fn remove(&self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket file stays behind");
        }
    }
}

fn listen_at(address: &SocketAddrUnix) -> io::Result<UnixListener> {
    let socket: OwnedFd =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The mode of the socket is the mode of the file that bind makes: it is
    // never open to others, not even for a moment.
    fchmod(socket.as_fd(), Mode::RUSR | Mode::WUSR)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket file that nobody listens on.
fn remove_abandoned(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let name = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let what = format!("{name}: cannot be looked at");
            return Err(Error::new(kind(&error), what).with_source(error));
        }
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::new(Kind::Invalid, format!("{name}: there is something else"))
                .with_hint("remove it or choose another path for the socket"));
        }
        Ok(_) => {}
    }
    match probe(address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(|error| {
            let what = format!("{name}: an abandoned socket cannot be removed");
            Error::new(kind(&error), what).with_source(error)
        }),
        // EAGAIN: somebody listens and has a full queue.
        Ok(()) | Err(Errno::AGAIN) => {
            Err(Error::new(Kind::Busy, format!("{name}: a server is already listening there"))
                .with_hint("stop it or choose another path for the socket"))
        }
        Err(errno) => {
            let error = io::Error::from(errno);
            let what = format!("{name}: cannot tell whether somebody listens there");
            Err(Error::new(kind(&error), what).with_source(error))
        }
    }
}

/// Connects, without waiting for a server whose queue is full.
fn probe(address: &SocketAddrUnix) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address)
}

fn kind(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound => Kind::Missing,
        io::ErrorKind::PermissionDenied => Kind::Denied,
        io::ErrorKind::AddrInUse => Kind::Busy,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => Kind::Invalid,
        _ => Kind::Io,
    }
}
