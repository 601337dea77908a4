// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams and events. A stream is a queue of copies and marks; it moves only
//! when somebody asks about it. An event is a place in a stream.
//!
//! ```text
//!   copy call ─► queue: copy copy MARK copy MARK      done = number of the last performed
//!                                  ▲
//!                         event: stream, number of its mark
//! ```
//! Each stream has a lock of its own; under it only the memory lists are read.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::calls::{alive, concerns, known, lose, losses, misused};
use crate::context::{ContextHandle, Current};
use crate::control::Word;
use crate::errors::{Code, INVALID_HANDLE, NOT_READY, OUT_OF_MEMORY, Outcome};
use crate::memory::{self, Transfer};

const STREAMS: usize = 256;
const EVENTS: usize = 8192;
/// Entries before a copy call has to work off the oldest, as a driver's does.
const QUEUE: usize = 4096;
const STREAM_MARK: u64 = 0x005f << 48;
const EVENT_MARK: u64 = 0x00e7 << 48;
/// How often a synchronisation looks again.
const LOOK: Duration = Duration::from_micros(20);

/// A stream's name, and an event's: mark, generation, place.
pub(crate) type Handle = u64;

enum Work {
    Copy(Transfer),
    Mark {
        never: bool,
    },
    /// Words of host memory that get a value.
    Words {
        host: usize,
        count: usize,
        value: u32,
    },
}

struct Entry {
    /// When the device is done with it, in nanoseconds of the monotonic clock.
    due: u64,
    work: Work,
}

struct Stream {
    handle: Handle,
    context: ContextHandle,
    device: usize,
    queue: VecDeque<Entry>,
    /// Entries ever put in; the number of the last.
    last: u64,
    /// The number of the last that was performed.
    done: u64,
    /// When the device is done with everything queued.
    busy_until: u64,
    /// "Not ready" answers still to give to questions about the whole stream.
    patience: u64,
    stuck: bool,
    /// The device's losses when something was last queued.
    losses: u64,
}

static PLACES: [Mutex<Option<Stream>>; STREAMS] = [const { Mutex::new(None) }; STREAMS];
static GENERATION: AtomicU64 = AtomicU64::new(1);

struct Event {
    /// Its handle; 0: none here.
    handle: AtomicU64,
    context: AtomicU64,
    /// The stream it was last recorded in; 0: in none.
    stream: AtomicU64,
    number: AtomicU64,
    patience: AtomicU64,
}

static EVENT_PLACES: [Event; EVENTS] = [const {
    Event {
        handle: AtomicU64::new(0),
        context: AtomicU64::new(0),
        stream: AtomicU64::new(0),
        number: AtomicU64::new(0),
        patience: AtomicU64::new(0),
    }
}; EVENTS];

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn lock(place: usize) -> std::sync::MutexGuard<'static, Option<Stream>> {
    PLACES[place].lock().expect("no panic under this lock")
}

fn invalid<T>() -> Outcome<T> {
    Err(misused(INVALID_HANDLE))
}

/// Runs `act` on a stream that exists.
fn with<T>(handle: Handle, act: impl FnOnce(&mut Stream) -> Outcome<T>) -> Outcome<T> {
    let place = (handle & 0xffff) as usize;
    if handle & (0xffff << 48) != STREAM_MARK || place >= STREAMS {
        return invalid();
    }
    match &mut *lock(place) {
        Some(stream) if stream.handle == handle => act(stream),
        _ => invalid(),
    }
}

/// The same, for a stream of the context that is current.
fn with_own<T>(
    current: &Current,
    handle: Handle,
    act: impl FnOnce(&mut Stream) -> Outcome<T>,
) -> Outcome<T> {
    with(handle, |stream| if stream.context == current.context { act(stream) } else { invalid() })
}

impl Stream {
    /// A device that was lost has forgotten what was queued.
    fn forget_lost(&mut self) {
        let losses = losses(self.device);
        if self.losses != losses {
            self.losses = losses;
            self.done += self.queue.len() as u64;
            self.queue.clear();
        }
    }

    fn push(&mut self, work: Work, takes: u64) {
        self.forget_lost();
        self.busy_until = self.busy_until.max(now()) + takes;
        self.queue.push_back(Entry { due: self.busy_until, work });
        self.last += 1;
        self.patience = known().get(Word::NotReadyAnswers);
    }

