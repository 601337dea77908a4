// SPDX-License-Identifier: MIT OR Apache-2.0
//! One I/O thread's way to the slabs.
//!
//! A mapped slab is reached by the thread itself: `submit` copies, and what it
//! copied is complete when it returns. Reads come first in a group, behind a
//! fence that makes them see what any thread wrote before; one fence behind the
//! writes makes all of them visible to the device before any is reported.
//!
//! What the CPU cannot reach, and what the device is measured to be faster at,
//! goes to the lane's [`Channel`] before the CPU begins with its part. While the
//! channel is full, operations on mapped slabs are the CPU's after all; others
//! wait for it.
//!
//! A device that is lost fails what it was given, now and later. The mapping of a
//! lost device is still read: what comes out of it is judged by its checksum.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::Shared;
use super::channel::{Channel, Look, SLOTS, SMALL, Way};
use super::copy::{Copier, fence};
use super::limits::{By, Limits};
use super::slab::Slab;
use crate::engine::tier::{Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp};
use crate::engine::units::{PAGE_BYTES, SLAB_BYTES};

/// What a lane has while the device is open.
pub(super) struct Open {
    pub channel: Channel,
    pub limits: Limits,
}

/// The part of a lane that the tier knows: it lives through close and open.
pub(super) struct LaneCore {
    memory: Arc<dyn HostMemory>,
    /// Null while the device is closed. Written by the tier under its lock, and
    /// only while no slab is held; used by the lane's thread after it has seen a
    /// held slab, which was published later.
    open: AtomicPtr<Open>,
    /// Operations that the device may be working on.
    outstanding: AtomicUsize,
}

impl LaneCore {
    pub fn new(setup: &LaneSetup) -> Self {
        Self {
            memory: Arc::clone(&setup.memory),
            open: AtomicPtr::default(),
            outstanding: AtomicUsize::new(0),
        }
    }

    /// The memory that operations' `host` ranges lie in.
    pub fn memory(&self) -> &dyn HostMemory {
        &*self.memory
    }

    /// Gives the lane its channel.
    pub fn open(&self, open: Open) {
        let old = self.open.swap(Box::into_raw(Box::new(open)), Ordering::AcqRel);
        debug_assert!(old.is_null(), "a lane is opened once");
    }

    /// Undoes `open`. The caller made sure that no operation is open and no slab is
    /// held.
    pub fn close(&self) {
        let open = self.open.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !open.is_null() {
            // SAFETY: made by `open` and taken out above; the lane's thread uses it
            // only while an operation is open or a slab is held.
            drop(unsafe { Box::from_raw(open) });
        }
    }

    /// True if the device may be working for this lane.
    pub fn is_busy(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) > 0
    }

    /// What the lane has of an open device.
    ///
    /// # Safety
    /// The caller is the lane's own thread, with an operation open or after it has
    /// seen a held slab, or holds the tier's lock while that thread does nothing;
    /// and it keeps one such reference at a time.
    #[expect(clippy::mut_from_ref, reason = "the contract above makes it the only one")]
    pub unsafe fn get(&self) -> Option<&mut Open> {
        // SAFETY: null or made by `open`, not taken back meanwhile, and by the
        // contract nobody else's.
        unsafe { self.open.load(Ordering::Acquire).as_mut() }
    }
}

impl Drop for LaneCore {
    fn drop(&mut self) {
        if self.is_busy() {
            // The device may still write there.
            std::mem::forget(Arc::clone(&self.memory));
        } else {
            self.close();
        }
    }
}

/// See the module.
pub(super) struct VulkanLane {
    shared: Arc<Shared>,
    core: Arc<LaneCore>,
    copier: Copier,
    /// What is complete and not yet reported.
    done: Vec<Done>,
    /// For the device, which has enough to do.
    waiting: VecDeque<PageOp>,
    /// For the CPU, in this group.
    own: Vec<PageOp>,
}

/// The slots that a group is filling, by way.
#[derive(Default)]
struct Filling([Option<usize>; 2]);

/// Where an operation went.
enum Sent {
    Taken,
    Full,
}

impl VulkanLane {
    pub fn new(shared: Arc<Shared>, core: Arc<LaneCore>, copier: Copier, depth: usize) -> Self {
        let ops = || Vec::with_capacity(depth);
        let (done, waiting) = (Vec::with_capacity(depth), VecDeque::with_capacity(depth));
        Self { shared, core, copier, done, waiting, own: ops() }
    }

