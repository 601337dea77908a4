// SPDX-License-Identifier: MIT OR Apache-2.0
//! One I/O thread's stream: copies are queued, each group of them has a mark
//! that tells when they are done.
//!
//! ```text
//!   submit: small ones, if there are enough ── launch, launch ... ─┐
//!           all others ── copy, copy, ... mark ────────────────────┴──► groups queued
//!   poll:   mark of the oldest group ── reached ──► its operations succeeded
//!              │ not yet: nothing         │ any error, there or in submit
//!              ▼                          ▼
//!            (later)                    Failed(code) ── the stream is idle or dead ──► all
//!                                                       outstanding operations failed
//! ```
//! To learn that a mark was reached is a look at memory, no call of the driver.
//! A stream that failed never reaches its marks, so now and then it is asked.
//!
//! After a failure nothing new reaches the device, and what is outstanding is
//! reported only once the stream runs no more: until then the device may still
//! write into the operations' memory. A lane whose stream is well then goes on: a
//! refused call is no reason to lose pages that can be read. Otherwise it stays
//! failed until the device was closed and opened again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::kernel::{BATCH_PAGES, Batch};
use super::library::{NOT_READY, SUCCESS, UNKNOWN};
use super::queue::{LaneCore, Mark, Queue, SLOTS};
use crate::engine::tier::{Direction, Done, Fault, Lane, PageOp};
use crate::engine::units::{PAGE_BYTES, SLAB_BYTES};

/// Operations from this size on are copied by the device's copy engines, which
/// move large runs faster than the kernel and leave its processors alone.
const LARGE: u32 = 64 << 10;
const LARGEST_SMALL: usize = LARGE as usize / PAGE_BYTES - 1;
/// How long nothing is heard from the device before the stream is asked. Longer
/// than a batch takes.
const SILENCE: Duration = Duration::from_micros(50);

/// Operations that one mark tells about.
#[derive(Clone, Copy, Debug)]
struct Group {
    mark: Mark,
    operations: usize,
    done: bool,
}

/// What went wrong, and whether the stream still runs.
#[derive(Clone, Copy, Debug)]
struct Failure {
    code: u32,
    running: bool,
    /// Over once all that failed is reported.
    passes: bool,
}

/// See the module.
pub(super) struct CudaLane {
    shared: Arc<Shared>,
    core: Arc<LaneCore>,
    book: Book,
    batch: Box<Batch>,
}

/// What was given to the device and what came of it.
struct Book {
    /// The context that the state below belongs to.
    context: u64,
    /// Tags given to the device, oldest first, and how they are grouped.
    tags: VecDeque<u32>,
    groups: VecDeque<Group>,
    next_slot: usize,
    /// When the device was last given something while idle, last answered, or
    /// was last asked.
    heard: Instant,
    /// Operations that never reached the device.
    refused: Vec<Done>,
    failure: Option<Failure>,
}

impl CudaLane {
    pub fn new(shared: Arc<Shared>, core: Arc<LaneCore>) -> Self {
        let depth = core.depth();
        let book = Book {
            context: 0,
            tags: VecDeque::with_capacity(depth),
            groups: VecDeque::with_capacity(SLOTS),
            next_slot: 0,
            heard: Instant::now(),
            refused: Vec::with_capacity(depth),
            failure: None,
        };
        Self { shared, core, book, batch: Box::new(Batch::new()) }
    }
}

impl Book {
    fn fail(&mut self, code: u32) {
        self.failure = Some(Failure { code, running: true, passes: false });
        self.groups.clear();
    }

    fn refuse(&mut self, op: &PageOp, fault: Fault) {
        self.refused.push(Done { tag: op.tag, result: Err(fault) });
    }

    /// Whether the device may get an operation; if not, it is refused.
    fn admits(&mut self, op: &PageOp) -> bool {
        if let Some(failure) = self.failure {
            self.refuse(op, device_fault(failure.code));
        }
        self.failure.is_none()
    }

    /// The device was closed and opened since: a new start.
    fn begin_in(&mut self, context: u64) {
        self.context = context;
        self.failure = None;
        self.groups.clear();
        self.next_slot = 0;
    }

    /// Notes the newest group, with a slot of its own.
    fn push(&mut self, mark: Mark, operations: usize) {
        self.groups.push_back(Group { mark, operations, done: false });
        self.next_slot = (mark.slot + 1) % SLOTS;
    }

