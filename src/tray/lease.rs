// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU's memory for a while: a lease, which ends with its descriptor, and so with
//! the time, with a click, with this process and with the session.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::view::Click;
use super::{Event, Inbox};
use crate::bus::client::Client;
use crate::engine::error::Kind;

/// How long the store may take to give the memory back.
const WITHIN: Duration = Duration::from_secs(60);
/// Between two tries to have a lease again that ended with sluiced.
const AGAIN: Duration = Duration::from_secs(1);

/// A lease that is asked for or held. Dropped, it ends.
pub(super) struct Taken {
    /// Which one.
    pub number: u64,
    /// Its end; `None`: it is not given yet.
    pub until: Option<Instant>,
    task: JoinHandle<()>,
}

impl Taken {
    /// Asks for the lease, and holds it for the time.
    pub fn begin(
        number: u64,
        client: Arc<Client>,
        bytes: u64,
        span: Duration,
        inbox: Inbox,
    ) -> Self {
        let task = tokio::spawn(async move {
            hold(number, &client, bytes, span, &inbox).await;
            let _ = inbox.send(Event::Leased(number, None));
        });
        Self { number, until: None, task }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Also while it is asked for: an answer that nobody takes is closed.
        self.task.abort();
    }
}

async fn hold(number: u64, client: &Client, bytes: u64, span: Duration, inbox: &Inbox) {
    let mut lease = match client.reserve(bytes, WITHIN).await {
        Ok(lease) => lease,
        Err(error) => {
            let _ = inbox.send(Event::Refused(Click::TakeGpu, error));
            return;
        }
    };
    let until = Instant::now() + span;
    let _ = inbox.send(Event::Leased(number, Some(until)));
    // The other end is closed before the time only with sluiced: the next one gives
    // it again.
    while timeout_at(until, closed(lease)).await.is_ok() {
        lease = loop {
            sleep(AGAIN).await;
            if Instant::now() >= until {
                return;
            }
            match client.reserve(bytes, WITHIN).await {
                Ok(again) => break again,
                // Asking again would ask a person for a password again.
                Err(error) if error.kind() == Kind::Denied => {
                    let _ = inbox.send(Event::Refused(Click::TakeGpu, error));
                    return;
                }
                Err(_) => {}
            }
        };
    }
}

/// Holds the lease until its other end is closed.
async fn closed(lease: OwnedFd) {
    let lease = StdStream::from(lease);
    let made = lease.set_nonblocking(true).and_then(|()| UnixStream::from_std(lease));
    let Ok(lease) = made else { return };
    let mut scrap = [0_u8; 16];
    while lease.readable().await.is_ok() {
        match lease.try_read(&mut scrap) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => {}
        }
    }
}
