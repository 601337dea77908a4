// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's thread: runs `engine::housekeeping`, so that no I/O thread ever
//! asks for memory. It sleeps until slots were taken or given back, orders came,
//! or it is time to look at the free memory again.
//!
//! The main thread gives orders at any time and never waits for them: it polls
//! [`Keeper::bell`] and reads [`Keeper::progress`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::io_thread::STACK_BYTES;
use crate::block::nbd::waker::EventWaker;
use crate::engine::error::{Kind, Result as EngineResult};
use crate::engine::housekeeping::{Housekeeping, LOOK, Pace};
use crate::engine::mover::{JOBS, Mover};
use crate::engine::orders::{Holding, Orders, Progress, State, check_orders};
use crate::engine::store::{Role, Store};
use crate::engine::tier::Wake;
use crate::engine::units::{ByteLen, EXTENT_BYTES};
use crate::host::memory::{Arena, Lock};

/// Bytes of the buffers that extents are copied through.
pub const BUFFER_BYTES: usize = JOBS * EXTENT_BYTES;
/// Between two looks at extents on their way, where no tier rings.
const PAUSE: Duration = Duration::from_micros(100);
/// After a tier refused something.
const REFUSED: Duration = Duration::from_millis(200);

/// Orders that were found good.
#[derive(Debug)]
struct Given {
    order: u64,
    targets: Vec<u32>,
    reserve: ByteLen,
    close: bool,
}

