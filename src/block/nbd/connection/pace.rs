// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long an I/O thread looks for work before it sleeps. Pure: time comes in.
//!
//! A sleep costs the next request a wake-up, tens of microseconds; looking costs
//! a core. So the thread looks only as long as that recently paid: when the gaps
//! between work are short the budget grows to its limit, and each longer gap
//! halves it, down to nothing. A device without traffic uses no CPU at all.
//!
//! A client that asks again and again after a rest that is longer than that, but
//! not much, is worth a longer look, if cores are free: once a number of gaps in
//! a row were short enough, the thread looks for so long each time.

use std::time::Duration;

/// Shortest sleep between two looks at a device that rings no waker.
const FIRST_NAP: Duration = Duration::from_micros(10);
/// Longest such sleep: a hung device costs a thousand looks a second, no more.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How long a device that rings no waker is looked at without a nap: longer
/// than it takes for a batch, short beside what a nap and its wake-up cost.
const DEVICE_PATIENCE: Duration = Duration::from_micros(100);

/// Gaps in a row that make a client a steady one.
const STEADY: u32 = 8;

/// One thread's pace.
#[derive(Debug)]
pub(super) struct Pace {
    limit: Duration,
    long: Duration,
    /// Gaps in a row that were no longer than `long`, up to [`STEADY`].
    steady: u32,
    budget: Duration,
    idle_since: Option<Duration>,
    nap: Duration,
}

impl Pace {
    /// Looks for at most `limit` before each sleep, or `long` for a steady
    /// client; zero: never.
    pub fn new(limit: Duration, long: Duration) -> Self {
        Self { limit, long, steady: 0, budget: limit, idle_since: None, nap: FIRST_NAP }
    }

    /// Something was done.
    pub fn worked(&mut self, now: Duration) {
        self.nap = FIRST_NAP;
        let Some(since) = self.idle_since.take() else { return };
        let in_time = now.saturating_sub(since) <= self.long;
        self.steady = if in_time { (self.steady + 1).min(STEADY) } else { 0 };
        // A gap that includes a sleep also includes its wake-up, so "short" is
        // twice what looking would have taken.
        if now.saturating_sub(since) <= self.limit * 2 {
            self.budget = (self.budget * 2).clamp(self.limit / 4, self.limit);
        } else if self.budget > self.limit / 16 {
            self.budget /= 2;
        } else {
            self.budget = Duration::ZERO;
        }
    }

    /// Nothing was done: whether to look again instead of sleeping.
    pub fn looks_again(&mut self, now: Duration) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        now.saturating_sub(since) < self.budget
    }

    /// Nothing was done and the budget is used up: whether the client is a steady
    /// one that will soon ask again.
    pub fn looks_long(&mut self, now: Duration) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        self.steady == STEADY && now.saturating_sub(since) < self.long
    }

    /// Nothing was done, and a device works on a request: whether to go on
    /// looking at it. Whatever the budget: the device's answer is sure to come,
    /// and soon.
    pub fn watches_device(&mut self, now: Duration) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        !self.limit.is_zero() && now.saturating_sub(since) < DEVICE_PATIENCE
    }

    /// How long to sleep before the next look at a device that must be polled.
    pub fn next_nap(&mut self) -> Duration {
        let nap = self.nap;
        self.nap = (nap * 2).min(LONGEST_NAP);
        nap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    /// Work, then nothing for `gap`; returns how long it looked in that gap.
    fn looked_for(pace: &mut Pace, now: &mut Duration, gap: Duration) -> Duration {
        let start = *now;
        let mut looked = Duration::ZERO;
        while now.saturating_sub(start) < gap {
            if pace.looks_again(*now) {
                *now += Duration::from_micros(1);
                looked = now.saturating_sub(start);
            } else {
                *now = start + gap;
            }
        }
        pace.worked(*now);
        looked
    }

    #[test]
    fn looking_decays_to_nothing_when_it_never_pays() {
        let (mut pace, mut now) = (Pace::new(LIMIT, Duration::ZERO), Duration::ZERO);
        let gap = Duration::from_millis(1);
        let looked: Vec<_> = (0..8).map(|_| looked_for(&mut pace, &mut now, gap)).collect();
        assert_eq!(looked[0], LIMIT);
        assert!(looked.is_sorted_by(|earlier, later| earlier >= later), "{looked:?}");
        assert_eq!(looked[7], Duration::ZERO, "{looked:?}");
    }

    #[test]
    fn short_gaps_bring_looking_back() {
        let (mut pace, mut now) = (Pace::new(LIMIT, Duration::ZERO), Duration::ZERO);
        for _ in 0..8 {
            looked_for(&mut pace, &mut now, Duration::from_secs(1));
        }
        let gap = Duration::from_micros(30);
        let looked: Vec<_> = (0..4).map(|_| looked_for(&mut pace, &mut now, gap)).collect();
        assert_eq!((looked[0], looked[3]), (Duration::ZERO, gap), "{looked:?}");
    }

    #[test]
    fn a_limit_of_zero_never_looks() {
        let (mut pace, mut now) = (Pace::new(Duration::ZERO, Duration::ZERO), Duration::ZERO);
        for gap in [0, 1, 30, 5000] {
            let gap = Duration::from_micros(gap);
            assert_eq!(looked_for(&mut pace, &mut now, gap), Duration::ZERO);
        }
    }

    #[test]
    fn a_device_is_watched_for_a_while_though_looking_for_requests_never_pays() {
        let (mut pace, mut now) = (Pace::new(LIMIT, Duration::ZERO), Duration::ZERO);
        for _ in 0..8 {
            looked_for(&mut pace, &mut now, Duration::from_millis(1));
        }
        assert!(!pace.looks_again(now));
        assert!(pace.watches_device(now + DEVICE_PATIENCE / 2));
        assert!(!pace.watches_device(now + DEVICE_PATIENCE));
        assert!(!Pace::new(Duration::ZERO, Duration::ZERO).watches_device(now));
    }

    #[test]
    fn a_steady_client_is_waited_for_and_one_that_stays_away_is_not() {
        let long = Duration::from_millis(2);
        let mut pace = Pace::new(LIMIT, long);
        let mut now = Duration::ZERO;
        let mut rest = |pace: &mut Pace, gap| {
            let waits = pace.looks_long(now) && pace.looks_long(now + long / 2);
            assert!(!pace.looks_long(now + long));
            now += gap;
            pace.worked(now);
            waits
        };
        let waits: Vec<_> = (0..10).map(|_| rest(&mut pace, long / 2)).collect();
        assert_eq!(waits.iter().filter(|waits| **waits).count(), 2, "{waits:?}");
        assert!(rest(&mut pace, long * 2), "it was steady until then");
        assert!(!rest(&mut pace, long / 2));
    }

    #[test]
    fn naps_grow_to_a_millisecond_and_start_again_after_work() {
        let mut pace = Pace::new(LIMIT, Duration::ZERO);
        let naps: Vec<_> = (0..9).map(|_| pace.next_nap()).collect();
        assert_eq!((naps[0], naps[1], naps[8]), (FIRST_NAP, FIRST_NAP * 2, LONGEST_NAP));
        pace.worked(Duration::ZERO);
        assert_eq!(pace.next_nap(), FIRST_NAP);
    }
}
