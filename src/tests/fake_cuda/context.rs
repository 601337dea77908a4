// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts: one primary context for each device, made and ended by its count
//! of retains, and others made by hand. Which is current is known per thread.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::calls::{alive, known, misused};
use crate::control::{MAX_DEVICES, Word};
use crate::errors::{INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, Outcome};
use crate::{memory, module, stream};

/// The most contexts, primary ones included.
const CONTEXTS: usize = 64;
/// What a context's handle has above its number, so that nothing else passes for one.
const MARK: u64 = 0x00c7 << 48;

/// A context's name: mark, how often its place was used before, place.
pub(crate) type ContextHandle = u64;

struct Place {
    /// Retains (primary) or 1; 0: there is none.
    references: AtomicU64,
    /// How many contexts this place had.
    generation: AtomicU64,
    device: AtomicU64,
}

static PLACES: [Place; CONTEXTS] = [const {
    Place {
        references: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        device: AtomicU64::new(0),
    }
}; CONTEXTS];
/// Held while contexts come and go.
static CHANGE: Mutex<()> = Mutex::new(());

thread_local! {
    // Const and without a destructor: a query by a thread that has one allocates nothing.
    static CURRENT: Cell<ContextHandle> = const { Cell::new(0) };
}

/// A context that is current and well.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) context: ContextHandle,
    pub(crate) device: usize,
}

fn handle(place: usize) -> ContextHandle {
    MARK | PLACES[place].generation.load(Ordering::SeqCst) << 8 | place as u64
}

/// The place of a context that exists.
fn place(context: ContextHandle) -> Outcome<usize> {
    let place = (context & 0xff) as usize;
    let exists = place < CONTEXTS
        && PLACES[place].references.load(Ordering::SeqCst) > 0
        && handle(place) == context;
    if exists { Ok(place) } else { Err(misused(INVALID_CONTEXT)) }
}

fn begin(place: usize, device: usize) -> ContextHandle {
    PLACES[place].device.store(device as u64, Ordering::SeqCst);
    PLACES[place].generation.fetch_add(1, Ordering::SeqCst);
    known().add(Word::Contexts, 1);
    handle(place)
}

/// What belongs to a context goes with it.
fn end(place: usize) {
    let context = handle(place);
    stream::end_of_context(context);
    module::end_of_context(context);
    memory::end_of_context(context);
    known().less(Word::Contexts);
}

/// `cuDevicePrimaryCtxRetain`.
pub(crate) fn retain(device: usize) -> Outcome<ContextHandle> {
    alive(device)?;
    let _change = CHANGE.lock().expect("no panic under this lock");
    if PLACES[device].references.fetch_add(1, Ordering::SeqCst) == 0 {
        begin(device, device);
    }
    Ok(handle(device))
}

/// `cuDevicePrimaryCtxRelease`.
pub(crate) fn release(device: usize) -> Outcome {
    let _change = CHANGE.lock().expect("no panic under this lock");
    match PLACES[device].references.load(Ordering::SeqCst) {
        0 => return Err(misused(INVALID_CONTEXT)),
        1 => end(device),
        _ => {}
    }
    PLACES[device].references.fetch_sub(1, Ordering::SeqCst);
    alive(device)
}

/// `cuCtxCreate`: made current, too.
pub(crate) fn create(device: usize) -> Outcome<ContextHandle> {
    alive(device)?;
    let _change = CHANGE.lock().expect("no panic under this lock");
    let free = (MAX_DEVICES..CONTEXTS)
        .find(|place| PLACES[*place].references.load(Ordering::SeqCst) == 0)
        .ok_or(OUT_OF_MEMORY)?;
    let context = begin(free, device);
    PLACES[free].references.store(1, Ordering::SeqCst);
    CURRENT.set(context);
    Ok(context)
}

/// `cuCtxDestroy`.
pub(crate) fn destroy(context: ContextHandle) -> Outcome {
    let place = place(context)?;
    if place < MAX_DEVICES {
        return Err(misused(INVALID_VALUE));
    }
    let _change = CHANGE.lock().expect("no panic under this lock");
    end(place);
    PLACES[place].references.store(0, Ordering::SeqCst);
    if CURRENT.get() == context {
        CURRENT.set(0);
    }
    Ok(())
}

/// `cuCtxSetCurrent`; 0 leaves the thread without.
pub(crate) fn set_current(context: ContextHandle) -> Outcome {
    if context != 0 {
        let place = place(context)?;
        alive(PLACES[place].device.load(Ordering::SeqCst) as usize)?;
    }
    CURRENT.set(context);
    Ok(())
}

/// `cuCtxGetCurrent`.
pub(crate) fn current_handle() -> ContextHandle {
    CURRENT.get()
}

/// The calling thread's context, if it has one and its device answers.
pub(crate) fn current() -> Outcome<Current> {
    let context = CURRENT.get();
    let place = place(context)?;
    let device = PLACES[place].device.load(Ordering::SeqCst) as usize;
    alive(device)?;
    Ok(Current { context, device })
}
