// SPDX-License-Identifier: MIT OR Apache-2.0
//! An eventfd that wakes an I/O thread from its sleep, or tells many to stop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::Wake;

/// A wake-up that is not lost when nobody sleeps yet: it stays until somebody
/// reads the descriptor.
#[derive(Debug)]
pub struct EventWaker {
    event: OwnedFd,
}

impl EventWaker {
    /// A waker that nobody has rung.
    pub fn new() -> Result<Self> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                Error::new(Kind::NoSpace, "no eventfd to wake an I/O thread with")
                    .with_hint("raise LimitNOFILE of the service")
                    .with_source(std::io::Error::from(errno))
            })?;
        Ok(Self { event })
    }

    /// Forgets all rings so far: from now on only a later one can be read.
    pub fn clear(&self) {
        // It may not have been rung.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for EventWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Wake for EventWaker {
    fn wake(&self) {
        // The only failure is a counter at its maximum: then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
