// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests over one NBD connection, many open at once: whatever the depth
//! allows is built into one buffer and sent with one call, and one receive
//! takes as many replies as have come.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::book::{Book, Pick, Share};
use super::plan::{Pace, Plan};
use super::{Tally, Worker, sleep_until};
use crate::block::nbd::client::{Client, broken};
use crate::block::nbd::wire::{REPLY_BYTES, REQUEST_BYTES, Reply, Request, cmd, flag};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::PAGE_BYTES;

/// More than this in one call gains nothing: sockets hold less.
const BUFFER_BYTES: usize = 4 << 20;

/// A request that was sent and not yet answered.
#[derive(Clone, Copy)]
struct Open {
    pick: Pick,
    since: Instant,
}

struct Connection {
    stream: UnixStream,
    place: String,
    book: Book,
    tally: Tally,
    block_bytes: u32,
    pace: Pace,
    /// By cookie; a free place is `None`.
    open: Vec<Option<Open>>,
    free: Vec<u32>,
    out: Vec<u8>,
    sent: usize,
    input: Box<[u8]>,
    /// The part of `input` that is received and not yet understood.
    begin: usize,
    end: usize,
}

/// Connects as often as the plan says.
pub(super) fn workers(socket: &Path, name: &str, plan: &Plan) -> Result<Vec<Box<dyn Worker>>> {
    let run = super::run_number();
    let place = socket.display().to_string();
    let mut workers: Vec<Box<dyn Worker>> = Vec::new();
    for number in 0..u64::from(plan.connections) {
        let client = Client::connect(socket, name)?;
        let export = client.export();
        if number == 0 {
            check(&export, plan, &place)?;
        }
        let count = plan.blocks_per_connection(&place, export.bytes)?;
        let share = Share { first: number * count, stride: 1, count };
        let book = Book::new(share, plan, number, run);
        workers.push(Box::new(Connection::new(client.into_stream(), place.clone(), book, plan)));
    }
    Ok(workers)
}

fn check(export: &crate::block::nbd::client::Export, plan: &Plan, place: &str) -> Result<()> {
    let refuse = |why: String, hint: &str| {
        Err(Error::new(Kind::Invalid, format!("{place} {why}")).with_hint(hint))
    };
    if plan.writes() && export.can(flag::READ_ONLY) {
        return refuse("is read-only".into(), "measure reads alone: --write 0");
    }
    if plan.block_bytes > export.max_payload {
        let most = export.max_payload;
        return refuse(format!("takes at most {most} bytes in a request"), "use a smaller --block");
    }
    if !plan.block_bytes.is_multiple_of(export.min_block.max(1)) {
        let unit = export.min_block;
        return refuse(format!("takes multiples of {unit} bytes only"), "use a larger --block");
    }
    Ok(())
}

impl Connection {
    fn new(stream: UnixStream, place: String, book: Book, plan: &Plan) -> Self {
        let (block, depth) = (plan.block_bytes as usize, plan.depth as usize);
        // At least one whole request or reply, at most what a call can move.
        let room = |one: usize| (one * depth).min(BUFFER_BYTES).max(one);
        Self {
            stream,
            place,
            book,
            tally: Tally::default(),
            block_bytes: plan.block_bytes,
            pace: plan.pace,
            open: vec![None; depth],
            free: (0..plan.depth).rev().collect(),
            out: Vec::with_capacity(room(REQUEST_BYTES + block)),
            sent: 0,
            input: vec![0; room(REPLY_BYTES + block)].into_boxed_slice(),
            begin: 0,
            end: 0,
        }
    }

    fn in_flight(&self) -> usize {
        self.open.len() - self.free.len()
    }

    /// Builds requests until the depth, the buffer or `next` is exhausted.
    /// `limit` is the most to build.
    fn build(&mut self, limit: usize, next: impl Fn(&mut Book) -> Option<Pick>) {
        if self.sent < self.out.len() {
            return; // The last batch is still on its way.
        }
        self.out.clear();
        self.sent = 0;
        let since = Instant::now();
        for _ in 0..limit {
            let most = REQUEST_BYTES + self.block_bytes as usize;
            if self.out.capacity() - self.out.len() < most {
                break;
            }
            let Some(&cookie) = self.free.last() else { break };
            let Some(pick) = next(&mut self.book) else { break };
            self.free.pop();
            self.open[cookie as usize] = Some(Open { pick, since });
            self.append(cookie, pick);
        }
    }

    fn append(&mut self, cookie: u32, pick: Pick) {
        let request = Request {
            flags: 0,
            kind: if pick.write { cmd::WRITE } else { cmd::READ },
            cookie: cookie.into(),
            offset: self.book.offset(pick.index, self.block_bytes),
            bytes: self.block_bytes,
        };
        self.out.extend_from_slice(&request.encode());
        if let (true, Some(version)) = (pick.write, pick.version) {
            let start = self.out.len();
            self.out.resize(start + self.block_bytes as usize, 0);
            for (within, page) in self.out[start..].chunks_exact_mut(PAGE_BYTES).enumerate() {
                self.book.page(pick.index, within as u64, version).fill(page);
            }
        }
    }

