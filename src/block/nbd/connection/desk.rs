// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where requests meet the store: tickets, their cookies, and the replies of
//! what finished.
//!
//! A ticket is `Free` (the store's) → `Receiving` (reserved; its memory is this
//! thread's) → `Open` (started; its memory is the store's) → `Answered` (memory
//! this thread's again, until the reply is sent) → `Free`. Only `Open` tickets
//! can be touched by a tier.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::io::{BlockIo, Command, Finished, Idle};
use crate::engine::tier::HostMemory;

use super::super::wire::{Reply, Request};
use super::admission::{Limits, errno_of};
use super::replies::{Payload, Replies, Sent};
use super::socket::host_range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Receiving,
    Open,
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    command: Command,
    cookie: u64,
    offset: u64,
    bytes: u32,
    host: u32,
}

/// The requests of one connection.
pub(super) struct Desk<I: BlockIo> {
    /// Taken out only at the very end, by `into_io` or by dropping.
    io: Option<I>,
    memory: Arc<dyn HostMemory>,
    slots: Box<[Slot]>,
    finished: Vec<Finished>,
    replies: Replies,
    open: usize,
}

impl<I: BlockIo> Desk<I> {
    pub fn new(io: I) -> Self {
        let max = io.max_requests();
        let free = Slot {
            state: State::Free,
            command: Command::Flush,
            cookie: 0,
            offset: 0,
            bytes: 0,
            host: 0,
        };
        Self {
            memory: io.memory().clone(),
            slots: vec![free; max].into_boxed_slice(),
            finished: Vec::with_capacity(max),
            replies: Replies::new(max),
            open: 0,
            io: Some(io),
        }
    }

    pub fn limits(&mut self) -> Limits {
        let io = store(&mut self.io);
        Limits { device_bytes: io.device_bytes(), max_payload: io.max_payload() }
    }

    /// Requests that were started and have not finished.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Replies that are not sent entirely.
    pub fn replies(&self) -> usize {
        self.replies.len()
    }

    pub fn idle(&mut self) -> Idle {
        store(&mut self.io).idle()
    }

    /// The store's part; `None` if it has open requests: then the
    /// store ends them by itself.
    pub fn into_io(mut self) -> Option<I> {
        if self.open == 0 { self.io.take() } else { None }
    }

    /// A ticket for `request`, with its memory's place; `None`: full now.
    pub fn reserve(
        &mut self,
        request: &Request,
        command: Command,
        payload: u32,
    ) -> Option<(u32, u32)> {
        let ticket = store(&mut self.io).reserve(payload)?;
        // Without data the ticket's place means nothing.
        let host = if payload == 0 { 0 } else { ticket.host };
        // Checked once here, so that no later step meets a range outside.
        host_range(&self.memory, host, payload);
        let slot = &mut self.slots[ticket.token as usize];
        assert_eq!(slot.state, State::Free, "ticket {} was given out twice", ticket.token);
        *slot = Slot {
            state: State::Receiving,
            command,
            cookie: request.cookie,
            offset: request.offset,
            bytes: request.bytes,
            host,
        };
        Some((ticket.token, host))
    }

    /// The address of `bytes` of a `Receiving` ticket's memory.
    pub fn memory_at(&self, host: u32, bytes: u32) -> *mut u8 {
        host_range(&self.memory, host, bytes)
    }

    /// Starts a ticket whose payload, if any, is complete.
    pub fn start(&mut self, token: u32) {
        let slot = &mut self.slots[token as usize];
        debug_assert_eq!(slot.state, State::Receiving);
        slot.state = State::Open;
        self.open += 1;
        store(&mut self.io).start(token, slot.command, slot.offset, slot.bytes.into());
    }

    /// Gives back a ticket whose payload will never be complete.
    pub fn abandon(&mut self, token: u32) {
        debug_assert_eq!(self.slots[token as usize].state, State::Receiving);
        self.slots[token as usize].state = State::Free;
        store(&mut self.io).release(token);
    }

    /// Queues an error for a request that gets no ticket; false: no room now.
    pub fn refuse(&mut self, cookie: u64, errno: u32) -> bool {
        self.replies.refuse(Reply { error: errno, cookie })
    }

    /// The client is gone: the store begins nothing more for it.
    pub fn cancel(&mut self) {
        store(&mut self.io).cancel();
    }

    /// Lets the store work and queues the replies of what finished. True if
    /// anything did.
    pub fn drive(&mut self, now: Duration) -> bool {
        self.finished.clear();
        store(&mut self.io).drive(now, &mut self.finished);
        for &Finished { token, result } in &self.finished {
            let slot = &mut self.slots[token as usize];
            assert_eq!(slot.state, State::Open, "ticket {token} finished without being open");
            slot.state = State::Answered;
            self.open -= 1;
            let error = result.err().map_or(0, errno_of);
            let is_data = slot.command == Command::Read && error == 0;
            let bytes = if is_data { slot.bytes } else { 0 };
            self.replies.answer(
                Reply { error, cookie: slot.cookie },
                Payload { token, host: slot.host, bytes },
            );
        }
        !self.finished.is_empty()
    }

    /// Sends replies and gives their tickets back.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> Sent {
        let Self { io, memory, slots, replies, .. } = self;
        let io = store(io);
        replies.send(socket, memory, |token| {
            slots[token as usize].state = State::Free;
            io.release(token);
        })
    }

    /// Forgets the replies of a broken connection and gives their tickets back.
    pub fn discard_replies(&mut self) {
        let Self { io, slots, replies, .. } = self;
        let io = store(io);
        replies.discard(|token| {
            slots[token as usize].state = State::Free;
            io.release(token);
        });
    }
}

impl<I: BlockIo> Drop for Desk<I> {
    /// A tier may still touch the memory of an open request, so that memory must
    /// stay, for ever if need be, whatever brought us here: a panic included. The
    /// store knows how long.
    fn drop(&mut self) {
        if self.open > 0
            && let Some(io) = self.io.take()
        {
            io.lose();
        }
    }
}

fn store<I>(io: &mut Option<I>) -> &mut I {
    io.as_mut().expect("the store is there until the desk is consumed")
}
