// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies on their way out: a fixed ring, gathered into few system calls.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::engine::tier::HostMemory;

use super::super::wire::{REPLY_BYTES, Reply};
use super::socket::{NOTHING, Piece, host_range, send};

/// Refusals (replies without a ticket) that may wait to be sent. A client that
/// sends nonsense and reads nothing is no longer read from at this point.
const MAX_REFUSALS: usize = 64;

/// Replies per system call; two pieces each, well below the kernel's 1024.
const REPLIES_PER_CALL: usize = 64;

/// A ticket's memory that follows its reply, and the ticket itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    /// To be released once the reply is sent.
    pub token: u32,
    /// First byte in host memory.
    pub host: u32,
    /// 0 for everything but a successful read.
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Outgoing {
    header: [u8; REPLY_BYTES],
    payload: Option<Payload>,
}

impl Outgoing {
    const EMPTY: Self = Self { header: [0; REPLY_BYTES], payload: None };

    fn payload_bytes(&self) -> usize {
        self.payload.map_or(0, |payload| payload.bytes as usize)
    }
}

/// How far sending went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing waits any more.
    All,
    /// The socket is full.
    Blocked,
    /// The kernel has no memory for it at the moment.
    Starved,
    /// Nobody will read any more.
    Broken(Errno),
}

impl Sent {
    /// What a failed call means; `None`: call again.
    fn after(errno: Errno) -> Option<Self> {
        match errno {
            Errno::INTR => None,
            Errno::AGAIN => Some(Self::Blocked),
            // Swapping out is what frees memory: giving the connection up
            // because there is none would be the wrong moment to do so.
            Errno::NOBUFS | Errno::NOMEM => Some(Self::Starved),
            other => Some(Self::Broken(other)),
        }
    }
}

/// The ring. Room for one reply per ticket and for [`MAX_REFUSALS`].
pub(super) struct Replies {
    ring: Box<[Outgoing]>,
    head: usize,
    len: usize,
    /// Bytes of the first reply that are already sent.
    sent: usize,
    refusals: usize,
}

impl Replies {
    pub fn new(max_requests: usize) -> Self {
        let ring = vec![Outgoing::EMPTY; max_requests + MAX_REFUSALS].into_boxed_slice();
        Self { ring, head: 0, len: 0, sent: 0, refusals: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Queues the reply to a request that has a ticket; there is always room.
    pub fn answer(&mut self, reply: Reply, payload: Payload) {
        self.push(Outgoing { header: reply.encode(), payload: Some(payload) });
    }

    /// Queues the reply to a request that never got a ticket; false: no room now.
    pub fn refuse(&mut self, reply: Reply) -> bool {
        if self.refusals == MAX_REFUSALS {
            return false;
        }
        self.refusals += 1;
        self.push(Outgoing { header: reply.encode(), payload: None });
        true
    }

    fn push(&mut self, outgoing: Outgoing) {
        assert!(self.len < self.ring.len(), "more replies than tickets and refusals");
        let at = (self.head + self.len) % self.ring.len();
        self.ring[at] = outgoing;
        self.len += 1;
    }

    /// Sends until nothing is left or the socket is full. `release` gets the
    /// token of each reply that is out entirely.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        memory: &Arc<dyn HostMemory>,
        mut release: impl FnMut(u32),
    ) -> Sent {
        while self.len > 0 {
            let mut pieces = [NOTHING; 2 * REPLIES_PER_CALL];
            let used = self.gather(memory, &mut pieces);
            // SAFETY: headers lie in the ring, which is borrowed for the call;
            // payloads belong to finished tickets, whose memory is this
            // thread's until they are released.
            match unsafe { send(socket, &mut pieces[..used]) } {
                Ok(count) => self.advance(count, &mut release),
                Err(errno) => {
                    if let Some(sent) = Sent::after(errno) {
                        return sent;
                    }
                }
            }
        }
        Sent::All
    }

    /// Forgets all replies of a connection that is broken.
    pub fn discard(&mut self, release: impl FnMut(u32)) {
        let left: usize = (0..self.len).map(|i| self.size(i)).sum();
        self.advance(left - self.sent, release);
    }

    fn at(&self, index: usize) -> &Outgoing {
        &self.ring[(self.head + index) % self.ring.len()]
    }

    fn size(&self, index: usize) -> usize {
        REPLY_BYTES + self.at(index).payload_bytes()
    }

    /// Describes the first replies, less what is sent; returns the pieces used.
    fn gather(&self, memory: &Arc<dyn HostMemory>, pieces: &mut [Piece]) -> usize {
        let mut used = 0;
        let mut skip = self.sent;
        for index in 0..self.len.min(REPLIES_PER_CALL) {
            let outgoing = self.at(index);
            let header = outgoing.header.as_ptr().cast_mut();
            let payload = outgoing.payload.map(|payload| {
                (host_range(memory, payload.host, payload.bytes), payload.bytes as usize)
            });
            for (base, bytes) in [Some((header, REPLY_BYTES)), payload].into_iter().flatten() {
                let from = skip.min(bytes);
                skip -= from;
                if from < bytes {
                    pieces[used].iov_base = base.wrapping_add(from).cast();
                    pieces[used].iov_len = bytes - from;
                    used += 1;
                }
            }
        }
        used
    }

    fn advance(&mut self, count: usize, mut release: impl FnMut(u32)) {
        self.sent += count;
        while self.len > 0 && self.sent >= self.size(0) {
            self.sent -= self.size(0);
            match self.at(0).payload {
                Some(payload) => release(payload.token),
                None => self.refusals -= 1,
            }
            self.head = (self.head + 1) % self.ring.len();
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_stays_breaks_the_connection() {
        for (errno, sent) in [
            (Errno::INTR, None),
            (Errno::AGAIN, Some(Sent::Blocked)),
            (Errno::NOBUFS, Some(Sent::Starved)),
            (Errno::NOMEM, Some(Sent::Starved)),
            (Errno::PIPE, Some(Sent::Broken(Errno::PIPE))),
            (Errno::CONNRESET, Some(Sent::Broken(Errno::CONNRESET))),
        ] {
            assert_eq!(Sent::after(errno), sent, "{errno}");
        }
    }
}
