// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases: descriptors whose end ends them, and clients who wait for one.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::{Inbox, Message};
use crate::bus::manager::Answer;
use crate::engine::arbiter::{Event, State};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// A client that waits for its lease.
struct Waiting {
    bytes: ByteLen,
    until: Instant,
    client: OwnedFd,
    answer: oneshot::Sender<Result<Answer>>,
}

/// The clients that wait, and the numbers of leases.
#[derive(Default)]
pub(super) struct Leases {
    waiting: Vec<Waiting>,
    last: u64,
}

impl Leases {
    /// Begins a lease: the event for the arbiter. The client is answered when the
    /// store has given so much back.
    ///
    /// Errors: `NoSpace` where the store can give nothing or not so much.
    pub fn take(
        &mut self,
        state: &State,
        bytes: ByteLen,
        deadline: Duration,
        answer: oneshot::Sender<Result<Answer>>,
        inbox: &Inbox,
    ) -> Option<Event> {
        let pair = check(state, bytes).and_then(|()| pair(bytes));
        let (ours, client) = match pair {
            Ok(pair) => pair,
            Err(error) => {
                let _ = answer.send(Err(error));
                return None;
            }
        };
        self.last += 1;
        let lease = self.last;
        let until = Instant::now() + deadline;
        self.waiting.push(Waiting { bytes, until, client, answer });
        let inbox = inbox.clone();
        tokio::spawn(async move {
            gone(&ours).await;
            let _ = inbox.send(Message::Event(Event::LeaseEnded { lease }));
        });
        Some(Event::LeaseTaken { lease, bytes })
    }

    /// Answers those who have their lease, or cannot have it any more.
    pub fn answer(&mut self, state: &State) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let failed = state.failure().map(|reason| {
                let what = format!("{} cannot be given back: {reason}", waiting.bytes);
                Error::new(Kind::NoSpace, what).with_hint("see: sluice explain")
            });
            let answer = if state.store().is_none() || state.is_settled() {
                Ok(Answer::Lease(waiting.client))
            } else if let Some(error) = failed {
                // The descriptor is closed with this, and the lease ends.
                Err(error)
            } else if now >= waiting.until {
                let what = format!("{} are not given back in time", waiting.bytes);
                Err(Error::new(Kind::TimedOut, what)
                    .with_hint("allow more time, or ask for less; see: sluice status"))
            } else {
                self.waiting.push(waiting);
                continue;
            };
            let _ = waiting.answer.send(answer);
        }
    }

    /// When the next of those who wait must be answered.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }
}

fn check(state: &State, bytes: ByteLen) -> Result<()> {
    if !state.has_spill() {
        let what = format!("{bytes} cannot be reserved: there is no spill that could take pages");
        return Err(Error::new(Kind::NoSpace, what)
            .with_hint("configure [spill], or switch the swap off: sluice off"));
    }
    let full = state.store().map_or(state.policy().full, |store| store.full);
    let left = ByteLen(full.0.saturating_sub(state.leased().0));
    if bytes > left {
        let what = format!(
            "{bytes} cannot be reserved: the store holds {full} at most, {} are reserved already",
            state.leased()
        );
        return Err(Error::new(Kind::NoSpace, what).with_hint(format!("ask for {left} or less")));
    }
    Ok(())
}

/// Our end of a lease and the client's: either sees the other's end.
fn pair(bytes: ByteLen) -> Result<(UnixStream, OwnedFd)> {
    let made = StdStream::pair().and_then(|(ours, theirs)| {
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, OwnedFd::from(theirs)))
    });
    made.map_err(|error| {
        Error::new(Kind::NoSpace, format!("no descriptor for a lease of {bytes}"))
            .with_source(error)
    })
}

/// Waits until the other end is closed; what it writes is thrown away.
async fn gone(ours: &UnixStream) {
    let mut scrap = [0_u8; 64];
    loop {
        if ours.ready(Interest::READABLE).await.is_err() {
            return;
        }
        match ours.try_read(&mut scrap) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {}
        }
    }
}
