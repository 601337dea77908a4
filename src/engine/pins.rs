// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of one extent: many pins or one owner, and nobody ever waits.
//!
//! ```text
//!            pin ─────────────► count > 0 ───── unpin ────────► count = 0
//!             ▲ refused while     │ request_sweep                 │
//!             │ WANTED|EXCLUSIVE  ▼                               │ last one out,
//!             │                 SWEEP set ──── last unpin ──► EXCLUSIVE (sweeper)
//!  want ──► WANTED ── try_own once count = 0 ──────────────► EXCLUSIVE (mover)
//! ```
//!
//! *Pins* are held by requests while they read or write the extent's current
//! place. *Exclusive* ownership is needed to change the place: by the mover,
//! which announces itself with `want` so that a busy extent drains, and by the
//! last request out of an extent whose pages were all trimmed (the *sweep*).
//!
//! Ordering: taking a pin or ownership acquires, giving either back releases,
//! so whoever comes next sees every index word its predecessor wrote.

use super::sync::{AtomicU32, Ordering};

const EXCLUSIVE: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;
const SWEEP: u32 = 1 << 29;
const COUNT: u32 = SWEEP - 1;

/// What giving a pin back means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a caller that became the sweeper owns the extent until end_sweep"]
pub enum Unpinned {
    /// Nothing more to do.
    Released,
    /// The caller was the last one out and now owns the extent: it looks
    /// whether the extent is empty, frees it if so, and calls `end_sweep`.
    Sweep,
}

/// The lock word of one extent.
#[derive(Debug)]
pub struct Pin(AtomicU32);

impl Default for Pin {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Pin {
    /// Takes a pin; false if the extent is owned or wanted (park and retry).
    pub fn pin(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & (EXCLUSIVE | WANTED) != 0 {
                return false;
            }
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Asks that whoever unpins last sweeps the extent. The caller holds a pin.
    pub fn request_sweep(&self) {
        let before = self.0.fetch_or(SWEEP, Ordering::Relaxed);
        debug_assert_ne!(before & COUNT, 0, "a sweep is requested under a pin");
    }

    /// Gives a pin back.
    pub fn unpin(&self) -> Unpinned {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert_ne!(word & COUNT, 0, "unpin without a pin");
            let sweep = word & COUNT == 1 && word & SWEEP != 0;
            let next = if sweep { (word & WANTED) | EXCLUSIVE } else { word - 1 };
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if sweep => return Unpinned::Sweep,
                Ok(_) => return Unpinned::Released,
                Err(now) => word = now,
            }
        }
    }

    /// Ends the ownership that [`Unpinned::Sweep`] gave. A waiting mover stays announced.
    pub fn end_sweep(&self) {
        let before = self.0.fetch_and(!EXCLUSIVE, Ordering::Release);
        debug_assert_ne!(before & EXCLUSIVE, 0, "end_sweep without ownership");
    }

    /// Announces the mover: no new pins from here on. False if another mover
    /// is announced already.
    pub fn want(&self) -> bool {
        self.0.fetch_or(WANTED, Ordering::Relaxed) & WANTED == 0
    }

    /// Takes ownership for the announced mover once the last pin is gone;
    /// false: not yet, ask again.
    pub fn try_own(&self) -> bool {
        self.0
            .compare_exchange(WANTED, WANTED | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// True while the mover or a sweeper owns the extent.
    pub fn is_owned(&self) -> bool {
        self.0.load(Ordering::Relaxed) & EXCLUSIVE != 0
    }

    /// Withdraws a `want` that has not become ownership.
    pub fn withdraw(&self) {
        let before = self.0.fetch_and(!WANTED, Ordering::Relaxed);
        debug_assert_ne!(before & WANTED, 0, "withdraw without want");
    }

    /// Turns the mover's ownership into a pin: requests go on, and the place
    /// stays as it is until the pin is given back.
    pub fn end_move_pinned(&self) {
        let before = self.0.fetch_sub((EXCLUSIVE | WANTED) - 1, Ordering::Release);
        debug_assert_eq!(before, EXCLUSIVE | WANTED);
    }

    /// Ends the mover's ownership; parked requests may pin again.
    pub fn end_move(&self) {
        let before = self.0.fetch_and(!(EXCLUSIVE | WANTED), Ordering::Release);
        debug_assert_eq!(before & (EXCLUSIVE | WANTED), EXCLUSIVE | WANTED);
    }
}
