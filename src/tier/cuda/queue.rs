// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a lane has of the driver, and the part of a lane that the tier closes
//! and opens again together with the device.
//!
//! How the end of work is learned: the device itself writes a value into a word
//! of host memory (a *slot* has one for each page of a batch), and the host only
//! looks there. Where the driver has no such writes, an event tells, which is
//! a call for each look.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};

use super::Open;
use super::device::Context;
use super::host_memory::{HostPages, HostPin};
use super::kernel::{BATCH_PAGES, Batch, Kernel};
use super::library::{NOT_READY, SUCCESS, UNKNOWN};
use super::scratch::Scratch;
use crate::engine::error::Result;
use crate::engine::tier::{Direction, HostMemory, LaneSetup};

/// Groups whose ends are told apart; more share the newest one's.
pub const SLOTS: usize = 64;
const WORD_BYTES: usize = size_of::<AtomicU32>();

/// The end of some work: where it will be told, and how.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub slot: usize,
    /// Words that will have the value; 0: the slot's event tells.
    words: usize,
    value: u32,
}

/// What a lane has of an open device. Undone when dropped, stream first.
#[derive(Debug)]
pub struct Queue {
    stream: CUstream,
    /// Empty where the stream can write words.
    events: Vec<CUevent>,
    kernel: Option<Arc<Kernel>>,
    /// From how many operations of one group on [`Queue::launch`] is the faster
    /// way; `usize::MAX`: never.
    pub kernel_from: usize,
    last_value: AtomicU32,
    /// Where the device sees the lane's memory, and the words.
    memory: u64,
    words_there: u64,
    _words_pin: HostPin,
    words: HostPages,
    _pin: HostPin,
    pub context: Arc<Context>,
}

impl Queue {
    fn open(open: &Open, memory: &dyn HostMemory) -> Result<Self> {
        let context = &open.context;
        context.enter()?;
        let (library, facts) = (context.library(), &context.device.facts);
        let f = &library.functions;
        let pin = HostPin::new(context, memory.base(), memory.bytes())?;
        let words = HostPages::new(SLOTS * BATCH_PAGES * WORD_BYTES)?;
        let words_pin = HostPin::new(context, words.base(), words.bytes())?;
        let (seen, words_there) =
            (pin.device_address(context)?, words_pin.device_address(context)?);
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: stores one handle.
        let code = unsafe { (f.cuStreamCreate)(&raw mut stream, flags) };
        library.check(code, || format!("GPU {facts}: cannot make a stream"))?;
        // From here on dropping undoes.
        let mut queue = Self {
            stream,
            events: Vec::new(),
            kernel: open.kernel.clone(),
            kernel_from: usize::MAX,
            last_value: AtomicU32::new(0),
            memory: seen,
            words_there,
            _words_pin: words_pin,
            words,
            _pin: pin,
            context: Arc::clone(context),
        };
        if queue.mark(0).is_ok() {
            return Ok(queue);
        }
        for _ in 0..SLOTS {
            let mut event = std::ptr::null_mut();
            let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: stores one handle.
            let code = unsafe { (f.cuEventCreate)(&raw mut event, flags) };
            library.check(code, || format!("GPU {facts}: cannot make an event"))?;
            queue.events.push(event);
        }
        Ok(queue)
    }

    /// Whether [`Queue::launch`] can be called.
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Where the device sees byte `at` of the lane's memory.
    pub fn device_address(&self, at: u32) -> u64 {
        self.memory + u64::from(at)
    }

    /// Queues one copy between `device` and registered host memory; the
    /// driver's answer.
    ///
    /// # Safety
    /// Both ranges stay what they are until the copy is done; nobody else
    /// touches the one that is written, or writes the other.
    pub unsafe fn copy(
        &self,
        direction: Direction,
        device: u64,
        host: *mut u8,
        bytes: usize,
    ) -> u32 {
        let f = &self.context.library().functions;
        // SAFETY: the caller's contract.
        unsafe {
            match direction {
                Direction::Read => {
                    (f.cuMemcpyDtoHAsync_v2)(host.cast(), device, bytes, self.stream)
                }
                Direction::Write => {
                    (f.cuMemcpyHtoDAsync_v2)(device, host.cast(), bytes, self.stream)
                }
            }
        }
    }

