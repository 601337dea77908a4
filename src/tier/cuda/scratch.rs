// SPDX-License-Identifier: MIT OR Apache-2.0
//! A granule of the device and as much host memory, in which every path is
//! tried before swap depends on it: what a driver does for the first time may
//! allocate, and at zero free memory that waits for ever.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::Copying;
use super::device::Context;
use super::host_memory::{HostPages, HostPin};
use super::kernel::{BATCH_PAGES, Batch};
use super::library::{NOT_READY, SUCCESS};
use super::memory::{DeviceMemory, granularity};
use super::queue::{Mark, Queue, SLOTS};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::Direction;
use crate::engine::units::{ByteLen, EXTENT_BYTES, PAGE_BYTES};

/// How long a trial may take. Not a limit on work, only on a device that hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_micros(50);
/// Numbers of single pages that both ways of copying are timed with.
const TIMED: [usize; 8] = [1, 2, 3, 4, 6, 8, 16, 32];
/// Timings of each, of which the median counts.
const ROUNDS: usize = 9;
/// Looks at a mark while timing, and after how many the device is asked.
const MOST_LOOKS: u32 = 100_000;
const LOOKS: u32 = 500;

/// A way to copy single pages.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A call each.
    Calls,
    /// All of them by one launch.
    Kernel,
}

/// See the module. One per open device; drop order is field order.
#[derive(Debug)]
pub struct Scratch {
    device: DeviceMemory,
    /// Where the device sees the host's part.
    seen: u64,
    _pin: HostPin,
    host: HostPages,
    copying: Copying,
    /// Found with the first lane: from how many operations on the kernel wins.
    kernel_from: OnceLock<usize>,
    /// Held while the memory is in use.
    turn: Mutex<u64>,
}

impl Scratch {
    /// Takes the memory, an extent at least on both sides.
    pub fn new(context: &Arc<Context>, copying: Copying) -> Result<Self> {
        let bytes = EXTENT_BYTES.next_multiple_of(granularity(context)?);
        let what = format!("GPU {}: memory to try it with", context.device.facts);
        let device = DeviceMemory::take(context, what, bytes)?;
        let host = HostPages::new(EXTENT_BYTES)?;
        let pin = HostPin::new(context, host.base(), host.bytes())?;
        let seen = pin.device_address(context)?;
        let (kernel_from, turn) = (OnceLock::new(), Mutex::new(0));
        Ok(Self { device, seen, _pin: pin, host, copying, kernel_from, turn })
    }

    /// Fills the queue's stream with `copies` single pages and then sends one
    /// extent, out and back, and compares what came back; the same with the
    /// kernel, where there is one.
    ///
    /// Errors: the driver's; `TimedOut` for a device that does not answer;
    /// `Checksum` for one that gives back something else.
    pub fn warm(self: &Arc<Self>, queue: &Queue, copies: usize) -> Result<()> {
        self.guarded(queue, |memory, turn| {
            memory.try_calls(queue, copies.max(1), turn)?;
            if queue.has_kernel() { memory.try_kernel(queue, turn.rotate_right(8)) } else { Ok(()) }
        })
    }

    /// From how many operations of one group on the kernel is the faster way on
    /// this device; `usize::MAX`: never. The first lane's queue finds out.
    pub fn kernel_from(self: &Arc<Self>, queue: &Queue) -> Result<usize> {
        match self.copying {
            _ if !queue.has_kernel() => return Ok(usize::MAX),
            Copying::Calls => return Ok(usize::MAX),
            Copying::Kernel => return Ok(1),
            Copying::Measured => {}
        }
        if let Some(known) = self.kernel_from.get() {
            return Ok(*known);
        }
        let mut found = usize::MAX;
        self.guarded(queue, |memory, _| {
            let mut told = Vec::new();
            for pages in TIMED {
                let by_calls = memory.time(queue, Way::Calls, pages)?;
                let by_kernel = memory.time(queue, Way::Kernel, pages)?;
                if by_kernel > by_calls {
                    found = usize::MAX;
                } else {
                    found = found.min(pages);
                }
                let micros = |time: Duration| time.as_secs_f64() * 1e6;
                let (calls, kernel) = (micros(by_calls), micros(by_kernel));
                told.push(format!("{pages}: {calls:.1}/{kernel:.1}"));
            }
            let from = match found {
                usize::MAX => "never".to_owned(),
                pages => format!("from {pages} on"),
            };
            tracing::info!(
                "GPU {}: pages are copied by one launch {from} (pages: us by calls/by launch, {})",
                queue.context.device.facts,
                told.join(", ")
            );
            Ok(())
        })?;
        Ok(*self.kernel_from.get_or_init(|| found))
    }