    /// Queues what the batch has; then it has nothing.
    fn launch(&mut self, queue: &Queue, batch: &mut Batch, operations: usize) {
        if operations == 0 {
            return;
        }
        // SAFETY: every range was checked when it was put in. A slab stays mapped
        // while an operation on it is open; host ranges are registered and belong
        // to this lane until the operation is reported; the slot is free.
        match unsafe { queue.launch(self.next_slot, batch) } {
            Ok(mark) => self.push(mark, operations),
            Err(code) => self.fail(code),
        }
        batch.clear();
    }

    /// Has the kernel copy all small operations.
    fn launch_small(
        &mut self,
        queue: &Queue,
        core: &LaneCore,
        batch: &mut Batch,
        shared: &Shared,
        ops: &[PageOp],
    ) {
        let mut operations = 0;
        for op in ops.iter().filter(|op| op.bytes < LARGE) {
            let slab = shared.address(op.slab);
            if slab == 0 {
                self.refuse(op, Fault::NotHeld);
                continue;
            }
            let pages = op.bytes as usize / PAGE_BYTES;
            if batch.pages() + pages > BATCH_PAGES {
                self.launch(queue, batch, std::mem::take(&mut operations));
            }
            if !self.admits(op) {
                continue;
            }
            check(core, op);
            let (device, host) = (slab + u64::from(op.offset), queue.device_address(op.host));
            for page in 0..pages {
                let at = (page * PAGE_BYTES) as u64;
                match op.direction {
                    Direction::Read => batch.push(host + at, device + at),
                    Direction::Write => batch.push(device + at, host + at),
                }
            }
            self.tags.push_back(op.tag);
            operations += 1;
        }
        self.launch(queue, batch, operations);
    }

    /// Queues a call each for all operations that `filter` lets through.
    fn copy(
        &mut self,
        queue: &Queue,
        core: &LaneCore,
        shared: &Shared,
        ops: &[PageOp],
        filter: impl Fn(&PageOp) -> bool,
    ) {
        let mut operations = 0;
        for op in ops.iter().filter(|op| filter(op)) {
            let slab = shared.address(op.slab);
            if slab == 0 {
                self.refuse(op, Fault::NotHeld);
                continue;
            }
            if !self.admits(op) {
                continue;
            }
            check(core, op);
            // SAFETY: both ranges are inside their memories (just checked). The
            // slab stays mapped while an operation on it is open, the host range
            // is registered and belongs to this lane until the operation is reported.
            let answer = unsafe {
                let host = core.memory().base().add(op.host as usize);
                queue.copy(op.direction, slab + u64::from(op.offset), host, op.bytes as usize)
            };
            // Even a copy that was refused may have been begun.
            self.tags.push_back(op.tag);
            operations += 1;
            if answer != SUCCESS {
                self.fail(answer);
            }
        }
        if operations > 0 && self.failure.is_none() {
            self.mark(queue, operations);
        }
    }

    /// Marks the end of what was queued since the last mark.
    fn mark(&mut self, queue: &Queue, operations: usize) {
        let newest = self.groups.len().wrapping_sub(1);
        let is_full = self.groups.len() == SLOTS;
        let slot = if is_full { self.groups[newest].mark.slot } else { self.next_slot };
        match queue.mark(slot) {
            Err(code) => self.fail(code),
            // A mark comes after everything queued until now, so it can stand for
            // two groups.
            Ok(mark) if is_full => {
                self.groups[newest].mark = mark;
                self.groups[newest].operations += operations;
            }
            Ok(mark) => self.push(mark, operations),
        }
    }

    /// Whether the oldest group is done: `SUCCESS`, `NOT_READY` or a failure.
    fn look(&mut self, queue: &Queue, mark: Mark) -> u32 {
        match queue.reached(mark) {
            NOT_READY if self.heard.elapsed() > SILENCE => {
                self.heard = Instant::now();
                queue.look(mark)
            }
            answer => answer,
        }
    }

    /// Reports up to `count` of the oldest operations; how many it were.
    fn report(
        &mut self,
        count: usize,
        result: std::result::Result<(), Fault>,
        done: &mut Vec<Done>,
    ) -> usize {
        let count = count.min(done.capacity() - done.len());
        done.extend(self.tags.drain(..count).map(|tag| Done { tag, result }));
        count
    }

    /// Reports what is done, and finds out about failures.
    fn collect(&mut self, queue: &Queue, done: &mut Vec<Done>) {
        while self.failure.is_none()
            && let Some(&Group { mark, operations, done: known }) = self.groups.front()
            && done.len() < done.capacity()
        {
            if !known {
                match self.look(queue, mark) {
                    SUCCESS => self.heard = Instant::now(),
                    NOT_READY => return,
                    code => return self.fail(code),
                }
            }
            let reported = self.report(operations, Ok(()), done);
            if reported == operations {
                self.groups.pop_front();
            } else {
                self.groups[0] = Group { mark, operations: operations - reported, done: true };
            }
        }
    }

