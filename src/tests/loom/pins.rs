// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extent lock: many pins or one owner, everyone gets through, and each
//! holder sees what its predecessors wrote.
//!
//! The checker's `UnsafeCell` stands for what the lock protects. It is never
//! looked into: it fails the model on an access that is not ordered after each
//! conflicting one, be it by overlap or by a missing acquire or release.
//!
//! That these models can fail was tried on `pins.rs`; each of these was caught:
//! pin ignores an announced mover, or an owner; pin or `try_own` acquires
//! nothing; unpin releases nothing, or acquires nothing; `end_sweep` or
//! `end_move` releases nothing; `try_own` does not wait for pins; unpin forgets
//! the announced mover, never sweeps, sweeps before the last pin, sweeps without
//! becoming owner, or keeps the request for a sweep; `end_sweep` ends the mover
//! too; `want` admits two movers; `withdraw` does nothing.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread::{self, yield_now};
use sluice_loom::explore;
use sluice_loom::pins::{Pin, Unpinned};

/// An extent: its place, which owners change, and a word per request, which
/// that request changes under its pin.
struct Extent {
    pin: Pin,
    place: UnsafeCell<()>,
    requests: [UnsafeCell<()>; 2],
    sweeps: AtomicU32,
}

impl Extent {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pin: Pin::default(),
            place: UnsafeCell::new(()),
            requests: [UnsafeCell::new(()), UnsafeCell::new(())],
            sweeps: AtomicU32::new(0),
        })
    }

    fn pin(&self) {
        while !self.pin.pin() {
            yield_now();
        }
    }

    /// As `Store::unpin` does it.
    fn unpin(&self) {
        if self.pin.unpin() == Unpinned::Sweep {
            self.own();
            self.sweeps.fetch_add(1, Ordering::Relaxed);
            self.pin.end_sweep();
        }
    }

    /// An owner sees every request's word and changes the place.
    fn own(&self) {
        self.place.with_mut(|_| ());
        for request in &self.requests {
            request.with(|_| ());
        }
    }

    /// A request reads the place and changes its word.
    fn serve(&self, request: usize) {
        self.place.with(|_| ());
        self.requests[request].with_mut(|_| ());
    }

    fn move_away(&self) {
        assert!(self.pin.want(), "no other mover");
        while !self.pin.try_own() {
            yield_now();
        }
        self.own();
        self.pin.end_move();
    }

    /// Nothing is held, wanted or requested: a mover gets through at once, and
    /// keeps new requests out from its announcement on.
    fn assert_at_rest(&self) {
        assert!(self.pin.want());
        assert!(!self.pin.pin(), "a pin was taken past an announced mover");
        assert!(self.pin.try_own(), "the lock is not at rest: {:?}", self.pin);
        self.pin.end_move();
        assert!(self.pin.pin());
        assert_eq!(self.pin.unpin(), Unpinned::Released, "a sweep was left behind");
    }
}

/// Two requests beside a mover. A request that is refused is parked, which is
/// to ask again once the mover is done: [`Extent::assert_at_rest`] asks for it.
/// True per request: it was served.
fn requests_beside_a_mover(extent: &Arc<Extent>, sweep: bool) -> [bool; 2] {
    let threads = [0, 1].map(|n| {
        let extent = Arc::clone(extent);
        thread::spawn(move || {
            let pinned = extent.pin.pin();
            if pinned {
                extent.serve(n);
                if sweep && n == 0 {
                    extent.pin.request_sweep();
                }
                extent.unpin();
            }
            pinned
        })
    });
    extent.move_away();
    threads.map(|thread| thread.join().unwrap())
}

#[test]
fn a_mover_and_two_requests_exclude_each_other_and_all_get_through() {
    explore(|| {
        let extent = Extent::new();
        requests_beside_a_mover(&extent, false);
        extent.assert_at_rest();
    });
}

#[test]
fn a_mover_that_withdraws_leaves_the_lock_as_it_was() {
    explore(|| {
        let extent = Extent::new();
        let other = Arc::clone(&extent);
        let request = thread::spawn(move || {
            other.pin();
            other.serve(0);
            other.unpin();
        });
        assert!(extent.pin.want());
        if extent.pin.try_own() {
            extent.own();
            extent.pin.end_move();
        } else {
            extent.pin.withdraw();
        }
        request.join().unwrap();
        extent.assert_at_rest();
    });
}

#[test]
fn a_move_given_up_with_a_pin_keeps_the_place_until_the_pin_is_back() {
    explore(|| {
        let extent = Extent::new();
        assert!(extent.pin.want());
        assert!(extent.pin.try_own());
        let other = Arc::clone(&extent);
        let request = thread::spawn(move || {
            let pinned = other.pin.pin();
            if pinned {
                other.serve(0);
                other.pin.request_sweep();
                other.unpin();
            }
            pinned
        });
        extent.own();
        extent.pin.end_move_pinned();
        extent.serve(1);
        extent.unpin();
        let swept = extent.sweeps.load(Ordering::Relaxed);
        let asked = request.join().unwrap();
        assert!(swept <= u32::from(asked));
        assert_eq!(extent.sweeps.load(Ordering::Relaxed), u32::from(asked));
        extent.assert_at_rest();
    });
}

#[test]
fn of_two_movers_one_is_told_to_go() {
    explore(|| {
        let extent = Extent::new();
        let attempt = |extent: &Extent| {
            let first = extent.pin.want();
            if first {
                while !extent.pin.try_own() {
                    yield_now();
                }
                extent.own();
                extent.pin.end_move();
            }
            first
        };
        let other = Arc::clone(&extent);
        let rival = thread::spawn(move || attempt(&other));
        let mine = attempt(&extent);
        assert!(rival.join().unwrap() | mine, "neither got through");
        extent.assert_at_rest();
    });
}

#[test]
fn a_requested_sweep_is_done_by_the_last_one_out() {
    explore(|| {
        let extent = Extent::new();
        let threads = [0, 1].map(|n| {
            let extent = Arc::clone(&extent);
            thread::spawn(move || {
                extent.pin();
                extent.serve(n);
                if n == 0 {
                    extent.pin.request_sweep();
                }
                extent.unpin();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(extent.sweeps.load(Ordering::Relaxed), 1);
        extent.assert_at_rest();
    });
}

#[test]
fn a_sweep_a_request_and_a_mover_exclude_each_other_and_all_get_through() {
    explore(|| {
        let extent = Extent::new();
        let [asked, _] = requests_beside_a_mover(&extent, true);
        assert_eq!(extent.sweeps.load(Ordering::Relaxed), u32::from(asked));
        extent.assert_at_rest();
    });
}
