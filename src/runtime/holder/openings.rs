// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that are opened while the store serves.
//!
//! The keeper opens a device ([`super::kept_tier`]), which may wait for memory
//! and must not keep anybody waiting. The threads that answer requests do not
//! know the device yet, and what a driver does for a thread's first call may
//! wait for memory that only these threads can free. So no slab of it is given
//! out before the main thread has put prepared threads in their place.

use std::sync::atomic::{AtomicU32, Ordering};

/// See the module. Shared by the keeper's and the main thread.
#[derive(Debug, Default)]
pub struct Openings {
    opened: AtomicU32,
    prepared: AtomicU32,
}

impl Openings {
    /// A device was opened.
    pub fn note(&self) {
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// How many were opened, if threads are not prepared for all of them.
    #[must_use]
    pub fn unprepared(&self) -> Option<u32> {
        let opened = self.opened.load(Ordering::Acquire);
        (self.prepared.load(Ordering::Acquire) != opened).then_some(opened)
    }

    /// The threads are prepared for the first `opened` of them.
    pub fn prepared(&self, opened: u32) {
        self.prepared.store(opened, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_opened_while_threads_are_prepared_for_another_waits_for_its_own_turn() {
        let openings = Openings::default();
        assert_eq!(openings.unprepared(), None);
        openings.note();
        let first = openings.unprepared().unwrap();
        openings.note();
        openings.prepared(first);
        let second = openings.unprepared().unwrap();
        openings.prepared(second);
        assert_eq!((second, openings.unprepared()), (2, None));
    }
}