    /// Queues a batch, whose end the slot will tell.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; the slot tells of nothing else meanwhile.
    pub unsafe fn launch(&self, slot: usize, batch: &mut Batch) -> std::result::Result<Mark, u32> {
        let Some(kernel) = &self.kernel else { return Err(UNKNOWN) };
        let mark = Mark { slot, words: batch.pages(), value: self.next_value() };
        let words = self.words_there + first_word(slot) as u64;
        // SAFETY: the caller's contract; the words are registered like it.
        match unsafe { kernel.launch(self.stream, batch, words, mark.value) } {
            SUCCESS => Ok(mark),
            code => Err(code),
        }
    }

    /// Marks the end of all that was queued until now.
    pub fn mark(&self, slot: usize) -> std::result::Result<Mark, u32> {
        let f = &self.context.library().functions;
        let (mark, code) = if let Some(event) = self.events.get(slot) {
            // SAFETY: event and stream are ours and of one context. An event that
            // is recorded anew tells about everything queued until now.
            let code = unsafe { (f.cuEventRecord)(*event, self.stream) };
            (Mark { slot, words: 0, value: 0 }, code)
        } else {
            let mark = Mark { slot, words: 1, value: self.next_value() };
            let word = self.words_there + first_word(slot) as u64;
            // SAFETY: the word is registered memory that outlives the stream.
            // Without a flag it is written after everything before it is visible.
            let code = unsafe { (f.cuStreamWriteValue32_v2)(self.stream, word, mark.value, 0) };
            (mark, code)
        };
        if code == SUCCESS { Ok(mark) } else { Err(code) }
    }

    /// Whether a mark was reached: `SUCCESS`, `NOT_READY` or, of an event only, a
    /// failure. Of words this is no call of the driver.
    pub fn reached(&self, mark: Mark) -> u32 {
        if mark.words == 0 {
            // SAFETY: the event is ours.
            return unsafe {
                (self.context.library().functions.cuEventQuery)(self.events[mark.slot])
            };
        }
        // The last block is rarely the first to end.
        let all = (0..mark.words).rev().all(|n| self.word(mark.slot, n) == mark.value);
        if all { SUCCESS } else { NOT_READY }
    }

    /// The same, asking the stream if the words say nothing: a failed one writes
    /// none.
    pub fn look(&self, mark: Mark) -> u32 {
        match self.reached(mark) {
            NOT_READY if mark.words > 0 => match self.state() {
                // All is done, so the words are there, or somebody lost them.
                SUCCESS if self.reached(mark) == SUCCESS => SUCCESS,
                SUCCESS => UNKNOWN,
                code => code,
            },
            answer => answer,
        }
    }

    /// The stream's state: `SUCCESS` when it has nothing to do.
    pub fn state(&self) -> u32 {
        // SAFETY: the stream is ours.
        unsafe { (self.context.library().functions.cuStreamQuery)(self.stream) }
    }

    fn word(&self, slot: usize, n: usize) -> u32 {
        assert!(n < BATCH_PAGES);
        let words: *mut u32 = self.words.base().cast();
        // SAFETY: inside the pages (asserted here and in `first_word`), which are
        // aligned, and touched by the device and by loads like this one only.
        // Acquire: what the device wrote before the word is read after it.
        unsafe {
            let word = words.byte_add(first_word(slot)).add(n);
            AtomicU32::from_ptr(word).load(Ordering::Acquire)
        }
    }

    /// One that no word has: words begin as 0, and a value comes again only
    /// after every slot was used millions of times.
    fn next_value(&self) -> u32 {
        match self.last_value.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
            0 => self.next_value(),
            value => value,
        }
    }
}

/// Byte of a slot's first word.
fn first_word(slot: usize) -> usize {
    assert!(slot < SLOTS);
    slot * BATCH_PAGES * WORD_BYTES
}

