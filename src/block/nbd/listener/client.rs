// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client's thread: handshake with a deadline, then transmission.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::io::BlockIo;

use super::super::connection::{Connection, Heartbeat, Sockets};
use super::super::handshake::{Handshake, Progress, Refusal};
use super::super::waker::EventWaker;
use super::Options;

/// Serves one client to its end.
pub(super) fn serve<I: BlockIo>(
    stream: UnixStream,
    options: &Options,
    factory: &impl Fn(Arc<EventWaker>) -> Result<I>,
    stop: &EventWaker,
) {
    if let Err(error) = try_serve(stream, options, factory, stop) {
        let cause = std::error::Error::source(&error);
        tracing::warn!(%error, cause, hint = error.hint(), "an NBD client was closed");
    }
}

fn try_serve<I: BlockIo>(
    stream: UnixStream,
    options: &Options,
    factory: &impl Fn(Arc<EventWaker>) -> Result<I>,
    stop: &EventWaker,
) -> Result<()> {
    stream.set_nonblocking(true).map_err(lost)?;
    let deadline = Instant::now() + options.handshake_deadline;
    let mut talk = Talk { stream, stop, deadline };
    let mut handshake = Handshake::new(options.export.clone());
    loop {
        let output = handshake.take_output();
        match handshake.progress() {
            Progress::Haggling => {
                talk.send(&output)?;
                let bytes = talk.receive(handshake.wants())?;
                if bytes.is_empty() {
                    tracing::debug!("an NBD client left during the handshake");
                    return Ok(());
                }
                handshake.feed(&bytes);
            }
            Progress::Refused(refusal) => {
                // The client may not wait for it: proto.md on ABORT.
                let _ = talk.send(&output);
                if refusal != Refusal::Aborted {
                    tracing::warn!(%refusal, "an NBD client was refused");
                }
                return Ok(());
            }
            Progress::Transmission => {
                // Made before the client is told that it may start: if this
                // fails it sees a refusal, not a broken device.
                let waker = Arc::new(EventWaker::new()?);
                let io = factory(Arc::clone(&waker))?;
                if io.device_bytes() != options.export.bytes {
                    let (is, said) = (io.device_bytes(), options.export.bytes);
                    let what = format!("the device has {is} bytes, the export says {said}");
                    return Err(Error::new(Kind::Invalid, what));
                }
                let connection = Connection::new(io, options.connection);
                talk.send(&output)?;
                transmit(connection, talk.stream.into(), &waker, stop);
                return Ok(());
            }
        }
    }
}

fn transmit<I: BlockIo>(
    mut connection: Connection<I>,
    socket: OwnedFd,
    waker: &EventWaker,
    stop: &EventWaker,
) {
    let sockets = Sockets { socket, wake: waker.as_fd(), stop: stop.as_fd() };
    let ended = connection.run(sockets, &Heartbeat::default());
    tracing::debug!(reason = ?ended.reason, "an NBD client's connection ended");
    if ended.open > 0 {
        tracing::error!(
            requests = ended.open,
            "requests of an NBD client never finished; their memory is kept for good"
        );
    }
}

/// A blocking exchange that ends at its deadline or when the server stops.
struct Talk<'a> {
    stream: UnixStream,
    stop: &'a EventWaker,
    deadline: Instant,
}

impl Talk<'_> {
    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    /// At least one and at most `wants` bytes; none: the client is gone.
    fn receive(&mut self, wants: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; wants];
        loop {
            self.wait(PollFlags::IN)?;
            match self.stream.read(&mut bytes) {
                Ok(count) => {
                    bytes.truncate(count);
                    return Ok(bytes);
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }

    fn wait(&self, interest: PollFlags) -> Result<()> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                let what = "an NBD client did not finish its handshake in time";
                return Err(Error::new(Kind::TimedOut, what));
            }
            let mut fds = [
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.stream.as_fd(), interest),
            ];
            if poll(&mut fds, Timespec::try_from(left).ok().as_ref()).is_err() {
                continue;
            }
            if !fds[0].revents().is_empty() {
                let what = "the server stopped during an NBD client's handshake";
                return Err(Error::new(Kind::Busy, what));
            }
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
        }
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn lost(error: std::io::Error) -> Error {
    Error::new(Kind::Io, "an NBD client was lost during its handshake").with_source(error)
}
