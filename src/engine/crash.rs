// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests only: a crash after any store. Everything that persists burns one
//! unit of fuel per store; the store that finds the tank empty does not happen
//! and the "process" stops right there.

use std::sync::atomic::{AtomicU64, Ordering};

/// The tank. `u64::MAX` (default) never runs dry.
#[derive(Debug)]
pub(super) struct Fuel(AtomicU64);

impl Default for Fuel {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Fuel {
    /// Crash after `stores` more stores.
    pub(super) fn set(&self, stores: u64) {
        self.0.store(stores, Ordering::SeqCst);
    }

    /// A new process: stores persist again.
    pub(super) fn refill(&self) {
        self.set(u64::MAX);
    }

    /// Burns one unit, or dies: unwinds with [`Crash`], without a message.
    pub(super) fn burn(&self) {
        let burnt = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            u64::MAX => Some(u64::MAX),
            left => left.checked_sub(1),
        });
        if burnt.is_err() {
            std::panic::resume_unwind(Box::new(Crash));
        }
    }
}

/// Runs `work` until it ends or the crash happens (`None`).
pub(super) fn until_crash<T>(work: impl FnOnce() -> T) -> Option<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Crash>() => None,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

struct Crash;