    fn report(&mut self, op: &PageOp, result: Result<(), Fault>) {
        self.done.push(Done { tag: op.tag, result });
    }

    /// Copies by the CPU, which reaches the operation's slab.
    fn copy(&self, op: &PageOp) -> Result<(), Fault> {
        let base = self.shared.slab(op.slab).map_or(std::ptr::null_mut(), Slab::base);
        if base.is_null() {
            return Err(Fault::NotHeld);
        }
        if op.direction == Direction::Write && self.shared.is_lost() {
            return Err(Fault::Device(libc::EIO));
        }
        let (offset, at, bytes) = (op.offset as usize, op.host as usize, op.bytes as usize);
        // SAFETY: both ranges are inside their memories (asserted by `submit`), whole
        // pages and apart. The slab stays mapped while an operation on it is open,
        // and the host range belongs to this lane until the operation is reported.
        let copied = unsafe {
            let (device, host) = (base.add(offset), self.core.memory().base().add(at));
            match op.direction {
                Direction::Read => self.copier.load(host, device, bytes),
                Direction::Write => self.copier.store(device, host, bytes),
            }
        };
        copied.map_err(|_| Fault::Device(libc::EIO))
    }

    /// Copies the CPU's part of a group.
    fn copy_own(&mut self) {
        for direction in [Direction::Read, Direction::Write] {
            let before = self.done.len();
            for n in 0..self.own.len() {
                let op = self.own[n];
                if op.direction == direction {
                    if direction == Direction::Read && self.done.len() == before {
                        fence();
                    }
                    let result = self.copy(&op);
                    self.report(&op, result);
                }
            }
            if direction == Direction::Write && self.done.len() > before {
                fence();
            }
        }
        self.own.clear();
    }

    /// Adds an operation to a slot that is being filled, or another.
    fn send(
        &mut self,
        channel: &mut Channel,
        filling: &mut Filling,
        way: Way,
        op: &PageOp,
    ) -> Sent {
        let Some(target) = self.shared.slab(op.slab).and_then(Slab::target) else {
            self.report(op, Err(Fault::NotHeld));
            return Sent::Taken;
        };
        let place = &mut filling.0[way as usize];
        if let Some(at) = *place {
            if channel.push(at, op, target) {
                return Sent::Taken;
            }
            *place = None;
            self.launch(channel, at);
        }
        let Some(at) = channel.take(way) else { return Sent::Full };
        let fits = channel.push(at, op, target);
        debug_assert!(fits, "an empty slot takes any operation of its way");
        filling.0[way as usize] = Some(at);
        Sent::Taken
    }

    fn launch(&mut self, channel: &mut Channel, at: usize) {
        if let Err(code) = channel.launch(at) {
            self.end(channel, at, Err(code));
        }
    }

    /// Reports what a slot's batch came to, and frees it.
    fn end(&mut self, channel: &mut Channel, at: usize, result: Result<(), ash::vk::Result>) {
        if result.is_err() {
            // Refused or lost: nothing that the device is given counts any more.
            self.shared.lose();
        }
        let result = result.map_err(|_| Fault::Device(libc::EIO));
        self.done.extend(channel.operations(at).map(|op| Done { tag: op.tag, result }));
        channel.free(at);
    }

    /// Sends what waits, as far as there is room.
    fn send_waiting(&mut self, channel: &mut Channel, limits: &Limits) {
        let mut filling = Filling::default();
        while let Some(op) = self.waiting.front().copied() {
            if self.shared.is_lost() {
                self.report(&op, Err(Fault::Device(libc::EIO)));
            } else {
                let small = channel.gathers() && op.bytes <= SMALL;
                let by = limits.choose(op.direction, op.bytes, 1, false, small);
                let way = if by == By::Gather { Way::Gather } else { Way::Copy };
                if let Sent::Full = self.send(channel, &mut filling, way, &op) {
                    break;
                }
            }
            self.waiting.pop_front();
        }
        self.launch_all(channel, &filling);
    }

    fn launch_all(&mut self, channel: &mut Channel, filling: &Filling) {
        for at in filling.0.into_iter().flatten() {
            self.launch(channel, at);
        }
    }