    /// Reports what a failed lane still owes, once the device is done with it.
    /// True: it was found to be done with everybody.
    fn report_failed(
        &mut self,
        mut failure: Failure,
        queue: Option<&Queue>,
        done: &mut Vec<Done>,
    ) -> bool {
        let mut is_lost = false;
        if failure.running {
            match queue.map_or(failure.code, Queue::state) {
                NOT_READY => return false,
                // Idle and well: a call was refused, and the next one may not be.
                SUCCESS => failure.passes = true,
                // The context is dead and its engines have stopped. It says so for
                // ever; a question that was refused once is none of that.
                _ => {
                    let again = queue.map_or(SUCCESS, Queue::state);
                    is_lost = !matches!(again, SUCCESS | NOT_READY);
                }
            }
            failure.running = false;
            self.failure = Some(failure);
        }
        self.report(self.tags.len(), Err(device_fault(failure.code)), done);
        if failure.passes && self.tags.is_empty() {
            self.failure = None;
        }
        is_lost
    }
}

/// Whether an operation is within its memories.
fn check(core: &LaneCore, op: &PageOp) {
    let (offset, at, bytes) = (op.offset as usize, op.host as usize, op.bytes as usize);
    assert!(offset + bytes <= SLAB_BYTES && at + bytes <= core.memory().bytes());
}

fn device_fault(code: u32) -> Fault {
    Fault::Device(code.cast_signed())
}

impl Lane for CudaLane {
    fn enter(&mut self) {
        let (context, warmed) = self.shared.warm(&self.core);
        if let Err(error) = warmed {
            tracing::error!("tier {}: a thread cannot use it: {error}", self.shared.name);
            self.book.context = context;
            // Nothing is under way: the stream, which a close takes away at any
            // time then, is not looked at.
            let running = !self.book.tags.is_empty();
            self.book.failure = Some(Failure { code: UNKNOWN, running, passes: false });
        }
    }

    fn submit(&mut self, ops: &[PageOp]) {
        let Self { shared, core, book, batch } = self;
        let (mut small, mut small_pages, mut any) = (0, 0, false);
        for op in ops.iter().filter(|op| shared.address(op.slab) != 0) {
            any = true;
            if op.bytes < LARGE {
                small += 1;
                small_pages += op.bytes as usize / PAGE_BYTES;
            }
        }
        let Some(queue) = (if any { core.queue() } else { None }) else {
            for op in ops {
                book.refuse(op, Fault::NotHeld);
            }
            return;
        };
        if book.tags.is_empty() {
            book.heard = Instant::now();
            if book.context != queue.context.id {
                book.begin_in(queue.context.id);
            }
        }
        if book.failure.is_none() {
            match queue.context.enter_raw() {
                SUCCESS => {}
                code => book.fail(code),
            }
        }
        // Slots that so many pages can need, and one for what is left.
        let slots = small_pages / (BATCH_PAGES - LARGEST_SMALL) + 2;
        if small >= queue.kernel_from && book.groups.len() + slots <= SLOTS {
            book.launch_small(queue, core, batch, shared, ops);
            book.copy(queue, core, shared, ops, |op| op.bytes >= LARGE);
        } else {
            book.copy(queue, core, shared, ops, |_| true);
        }
        core.note_outstanding(book.tags.len());
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let Self { shared, core, book, .. } = self;
        let room = done.capacity() - done.len();
        done.extend(book.refused.drain(..room.min(book.refused.len())));
        if book.tags.is_empty() {
            return;
        }
        let queue = core.queue();
        if let Some(queue) = queue {
            book.collect(queue, done);
        }
        if let Some(failure) = book.failure
            && book.report_failed(failure, queue, done)
        {
            shared.lose();
        }
        core.note_outstanding(book.tags.len());
    }

    fn pending(&self) -> usize {
        self.book.tags.len() + self.book.refused.len()
    }

    fn needs_polling(&self) -> bool {
        true
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // A stream that still runs, and the memory it runs on, stay for ever:
        // the core is not taken out of the tier's list, and is not undone.
        if let Some(queue) = self.core.queue().filter(|_| !self.book.tags.is_empty())
            && queue.state() == NOT_READY
        {
            tracing::error!("a GPU still works for an I/O thread that ended; its memory is kept");
            return;
        }
        self.core.note_outstanding(0);
        self.shared.forget(&self.core);
    }
}