/// What both threads see.
struct Shared {
    stop: AtomicBool,
    /// Nothing is to be done until further notice.
    pause: AtomicBool,
    /// Everything that was begun has ended, and nothing is begun.
    paused: Mutex<bool>,
    changed: Condvar,
    /// The newest orders not yet picked up; the keeper only ever needs those.
    given: Mutex<Option<Given>>,
    progress: Mutex<Progress>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running thread.
pub struct Keeper {
    store: Arc<Store>,
    shared: Arc<Shared>,
    waker: Arc<EventWaker>,
    bell: Arc<EventWaker>,
    orders: Mutex<u64>,
    /// Has no sender any more once the thread has begun its work, or ended.
    ready: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it with its first orders. `waker` is what the store rings;
    /// `lock`: whether its buffers stay in RAM.
    pub fn start(
        store: &Arc<Store>,
        waker: Arc<EventWaker>,
        orders: &Orders,
        memory: Lock,
    ) -> Result<Self> {
        let buffers = Arc::new(Arena::new(BUFFER_BYTES, memory)?);
        let ring = Arc::clone(&waker) as Arc<dyn Wake>;
        let mover = Mover::new(Arc::clone(store), buffers, &ring)?;
        let housekeeping = Housekeeping::new(Arc::clone(store), mover);
        let bell = Arc::new(EventWaker::new()?);
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            pause: AtomicBool::new(false),
            paused: Mutex::new(false),
            changed: Condvar::new(),
            given: Mutex::new(None),
            progress: Mutex::new(housekeeping.progress(Duration::ZERO)),
        });
        let (preparing, ready) = channel();
        let mut keeper = Self {
            store: Arc::clone(store),
            shared: Arc::clone(&shared),
            waker: Arc::clone(&waker),
            bell: Arc::clone(&bell),
            orders: Mutex::new(0),
            ready: Mutex::new(ready),
            thread: None,
        };
        match keeper.give(orders) {
            // Without a spill what is held stays held, however it is spread.
            Err(error) if error.kind() == Kind::NoSpace => {
                tracing::warn!("{error}; what is held stays");
            }
            given => drop(given?),
        }
        let work = Work { housekeeping, shared, waker, bell, begun: Instant::now() };
        let thread = std::thread::Builder::new()
            .name("sluice-keeper".into())
            .stack_size(STACK_BYTES)
            .spawn(move || work.run(preparing))
            .context("cannot start the keeper's thread")?;
        keeper.thread = Some(thread);
        Ok(keeper)
    }

    /// Waits until its thread has made itself known to the devices: from then on it
    /// asks them for nothing but what it moves.
    pub fn wait_until_ready(&self) {
        // Nothing is ever sent.
        let _ = lock(&self.ready).recv();
    }

    /// Gives new orders, which replace all earlier ones; their number, which
    /// [`Progress::order`] shows once the keeper works by them. Never waits.
    ///
    /// Orders that cannot be followed are refused with the arithmetic
    /// ([`check_orders`]), and nothing changes.
    pub fn give(&self, orders: &Orders) -> EngineResult<u64> {
        let mut last = lock(&self.orders);
        let fast: Vec<Holding<'_>> = self
            .store
            .tiers()
            .iter()
            .filter(|slots| slots.role() == Role::Fast)
            .map(|slots| Holding {
                name: slots.tier().name(),
                held_slabs: slots.count().held,
                max_slabs: slots.pool().max_slabs(),
            })
            .collect();
        let targets = check_orders(orders, &fast, self.store.has_spill())?;
        *last += 1;
        let (reserve, close) = (orders.reserve, orders.close);
        // Who asks before the keeper comes to it is told what holds from now on.
        let mut shown = lock(&self.shared.progress);
        show_targets(&mut shown, &targets);
        *lock(&self.shared.given) = Some(Given { order: *last, targets, reserve, close });
        drop(shown);
        self.waker.wake();
        Ok(*last)
    }

    /// Whether it works by the newest orders and has carried them out.
    pub fn is_at_rest(&self) -> bool {
        // In the order in which they are given.
        let last = lock(&self.orders);
        let progress = lock(&self.shared.progress);
        progress.order == *last && progress.state == State::AtRest
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        lock(&self.shared.progress).clone()
    }

    /// Rung when the number of the orders, the state or which devices are open in
    /// [`Keeper::progress`] changed. Whoever polls it reads the descriptor empty.
    pub fn bell(&self) -> &Arc<EventWaker> {
        &self.bell
    }

    /// Has it do nothing: no slab is taken, given back or emptied any more, until
    /// [`Keeper::go_on`]. False: it is in a step that takes longer than
    /// `patience`, and goes on.
    #[must_use]
    pub fn pause(&self, patience: Duration) -> bool {
        self.shared.pause.store(true, Ordering::Relaxed);
        self.waker.wake();
        let works = |paused: &mut bool| {
            !*paused && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
        };
        let paused = lock(&self.shared.paused);
        let waited = self.shared.changed.wait_timeout_while(paused, patience, works);
        let late = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if late {
            self.go_on();
        }
        !late
    }

    /// Ends a pause.
    pub fn go_on(&self) {
        self.shared.pause.store(false, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Has it look at everything now.
    pub fn look(&self) {
        self.waker.wake();
    }

    /// Ends it: no slab is taken, given back or emptied any more. Waits for the
    /// step it is in.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Work {
    housekeeping: Housekeeping,
    shared: Arc<Shared>,
    waker: Arc<EventWaker>,
    bell: Arc<EventWaker>,
    begun: Instant,
}

impl Work {
    fn run(mut self, preparing: Sender<()>) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.housekeeping.enter();
            drop(preparing);
            self.keep();
        }));
        if ended.is_err() {
            tracing::error!("the keeper panicked: no memory is taken or given back any more");
            lock(&self.shared.progress).state = State::Stuck("the keeper panicked".to_owned());
            self.bell.wake();
        }
        let quiet = ended.is_ok() && self.housekeeping.stop();
        if !quiet {
            // A tier may still have the buffers; they must outlive this thread.
            std::mem::forget(self.housekeeping);
        }
        set_paused(&self.shared, true);
    }

    fn keep(&mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.shared.pause.load(Ordering::Relaxed) {
                self.rest();
                continue;
            }
            let given = lock(&self.shared.given).take();
            if let Some(Given { order, targets, reserve, close }) = given {
                self.housekeeping.order(order, &targets, reserve, close);
            }
            let now = self.begun.elapsed();
            let pause = match self.housekeeping.step(now) {
                Ok(Pace::Now) => None,
                Ok(Pace::Soon) => Some(PAUSE),
                Ok(Pace::Rest) => Some(LOOK),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    Some(REFUSED)
                }
            };
            self.publish(now);
            if let Some(pause) = pause {
                self.sleep(pause);
            }
        }
    }

    /// Ends what is under way and does nothing until the pause or all is over.
    fn rest(&mut self) {
        self.housekeeping.stop();
        set_paused(&self.shared, true);
        let told = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        while told(&self.shared.pause) && !told(&self.shared.stop) {
            self.sleep(LOOK);
        }
        set_paused(&self.shared, false);
    }

    fn publish(&self, now: Duration) {
        let mut progress = self.housekeeping.progress(now);
        let mut shown = lock(&self.shared.progress);
        if let Some(given) = &*lock(&self.shared.given) {
            show_targets(&mut progress, &given.targets);
        }
        let is_open = |shown: &Progress| -> Vec<bool> {
            shown.tiers.iter().map(|tier| tier.is_open).collect()
        };
        let changed = shown.order != progress.order
            || shown.state != progress.state
            || is_open(&shown) != is_open(&progress);
        if shown.state != progress.state
            && let State::Stuck(why) = &progress.state
        {
            tracing::warn!("{why}; it is tried again");
        }
        *shown = progress;
        drop(shown);
        if changed {
            self.bell.wake();
        }
    }

    fn sleep(&self, pause: Duration) {
        let mut fds = [PollFd::new(&*self.waker, PollFlags::IN)];
        let _ = poll(&mut fds, Timespec::try_from(pause).ok().as_ref());
        self.waker.clear();
    }
}

fn show_targets(progress: &mut Progress, targets: &[u32]) {
    for (tier, slabs) in progress.tiers.iter_mut().zip(targets) {
        tier.target_slabs = *slabs;
    }
}

fn set_paused(shared: &Shared, paused: bool) {
    *lock(&shared.paused) = paused;
    shared.changed.notify_all();
}

#[cfg(test)]
mod tests;
