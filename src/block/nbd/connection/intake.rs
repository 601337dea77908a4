// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes in, started requests out.
//!
//! One buffer takes everything that is already there. Small payloads are copied
//! from it to their ticket's memory; of a payload that has not arrived whole, the
//! rest is received straight into that memory, and the same system call puts
//! what follows it into the buffer.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::engine::io::{BlockIo, Command};

use super::super::wire::{Malformed, REQUEST_BYTES, Request};
use super::admission::{Limits, Verdict, admit};
use super::desk::Desk;
use super::socket::{NOTHING, receive};

/// Enough for 63 page writes, or thousands of reads, in one system call.
const BUFFER_BYTES: usize = 256 * 1024;

/// What a look at the socket gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Something arrived.
    Bytes,
    /// Nothing is there.
    Nothing,
    /// The other end is closed.
    End,
    /// The socket failed.
    Failed(Errno),
}

/// Why the stream is not read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// `DISC`.
    Leave,
    /// The client claims a payload of this many bytes.
    Oversized(u32),
    /// The stream is out of step.
    Malformed(Malformed),
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The next bytes are a request.
    Header,
    /// A request is admitted and waits for a ticket.
    Waiting { request: Request, command: Command, payload: u32 },
    /// The next bytes belong to a ticket's memory, from `host` on.
    Payload { token: u32, host: u32, left: u32 },
    /// The next bytes belong to a refused request; then `errno` is queued.
    Refusing { cookie: u64, errno: u32, left: u32 },
}

/// The receiving side of a connection.
pub(super) struct Intake {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    stage: Stage,
    limits: Limits,
}

impl Intake {
    pub fn new(limits: Limits) -> Self {
        // A non-zero fill writes to every page now: none is left to be faulted in.
        let buffer = vec![0xa5; BUFFER_BYTES].into_boxed_slice();
        Self { buffer, start: 0, end: 0, stage: Stage::Header, limits }
    }

    /// Whether more bytes would help; if not, a ticket or a reply slot is missing.
    pub fn wants_bytes(&self) -> bool {
        match self.stage {
            Stage::Header => true,
            Stage::Waiting { .. } => false,
            Stage::Payload { left, .. } | Stage::Refusing { left, .. } => left > 0,
        }
    }

    /// True if a request waits for a ticket.
    pub fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. })
    }

    /// Takes what the socket has. Call only when [`wants_bytes`](Self::wants_bytes).
    pub fn receive<I: BlockIo>(&mut self, socket: BorrowedFd<'_>, desk: &Desk<I>) -> Received {
        // At most a part of a header is left here, so this moves a few bytes.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let mut pieces = [NOTHING; 2];
        let mut direct = 0;
        if let Stage::Payload { host, left, .. } = self.stage {
            pieces[0].iov_base = desk.memory_at(host, left).cast();
            pieces[0].iov_len = left as usize;
            direct = left;
        }
        pieces[1].iov_base = self.buffer[self.end..].as_mut_ptr().cast();
        pieces[1].iov_len = self.buffer.len() - self.end;
        // SAFETY: the buffer is borrowed for the call, and a receiving ticket's
        // memory is this thread's alone until the ticket is started.
        match unsafe { receive(socket, &mut pieces) } {
            Ok(0) => Received::End,
            Ok(count) => {
                let placed = count.min(direct as usize);
                if let Stage::Payload { host, left, .. } = &mut self.stage {
                    *host += placed as u32;
                    *left -= placed as u32;
                }
                self.end += count - placed;
                Received::Bytes
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Received::Nothing,
            Err(errno) => Received::Failed(errno),
        }
    }

    /// Starts every request that is whole and finds a ticket. True if the stream
    /// moved on.
    pub fn advance<I: BlockIo>(&mut self, desk: &mut Desk<I>) -> Result<bool, Halt> {
        let mut moved = false;
        while self.step(desk)? {
            moved = true;
        }
        Ok(moved)
    }

    /// Gives back the ticket of a payload that will never be complete.
    pub fn abandon<I: BlockIo>(&mut self, desk: &mut Desk<I>) {
        if let Stage::Payload { token, .. } = self.stage {
            desk.abandon(token);
        }
        self.stage = Stage::Header;
        self.start = self.end;
    }

    /// One step; false: it needs bytes, a ticket or a reply slot.
    fn step<I: BlockIo>(&mut self, desk: &mut Desk<I>) -> Result<bool, Halt> {
        let buffered = self.end - self.start;
        match self.stage {
            Stage::Header => {
                let Some(header) = self.buffer[self.start..self.end].first_chunk::<REQUEST_BYTES>()
                else {
                    return Ok(false);
                };
                let request = Request::parse(header).map_err(Halt::Malformed)?;
                self.start += REQUEST_BYTES;
                self.stage = match admit(&request, &self.limits) {
                    Verdict::Take { command, payload } => {
                        Stage::Waiting { request, command, payload }
                    }
                    Verdict::Refuse { errno, skip } => {
                        Stage::Refusing { cookie: request.cookie, errno, left: skip }
                    }
                    Verdict::Leave => return Err(Halt::Leave),
                    Verdict::Drop => return Err(Halt::Oversized(request.bytes)),
                };
            }
            Stage::Waiting { request, command, payload } => {
                let Some((token, host)) = desk.reserve(&request, command, payload) else {
                    return Ok(false);
                };
                self.stage = if command == Command::Write {
                    Stage::Payload { token, host, left: payload }
                } else {
                    desk.start(token);
                    Stage::Header
                };
            }
            Stage::Payload { token, left: 0, .. } => {
                desk.start(token);
                self.stage = Stage::Header;
            }
            Stage::Payload { host, left, .. } => {
                let take = left.min(buffered as u32);
                if take == 0 {
                    return Ok(false);
                }
                let from = &self.buffer[self.start..][..take as usize];
                let to = desk.memory_at(host, take);
                // SAFETY: `to` is `take` bytes of a receiving ticket's memory,
                // which is this thread's alone and no part of the buffer.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
                self.skip(take);
            }
            Stage::Refusing { cookie, errno, left: 0 } => {
                if !desk.refuse(cookie, errno) {
                    return Ok(false);
                }
                self.stage = Stage::Header;
            }
            Stage::Refusing { left, .. } => {
                let take = left.min(buffered as u32);
                if take == 0 {
                    return Ok(false);
                }
                self.skip(take);
            }
        }
        Ok(true)
    }

    /// Counts `take` buffered bytes as consumed by the current payload.
    fn skip(&mut self, take: u32) {
        self.start += take as usize;
        if let Stage::Payload { host, left, .. } = &mut self.stage {
            *host += take;
            *left -= take;
        } else if let Stage::Refusing { left, .. } = &mut self.stage {
            *left -= take;
        }
    }
}