    /// Works off the oldest until so many more fit, as a driver's call does.
    fn make_room(&mut self, entries: usize) -> Outcome {
        while self.queue.len() + entries > QUEUE {
            let next = self.done + 1;
            if !self.run(next)? {
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Performs what is due, up to entry `number`; whether that was reached.
    fn run(&mut self, number: u64) -> Outcome<bool> {
        let control = known();
        self.forget_lost();
        while self.done < number {
            let stalled = control.get(Word::StalledDevices) & (1 << self.device) != 0;
            let Some(entry) = self.queue.front() else { break };
            if self.stuck || stalled || entry.due > now() {
                return Ok(false);
            }
            match entry.work {
                Work::Copy(transfer) => {
                    if concerns(&control, self.device, transfer.to_device)
                        && control.strikes(Word::AsyncFailAt)
                    {
                        let code = control.get(Word::AsyncFailCode) as Code;
                        return Err(lose(self.device, code));
                    }
                    perform(transfer).map_err(|code| lose(self.device, code))?;
                }
                Work::Words { host, count, value } => {
                    memory::write_words(host, count, value, self.context)
                        .map_err(|code| lose(self.device, code))?;
                }
                Work::Mark { never: true } => {
                    self.stuck = true;
                    return Ok(false);
                }
                Work::Mark { never: false } => {}
            }
            self.queue.pop_front();
            self.done += 1;
        }
        Ok(true)
    }
}

/// Moves data and counts; some of it is spoiled on request.
fn perform(mut transfer: Transfer) -> Outcome {
    let control = known();
    let every = control.get(Word::CorruptEvery);
    let number = control.add(Word::CopiesDone, 1);
    transfer.spoiled = every > 0
        && number.is_multiple_of(every)
        && concerns(&control, transfer.device, transfer.to_device);
    memory::perform(&transfer)?;
    control.add(Word::BytesDone, transfer.bytes as u64);
    if transfer.spoiled {
        control.add(Word::CopiesCorrupted, 1);
    }
    Ok(())
}

/// `cuStreamCreate`.
pub(crate) fn create(current: &Current) -> Outcome<Handle> {
    for place in 0..STREAMS {
        let mut slot = lock(place);
        if slot.is_none() {
            let generation = GENERATION.fetch_add(1, Ordering::SeqCst);
            let handle = STREAM_MARK | generation << 16 | place as u64;
            *slot = Some(Stream {
                handle,
                context: current.context,
                device: current.device,
                queue: VecDeque::with_capacity(QUEUE),
                last: 0,
                done: 0,
                busy_until: 0,
                patience: 0,
                stuck: false,
                losses: losses(current.device),
            });
            known().add(Word::Streams, 1);
            return Ok(handle);
        }
    }
    Err(OUT_OF_MEMORY)
}

/// `cuStreamDestroy`: what is queued is still performed, as far as it can be.
pub(crate) fn destroy(handle: Handle) -> Outcome {
    with(handle, |stream| {
        // A failure has lost the device; the stream goes all the same.
        let _ = stream.run(stream.last);
        Ok(())
    })?;
    *lock((handle & 0xffff) as usize) = None;
    known().less(Word::Streams);
    Ok(())
}

/// A context's streams and events end with it.
pub(crate) fn end_of_context(context: ContextHandle) {
    for place in 0..STREAMS {
        let mut slot = lock(place);
        if slot.as_ref().is_some_and(|stream| stream.context == context) {
            *slot = None;
            known().less(Word::Streams);
        }
    }
    for event in &EVENT_PLACES {
        let handle = event.handle.load(Ordering::SeqCst);
        if handle != 0 && event.context.load(Ordering::SeqCst) == context {
            event.handle.store(0, Ordering::SeqCst);
            known().less(Word::Events);
        }
    }
}

/// Queues a copy. The caller has checked the host memory.
pub(crate) fn copy(current: &Current, handle: Handle, transfer: Transfer) -> Outcome {
    let takes = known().get(Word::CopyNanoseconds);
    with_own(current, handle, |stream| {
        stream.make_room(1)?;
        known().add(Word::CopiesQueued, 1);
        stream.push(Work::Copy(transfer), takes);
        Ok(())
    })
}

/// Queues `transfers` and, after them, `count` words at `host` that get `value`:
/// `cuLaunchKernel`, or `cuStreamWriteValue32` without transfers. They take as
/// long as one copy.
pub(crate) fn words(
    current: &Current,
    handle: Handle,
    transfers: impl ExactSizeIterator<Item = Transfer>,
    (host, count, value): (usize, usize, u32),
) -> Outcome {
    let control = known();
    with_own(current, handle, |stream| {
        stream.make_room(transfers.len() + 2)?;
        let mut takes = control.get(Word::CopyNanoseconds);
        if transfers.len() == 0 {
            takes = 0;
        }
        for transfer in transfers {
            control.add(Word::CopiesQueued, 1);
            stream.push(Work::Copy(transfer), std::mem::take(&mut takes));
        }
        if hangs(current.device) {
            stream.push(Work::Mark { never: true }, 0);
        }
        stream.push(Work::Words { host, count, value }, takes);
        Ok(())
    })
}

/// Whether the mark that is being made is the one that never completes.
fn hangs(device: usize) -> bool {
    let control = known();
    (concerns(&control, device, true) || concerns(&control, device, false))
        && control.strikes(Word::HangEventAt)
}

/// A copy that is done when this returns.
pub(crate) fn copy_now(transfer: Transfer) -> Outcome {
    std::thread::sleep(Duration::from_nanos(known().get(Word::CopyNanoseconds)));
    perform(transfer).map_err(|code| lose(transfer.device, code))
}

/// `cuStreamQuery`.
pub(crate) fn query(current: &Current, handle: Handle) -> Outcome {
    with_own(current, handle, |stream| {
        if stream.done == stream.last {
            return Ok(());
        }
        if stream.patience > 0 {
            stream.patience -= 1;
            return Err(NOT_READY);
        }
        if stream.run(stream.last)? { Ok(()) } else { Err(NOT_READY) }
    })
}

/// `cuStreamSynchronize`: waits as long as it takes.
pub(crate) fn synchronize(current: &Current, handle: Handle) -> Outcome {
    let all = with_own(current, handle, |stream| Ok(stream.last))?;
    while !with_own(current, handle, |stream| stream.run(all))? {
        alive(current.device)?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// `cuCtxSynchronize`.
pub(crate) fn synchronize_all(current: &Current) -> Outcome {
    for place in 0..STREAMS {
        let ours = |stream: &Stream| stream.context == current.context;
        let handle = lock(place).as_ref().filter(|stream| ours(stream)).map(|s| s.handle);
        if let Some(handle) = handle {
            synchronize(current, handle)?;
        }
    }
    Ok(())
}

/// `cuEventCreate`.
pub(crate) fn create_event(current: &Current) -> Outcome<Handle> {
    for (place, event) in EVENT_PLACES.iter().enumerate() {
        let handle = EVENT_MARK | GENERATION.fetch_add(1, Ordering::SeqCst) << 16 | place as u64;
        if event.handle.compare_exchange(0, handle, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            event.context.store(current.context, Ordering::SeqCst);
            event.stream.store(0, Ordering::SeqCst);
            known().add(Word::Events, 1);
            return Ok(handle);
        }
    }
    Err(OUT_OF_MEMORY)
}

fn event(handle: Handle) -> Outcome<&'static Event> {
    let place = (handle & 0xffff) as usize;
    match EVENT_PLACES.get(place) {
        Some(event) if handle != 0 && event.handle.load(Ordering::SeqCst) == handle => Ok(event),
        _ => invalid(),
    }
}

/// `cuEventDestroy`.
pub(crate) fn destroy_event(handle: Handle) -> Outcome {
    event(handle)?.handle.store(0, Ordering::SeqCst);
    known().less(Word::Events);
    Ok(())
}

/// `cuEventRecord`.
pub(crate) fn record(current: &Current, handle: Handle, stream: Handle) -> Outcome {
    let event = event(handle)?;
    if event.context.load(Ordering::SeqCst) != current.context {
        return invalid();
    }
    let control = known();
    with_own(current, stream, |queue| {
        queue.make_room(1)?;
        queue.push(Work::Mark { never: hangs(current.device) }, 0);
        event.number.store(queue.last, Ordering::SeqCst);
        event.patience.store(control.get(Word::NotReadyAnswers), Ordering::SeqCst);
        event.stream.store(stream, Ordering::SeqCst);
        Ok(())
    })
}

/// `cuEventQuery`.
pub(crate) fn query_event(handle: Handle) -> Outcome {
    let event = event(handle)?;
    let stream = event.stream.load(Ordering::SeqCst);
    // Recorded nowhere, or its stream has gone: nothing is left to wait for.
    let gone = (stream & 0xffff) as usize;
    if stream == 0 || lock(gone).as_ref().is_none_or(|s| s.handle != stream) {
        return Ok(());
    }
    let number = event.number.load(Ordering::SeqCst);
    with(stream, |queue| {
        if queue.done >= number {
            return Ok(());
        }
        let patience = event.patience.load(Ordering::SeqCst);
        if patience > 0 {
            event.patience.store(patience - 1, Ordering::SeqCst);
            return Err(NOT_READY);
        }
        if queue.run(number)? { Ok(()) } else { Err(NOT_READY) }
    })
}