impl Drop for Queue {
    fn drop(&mut self) {
        let f = &self.context.library().functions;
        if self.context.enter_raw() != SUCCESS {
            // Nothing can be undone one by one in a context that is dead; it
            // takes all of it along when it is released.
            return;
        }
        // SAFETY: both are ours and forgotten here; whoever drops made sure
        // that nothing is under way.
        unsafe {
            for event in &self.events {
                (f.cuEventDestroy_v2)(*event);
            }
            (f.cuStreamDestroy_v2)(self.stream);
        }
    }
}

/// The part of a lane that the tier knows: it lives through close and open.
#[derive(Debug)]
pub struct LaneCore {
    memory: HostMemoryRef,
    depth: usize,
    /// Null while the device is closed. Written by the tier under its lock,
    /// and only while no slab is held; read by the lane's thread after it has
    /// seen the address of a held slab, which was published later.
    queue: AtomicPtr<Queue>,
    /// Operations that the device may be working on.
    outstanding: AtomicUsize,
}

/// Memory without a `Debug` of its own.
struct HostMemoryRef(Arc<dyn HostMemory>);

impl std::fmt::Debug for HostMemoryRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.bytes())
    }
}

impl LaneCore {
    pub fn new(setup: &LaneSetup) -> Self {
        Self {
            memory: HostMemoryRef(Arc::clone(&setup.memory)),
            depth: setup.depth,
            queue: AtomicPtr::default(),
            outstanding: AtomicUsize::new(0),
        }
    }

    /// Makes stream and words, and tries every path in both directions.
    pub fn open(&self, open: &Open) -> Result<()> {
        let mut queue = Queue::open(open, &*self.memory.0)?;
        let tried = open.scratch.warm(&queue, self.depth);
        let found = tried.and_then(|()| open.scratch.kernel_from(&queue));
        match found {
            Ok(operations) => queue.kernel_from = operations,
            Err(error) => {
                if queue.state() == NOT_READY {
                    // The device may still write its words.
                    std::mem::forget(queue);
                }
                return Err(error);
            }
        }
        let old = self.queue.swap(Box::into_raw(Box::new(queue)), Ordering::AcqRel);
        debug_assert!(old.is_null(), "a lane is opened once");
        Ok(())
    }

    /// Tries every path in both directions, from the calling thread.
    pub fn warm(&self, scratch: &Arc<Scratch>) -> Result<()> {
        self.queue().map_or(Ok(()), |queue| scratch.warm(queue, self.depth))
    }

    /// Undoes `open`. The caller made sure that no operation is open and no
    /// slab is held.
    pub fn close(&self) {
        let queue = self.queue.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !queue.is_null() {
            // SAFETY: made by `open` and taken out above; the lane's thread
            // uses it only while an operation is open or a slab is held.
            drop(unsafe { Box::from_raw(queue) });
        }
    }

    /// The memory that operations' `host` ranges lie in.
    pub fn memory(&self) -> &dyn HostMemory {
        &*self.memory.0
    }

    /// The most operations that can be open.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Notes how many operations the device may be working on.
    pub fn note_outstanding(&self, operations: usize) {
        self.outstanding.store(operations, Ordering::Release);
    }

    /// Keeps the device open until [`LaneCore::let_go`]. Under the tier's lock.
    pub fn hold(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// Undoes [`LaneCore::hold`]; without an operation given to it in between.
    pub fn let_go(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// True if the device may be working for this lane.
    pub fn is_busy(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) > 0
    }

    /// Stream and events while the device is open. For the lane's own thread
    /// with an operation open or after it has seen a held slab's address, for
    /// who keeps the device open, and for the tier under its lock.
    pub fn queue(&self) -> Option<&Queue> {
        // SAFETY: null or made by `open`; not taken back while an operation is
        // open or a slab is held, and callers are in one of these states.
        unsafe { self.queue.load(Ordering::Acquire).as_ref() }
    }
}

impl Drop for LaneCore {
    fn drop(&mut self) {
        if self.is_busy() {
            // The device may still write there.
            std::mem::forget(Arc::clone(&self.memory.0));
        } else {
            self.close();
        }
    }
}