    /// Runs `act` with such memory to itself, and a number of its own. While
    /// somebody else uses this memory, who may hang in a call, it gets other.
    fn guarded(
        self: &Arc<Self>,
        queue: &Queue,
        act: impl FnOnce(&Self, u64) -> Result<()>,
    ) -> Result<()> {
        queue.context.enter()?;
        let mut turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => match Self::new(&queue.context, self.copying) {
                Ok(other) => return Arc::new(other).guarded(queue, act),
                // No memory for it: the other one is most likely just slow.
                Err(_) => self.turn.lock().unwrap_or_else(PoisonError::into_inner),
            },
        };
        *turn += 1;
        let result = act(self, *turn);
        if result.is_err() && self.wait(queue, &Queue::state).is_err() && queue.state() == NOT_READY
        {
            // It may still write: this memory is given up.
            std::mem::forget(Arc::clone(self));
        }
        result
    }

    fn try_calls(&self, queue: &Queue, copies: usize, seed: u64) -> Result<()> {
        let pages = || (0..copies).map(|n| n * PAGE_BYTES % EXTENT_BYTES);
        self.fill(seed);
        for at in pages() {
            self.copy(queue, at, PAGE_BYTES, Direction::Write)?;
        }
        self.finish(queue)?;
        self.copy(queue, 0, EXTENT_BYTES, Direction::Write)?;
        self.finish(queue)?;
        self.fill(!seed);
        self.copy(queue, 0, EXTENT_BYTES, Direction::Read)?;
        self.finish(queue)?;
        self.compare(queue, seed)?;
        for at in pages() {
            self.copy(queue, at, PAGE_BYTES, Direction::Read)?;
        }
        self.finish(queue)?;
        self.compare(queue, seed)
    }

    /// Every slot's launch once in each direction, none waited for but the last.
    fn try_kernel(&self, queue: &Queue, seed: u64) -> Result<()> {
        const PAGES: usize = EXTENT_BYTES / PAGE_BYTES;
        for direction in [Direction::Write, Direction::Read] {
            self.fill(if direction == Direction::Write { seed } else { !seed });
            let mut last = None;
            for slot in 0..SLOTS {
                let first = slot * BATCH_PAGES % PAGES;
                last = Some(self.launch(queue, slot, first, BATCH_PAGES, direction)?);
            }
            last.map_or(Ok(()), |mark| self.reach(queue, mark))?;
        }
        self.compare(queue, seed)
    }

    /// The median of the time that so many single pages take, out and back.
    fn time(&self, queue: &Queue, way: Way, pages: usize) -> Result<Duration> {
        let mut times = [Duration::ZERO; ROUNDS];
        for time in &mut times {
            let begun = Instant::now();
            for direction in [Direction::Write, Direction::Read] {
                let mark = match way {
                    Way::Kernel => self.launch(queue, 0, 0, pages, direction)?,
                    Way::Calls => {
                        for page in 0..pages {
                            self.copy(queue, page * PAGE_BYTES, PAGE_BYTES, direction)?;
                        }
                        self.mark(queue)?
                    }
                };
                self.spin(queue, mark)?;
            }
            *time = begun.elapsed();
        }
        times.sort_unstable();
        Ok(times[ROUNDS / 2])
    }

    fn words(&self) -> *mut u64 {
        self.host.base().cast()
    }

    fn word(seed: u64, n: usize) -> u64 {
        (seed ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn fill(&self, seed: u64) {
        for n in 0..EXTENT_BYTES / 8 {
            // SAFETY: inside the pages, aligned; the turn is ours and the
            // device is idle here.
            unsafe { self.words().add(n).write_volatile(Self::word(seed, n)) };
        }
    }

    fn compare(&self, queue: &Queue, seed: u64) -> Result<()> {
        for n in 0..EXTENT_BYTES / 8 {
            // SAFETY: as in `fill`.
            if unsafe { self.words().add(n).read_volatile() } != Self::word(seed, n) {
                let facts = &queue.context.device.facts;
                let text =
                    format!("GPU {facts}: what was read at byte {} is not what was written", n * 8);
                return Err(Error::new(Kind::Checksum, text)
                    .with_hint("do not use this GPU; look for Xid lines: journalctl -k -g Xid"));
            }
        }
        Ok(())
    }

    fn copy(&self, queue: &Queue, at: usize, bytes: usize, direction: Direction) -> Result<()> {
        let device = self.device.address() + at as u64;
        assert!(at + bytes <= EXTENT_BYTES);
        // SAFETY: both ranges are inside the scratch memory, which outlives
        // the copy: it is waited for, or the memory is kept for ever.
        let code = unsafe { queue.copy(direction, device, self.host.base().add(at), bytes) };
        self.check(queue, code, bytes)
    }

    /// Has the kernel copy `pages` pages from page `first` on.
    fn launch(
        &self,
        queue: &Queue,
        slot: usize,
        first: usize,
        pages: usize,
        direction: Direction,
    ) -> Result<Mark> {
        assert!((first + pages) * PAGE_BYTES <= EXTENT_BYTES);
        let mut batch = Batch::new();
        for page in first..first + pages {
            let at = (page * PAGE_BYTES) as u64;
            let (device, host) = (self.device.address() + at, self.seen + at);
            match direction {
                Direction::Write => batch.push(device, host),
                Direction::Read => batch.push(host, device),
            }
        }
        // SAFETY: as in `copy`; whoever launches has the queue to itself.
        unsafe { queue.launch(slot, &mut batch) }.or_else(|code| {
            self.check(queue, code, pages * PAGE_BYTES)?;
            unreachable!("a launch that failed has a code")
        })
    }

    fn mark(&self, queue: &Queue) -> Result<Mark> {
        queue.mark(0).or_else(|code| {
            self.check(queue, code, 0)?;
            unreachable!("a mark that failed has a code")
        })
    }

    #[expect(clippy::unused_self, reason = "the caller has the turn")]
    fn check(&self, queue: &Queue, code: u32, bytes: usize) -> Result<()> {
        queue.context.library().check(code, || {
            let (facts, bytes) = (&queue.context.device.facts, ByteLen(bytes as u64));
            format!("GPU {facts}: copying {bytes} to try it out")
        })
    }

    /// Waits for what was queued.
    fn finish(&self, queue: &Queue) -> Result<()> {
        let mark = self.mark(queue)?;
        self.reach(queue, mark)
    }

    fn reach(&self, queue: &Queue, mark: Mark) -> Result<()> {
        self.wait(queue, &|queue| queue.look(mark))
    }

    /// The same without a pause, as a lane does while it has work.
    fn spin(&self, queue: &Queue, mark: Mark) -> Result<()> {
        for n in 1..=MOST_LOOKS {
            let answer = if n % LOOKS == 0 { queue.look(mark) } else { queue.reached(mark) };
            if answer == SUCCESS {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.reach(queue, mark)
    }

    #[expect(clippy::unused_self, reason = "the caller has the turn")]
    fn wait(&self, queue: &Queue, state: &dyn Fn(&Queue) -> u32) -> Result<()> {
        let begun = Instant::now();
        let facts = &queue.context.device.facts;
        loop {
            match state(queue) {
                SUCCESS => return Ok(()),
                NOT_READY if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                NOT_READY => {
                    let seconds = PATIENCE.as_secs();
                    return Err(Error::new(
                        Kind::TimedOut,
                        format!("GPU {facts}: a copy took more than {seconds} s"),
                    )
                    .with_hint("look for Xid lines in the kernel's log: journalctl -k -g Xid"));
                }
                code => {
                    let doing = format!("GPU {facts}: copying to try it out");
                    return Err(queue.context.library().error(code, doing));
                }
            }
        }
    }
}