    /// Sends what is built and takes what has come; waits until either moves.
    fn exchange(&mut self) -> Result<()> {
        if self.sent < self.out.len() {
            match send(
                &self.stream,
                &self.out[self.sent..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(broken(&self.place, error.into())),
            }
        }
        let mut flags = RecvFlags::empty();
        if self.sent < self.out.len() {
            // Both ways at once: a server that waits for us to take its replies
            // would otherwise wait for ever.
            let mut both = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
            match poll(&mut both, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(broken(&self.place, error.into())),
            }
            flags = RecvFlags::DONTWAIT;
        }
        match recv(&self.stream, &mut self.input[self.end..], flags) {
            Ok((0, _)) => Err(broken(&self.place, ErrorKind::UnexpectedEof.into())),
            Ok((count, _)) => {
                self.end += count;
                self.understand(Instant::now())
            }
            Err(rustix::io::Errno::AGAIN) if flags == RecvFlags::DONTWAIT => Ok(()),
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(broken(&self.place, error.into())),
        }
    }

    /// Takes every whole reply out of the input, which came at `now`.
    fn understand(&mut self, now: Instant) -> Result<()> {
        while let Some(head) = self.input[self.begin..self.end].first_chunk::<REPLY_BYTES>() {
            let wrong = |what: &dyn std::fmt::Display| {
                Error::new(Kind::Protocol, format!("{} broke the protocol: {what}", self.place))
            };
            let reply = Reply::parse(head).map_err(|error| wrong(&error))?;
            let open = usize::try_from(reply.cookie)
                .ok()
                .and_then(|cookie| self.open.get(cookie).copied().flatten())
                .ok_or_else(|| {
                    wrong(&format!("a reply to no request (cookie {})", reply.cookie))
                })?;
            let has_payload = !open.pick.write && reply.error == 0;
            let bytes = REPLY_BYTES + if has_payload { self.block_bytes as usize } else { 0 };
            if self.end - self.begin < bytes {
                break;
            }
            let payload = self.begin + REPLY_BYTES..self.begin + bytes;
            self.settle(reply, open, payload, now);
            self.begin += bytes;
        }
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.input.len() - self.begin < REPLY_BYTES + self.block_bytes as usize
            || self.end == self.input.len()
        {
            self.input.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        Ok(())
    }

    fn settle(&mut self, reply: Reply, open: Open, payload: std::ops::Range<usize>, now: Instant) {
        let pick = open.pick;
        let latency = now.saturating_duration_since(open.since);
        if pick.write {
            self.tally.writes.record(latency);
        } else {
            self.tally.reads.record(latency);
        }
        if reply.error != 0 {
            self.tally.errors += 1;
            let offset = self.book.offset(pick.index, self.block_bytes);
            let what = if pick.write { "write" } else { "read" };
            self.tally.note(|| format!("{what} at byte {offset}: error {}", reply.error));
        } else if let (false, Some(version)) = (pick.write, pick.version) {
            self.tally.compare(&self.book, pick.index, version, &self.input[payload]);
        }
        self.book.close(pick, reply.error != 0);
        self.open[reply.cookie as usize] = None;
        self.free.push(reply.cookie as u32);
    }

    fn drain(&mut self) -> Result<()> {
        while self.in_flight() > 0 {
            self.exchange()?;
        }
        Ok(())
    }

    /// One request at a time, the next no earlier than `due` says, given when
    /// the last one was answered.
    fn paced(&mut self, end: Instant, mut due: impl FnMut(Instant) -> Instant) -> Result<()> {
        let mut when = due(Instant::now());
        while when < end {
            sleep_until(when);
            self.build(1, Book::next_request);
            self.drain()?;
            when = due(Instant::now());
        }
        Ok(())
    }
}

impl Worker for Connection {
    fn fill(&mut self) -> Result<()> {
        loop {
            self.build(usize::MAX, Book::next_fill);
            if self.in_flight() == 0 {
                break;
            }
            self.exchange()?;
        }
        self.book.rewind();
        self.tally.restart();
        Ok(())
    }

    fn run(&mut self, start: Instant, end: Instant) -> Result<()> {
        match self.pace {
            Pace::Full => {
                while Instant::now() < end {
                    self.build(usize::MAX, Book::next_request);
                    self.exchange()?;
                }
                self.drain()
            }
            Pace::Pause(rest) => self.paced(end, |now| now + rest),
            Pace::Every(interval) => {
                let mut tick = 0;
                self.paced(end, |_| super::tick(start, interval, &mut tick))
            }
        }
    }

    fn into_tally(self: Box<Self>) -> Tally {
        // The server would see an abrupt end otherwise; it may already be gone.
        let leave = Request { flags: 0, kind: cmd::DISC, cookie: 0, offset: 0, bytes: 0 };
        let _ = send(&self.stream, &leave.encode(), SendFlags::NOSIGNAL);
        self.tally
    }
}