    /// Divides a group between the device and the CPU, and gives the device its part.
    fn divide(&mut self, open: &mut Open, ops: &[PageOp]) {
        let Open { channel, limits } = open;
        let mut pages = [0; 2];
        for op in ops.iter().filter(|op| op.bytes <= SMALL) {
            pages[op.direction as usize] += op.bytes as usize / PAGE_BYTES;
        }
        let mut filling = Filling::default();
        for op in ops {
            let slab = self.shared.slab(op.slab);
            let mapped = slab.is_some_and(|slab| !slab.base().is_null());
            if mapped && slab.and_then(Slab::target).is_none() {
                // Only the CPU reaches it.
                self.own.push(*op);
                continue;
            }
            let small = channel.gathers() && op.bytes <= SMALL;
            let pages = pages[op.direction as usize];
            let way = match limits.choose(op.direction, op.bytes, pages, mapped, small) {
                By::Cpu => None,
                By::Copy => Some(Way::Copy),
                By::Gather => Some(Way::Gather),
            };
            let lost = self.shared.is_lost();
            match way {
                None => self.own.push(*op),
                Some(_) if lost && mapped => self.own.push(*op),
                Some(_) if lost => self.report(op, Err(Fault::Device(libc::EIO))),
                // What waits goes first.
                Some(_) if !mapped && !self.waiting.is_empty() => self.waiting.push_back(*op),
                Some(way) => match self.send(channel, &mut filling, way, op) {
                    Sent::Taken => {}
                    Sent::Full if mapped => self.own.push(*op),
                    Sent::Full => self.waiting.push_back(*op),
                },
            }
        }
        self.launch_all(channel, &filling);
    }

    fn outstanding(&self) -> usize {
        self.core.outstanding.load(Ordering::Relaxed)
    }

    fn note_outstanding(&self, channel: &Channel) {
        self.core.outstanding.store(channel.outstanding(), Ordering::Release);
    }
}

impl Lane for VulkanLane {
    fn enter(&mut self) {
        if let Err(error) = self.shared.warm(&self.core) {
            tracing::error!("tier {}: a thread cannot use it: {error}", self.shared.name);
            self.shared.lose();
        }
    }

    fn submit(&mut self, ops: &[PageOp]) {
        for op in ops {
            let (offset, at, bytes) = (op.offset as usize, op.host as usize, op.bytes as usize);
            assert!(offset + bytes <= SLAB_BYTES && at + bytes <= self.core.memory().bytes());
        }
        let any_held = |op: &PageOp| self.shared.slab(op.slab).is_some_and(Slab::is_held);
        let core = Arc::clone(&self.core);
        // SAFETY: this is the lane's thread, a held slab was seen, and this is the
        // only reference.
        let open = if ops.iter().any(any_held) { unsafe { core.get() } } else { None };
        let Some(open) = open else {
            for op in ops {
                self.report(op, Err(Fault::NotHeld));
            }
            return;
        };
        self.divide(open, ops);
        self.note_outstanding(&open.channel);
        self.copy_own();
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let core = Arc::clone(&self.core);
        if self.outstanding() + self.waiting.len() > 0 {
            // SAFETY: this is the lane's thread with an operation open, and this is
            // the only reference.
            if let Some(open) = unsafe { core.get() } {
                for at in 0..SLOTS {
                    if let Look::Ended(result) = open.channel.look(at) {
                        self.end(&mut open.channel, at, result);
                    }
                }
                self.send_waiting(&mut open.channel, &open.limits);
                self.note_outstanding(&open.channel);
            }
        }
        let room = done.capacity() - done.len();
        let from = self.done.len() - room.min(self.done.len());
        done.extend(self.done.drain(from..));
    }

    fn pending(&self) -> usize {
        self.done.len() + self.waiting.len() + self.outstanding()
    }

    fn needs_polling(&self) -> bool {
        true
    }
}

impl Drop for VulkanLane {
    fn drop(&mut self) {
        // A device that still works for it keeps all of it, for ever: the core is
        // not taken out of the tier's list, and is not undone.
        if self.core.is_busy() {
            tracing::error!("a GPU still works for an I/O thread that ended; its memory is kept");
            return;
        }
        self.shared.forget(&self.core);
    }
}
