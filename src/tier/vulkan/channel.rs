// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a lane has of an open device: its memory in the device's reach, and a few
//! slots, each for one batch of operations that the device does by itself.
//!
//! ```text
//!   Free ──take──► Filling ──launch──► Ready ──queue free──► Running ──fence──► Free
//!                                        │                     │
//!                                        └────── refused ──────┴── lost ──► Free
//! ```
//! Owner of a slot's operations: the lane while it is `Filling`, the device from
//! `launch` on. A slot whose fence never comes is never `Free` again, and neither
//! is the memory of its operations. Nothing here waits, except what says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;

use super::device::{Device, Queue};
use super::gather::{Gather, PAGES, TABLE_BYTES};
use super::loader::error;
use super::reach::{HostBuffer, Reach};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::{Direction, PageOp};
use crate::engine::units::PAGE_BYTES;

/// Batches of one lane that the device works on at once.
pub const SLOTS: usize = 8;
/// Operations of one batch.
pub const BATCH: usize = PAGES;
/// Bytes of the largest operation that is moved page by page.
pub const SMALL: u32 = 16 * PAGE_BYTES as u32;

/// How long a device may take for what is run before it serves. Not a limit on
/// work, only on a device that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the device moves a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By copy commands, one for each operation.
    Copy,
    /// By one run of a program, page by page.
    Gather,
}

/// Memory of the device, as it is named to the device.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The buffer over it.
    pub buffer: vk::Buffer,
    /// Its address; 0 where the device runs no programs.
    pub address: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Filling,
    Ready,
    Running,
}

#[derive(Debug)]
struct Slot {
    state: State,
    way: Way,
    copies: vk::CommandBuffer,
    program: vk::CommandBuffer,
    fence: vk::Fence,
    ops: Vec<(PageOp, Target)>,
    /// Entries of the table in use, and those that were before.
    entries: usize,
    stale: usize,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is none, or it is not complete.
    Nothing,
    /// It ended; its operations are to be reported and the slot freed.
    Ended(std::result::Result<(), vk::Result>),
}

/// See the module. Undone when dropped.
#[derive(Debug)]
pub struct Channel {
    slots: Vec<Slot>,
    regions: Vec<vk::BufferCopy>,
    /// Pools of the commands, for copies and for programs.
    pools: [vk::CommandPool; 2],
    turn: usize,
    tables: HostBuffer,
    reach: Reach,
    gather: Option<Arc<Gather>>,
    device: Arc<Device>,
}

impl Channel {
    /// Brings `[base, base + bytes)` into the device's reach, which the caller keeps
    /// mapped and gives to this alone, and makes the slots.
    pub fn new(
        device: &Arc<Device>,
        gather: Option<&Arc<Gather>>,
        base: *mut u8,
        bytes: usize,
    ) -> Result<Self> {
        let mut made = Self {
            slots: Vec::with_capacity(SLOTS),
            regions: Vec::with_capacity(BATCH),
            pools: [vk::CommandPool::null(); 2],
            turn: device.turn(),
            tables: HostBuffer::new(device, SLOTS * TABLE_BYTES)?,
            reach: Reach::new(device, base, bytes)?,
            gather: gather.cloned(),
            device: Arc::clone(device),
        };
        let copies = made.commands(0, device.copy.index)?;
        let programs = match &device.compute {
            Some(compute) if gather.is_some() => made.commands(1, compute.index)?,
            _ => vec![vk::CommandBuffer::null(); SLOTS],
        };
        for (copies, program) in copies.into_iter().zip(programs) {
            made.add_slot(copies, program)?;
        }
        Ok(made)
    }

    fn failed(&self, code: vk::Result) -> Error {
        error(code, format!("GPU {}: cannot make a queue for copies", self.device.facts()))
    }

    fn commands(&mut self, pool: usize, family: u32) -> Result<Vec<vk::CommandBuffer>> {
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(family);
        // SAFETY: the structures live during the calls; the family is the device's.
        self.pools[pool] = unsafe { self.device.raw.create_command_pool(&info, None) }
            .map_err(|code| self.failed(code))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pools[pool])
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(SLOTS as u32);
        // SAFETY: as above.
        unsafe { self.device.raw.allocate_command_buffers(&info) }.map_err(|code| self.failed(code))
    }

    fn add_slot(&mut self, copies: vk::CommandBuffer, program: vk::CommandBuffer) -> Result<()> {
        // SAFETY: the structure lives during the call.
        let fence = unsafe { self.device.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
            .map_err(|code| self.failed(code))?;
        let table = self.tables.address + (self.slots.len() * TABLE_BYTES) as u64;
        self.slots.push(Slot {
            state: State::Free,
            way: Way::Copy,
            copies,
            program,
            fence,
            ops: Vec::with_capacity(BATCH),
            entries: 0,
            stale: 0,
        });
        let Some(gather) = &self.gather else { return Ok(()) };
        // Recorded once: what a run moves is in its table.
        let raw = &self.device.raw;
        let written = vk::AccessFlags::SHADER_WRITE;
        // SAFETY: the buffer is ours and not in use.
        unsafe {
            raw.begin_command_buffer(program, &vk::CommandBufferBeginInfo::default())
                .map_err(|code| self.failed(code))?;
            gather.record(program, table);
            self.show_to_host(program, vk::PipelineStageFlags::COMPUTE_SHADER, written);
            raw.end_command_buffer(program).map_err(|code| self.failed(code))
        }
    }

    /// Records that what was written is for the CPU to see.
    ///
    /// # Safety
    /// `commands` is being recorded.
    unsafe fn show_to_host(
        &self,
        commands: vk::CommandBuffer,
        by: vk::PipelineStageFlags,
        written: vk::AccessFlags,
    ) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(written)
            .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE)];
        let (host, none) = (vk::PipelineStageFlags::HOST, vk::DependencyFlags::empty());
        // SAFETY: as the caller's.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(commands, by, host, none, &barrier, &[], &[]);
        }
    }

    /// Whether the program is there.
    pub fn gathers(&self) -> bool {
        self.gather.is_some()
    }

    /// A free slot to fill; `None`: the device has enough to do.
    pub fn take(&mut self, way: Way) -> Option<usize> {
        let at = self.slots.iter().position(|slot| slot.state == State::Free)?;
        let slot = &mut self.slots[at];
        (slot.state, slot.way, slot.entries) = (State::Filling, way, 0);
        Some(at)
    }

    /// Adds an operation to a slot that is being filled; false: it is full. The
    /// caller checked that the operation is inside both memories.
    pub fn push(&mut self, at: usize, op: &PageOp, target: Target) -> bool {
        let slot = &mut self.slots[at];
        debug_assert_eq!(slot.state, State::Filling);
        if slot.ops.len() == BATCH {
            return false;
        }
        if slot.way == Way::Gather {
            let pages = op.bytes as usize / PAGE_BYTES;
            if slot.entries + pages > PAGES {
                return false;
            }
            let device = target.address + u64::from(op.offset);
            let host = self.reach.host.address + u64::from(op.host);
            let (from, to) = match op.direction {
                Direction::Read => (device, host),
                Direction::Write => (host, device),
            };
            for page in 0..pages {
                let move_by = (page * PAGE_BYTES) as u64;
                write_entry(&self.tables, at, slot.entries + page, [from + move_by, to + move_by]);
            }
            slot.entries += pages;
        }
        slot.ops.push((*op, target));
        true
    }

    /// Gives a filled slot to the device, at once or as soon as no other thread is
    /// at the queue. An error ends the batch.
    pub fn launch(&mut self, at: usize) -> std::result::Result<(), vk::Result> {
        let slot = &mut self.slots[at];
        for (op, _) in slot.ops.iter().filter(|(op, _)| op.direction == Direction::Write) {
            // SAFETY: inside the memory, as the caller of `push` checked; the range
            // is the operation's.
            unsafe { self.reach.relay(op.host as usize, op.bytes as usize, Direction::Write) };
        }
        match slot.way {
            Way::Gather => {
                for entry in slot.entries..slot.stale {
                    write_entry(&self.tables, at, entry, [0, 0]);
                }
                slot.stale = slot.entries;
            }
            Way::Copy => self.record_copies(at)?,
        }
        self.slots[at].state = State::Ready;
        self.submit(at)
    }

    fn record_copies(&mut self, at: usize) -> std::result::Result<(), vk::Result> {
        let raw = &self.device.raw;
        let slot = &self.slots[at];
        let once = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the commands are the slot's, which the device is done with; every
        // range is inside its buffer, as the caller of `push` checked.
        unsafe {
            raw.reset_command_buffer(slot.copies, vk::CommandBufferResetFlags::empty())?;
            raw.begin_command_buffer(slot.copies, &once)?;
            // Neighbours of one slab and direction are one command.
            let key = |op: &(PageOp, Target)| (op.0.direction, op.1.buffer);
            for group in slot.ops.chunk_by(|a, b| key(a) == key(b)) {
                let (direction, slab) = key(&group[0]);
                self.regions.clear();
                self.regions.extend(group.iter().map(|(op, _)| {
                    let (device, host) = (u64::from(op.offset), u64::from(op.host));
                    let (from, to) = match direction {
                        Direction::Read => (device, host),
                        Direction::Write => (host, device),
                    };
                    vk::BufferCopy::default().src_offset(from).dst_offset(to).size(op.bytes.into())
                }));
                let host = self.reach.host.buffer;
                let (from, to) = match direction {
                    Direction::Read => (slab, host),
                    Direction::Write => (host, slab),
                };
                raw.cmd_copy_buffer(slot.copies, from, to, &self.regions);
            }
            let (by, written) = (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_WRITE);
            self.show_to_host(slot.copies, by, written);
            raw.end_command_buffer(slot.copies)
        }
    }

    fn queue(&self, way: Way) -> &Queue {
        let family = match (way, &self.device.compute) {
            (Way::Gather, Some(compute)) => compute,
            _ => &self.device.copy,
        };
        &family.queues[self.turn % family.queues.len()]
    }

    fn submit(&mut self, at: usize) -> std::result::Result<(), vk::Result> {
        let slot = &self.slots[at];
        let commands = [if slot.way == Way::Gather { slot.program } else { slot.copies }];
        let info = [vk::SubmitInfo::default().command_buffers(&commands)];
        let raw = &self.device.raw;
        // SAFETY: the commands are recorded and not in use, the fence is not
        // signalled and not in use; the queue is this thread's meanwhile.
        let sent = self
            .queue(slot.way)
            .try_with(|queue| unsafe { raw.queue_submit(queue, &info, slot.fence) });
        match sent {
            None => Ok(()),
            Some(Ok(())) => {
                self.slots[at].state = State::Running;
                Ok(())
            }
            Some(Err(code)) => Err(code),
        }
    }

    /// What became of a slot's batch.
    pub fn look(&mut self, at: usize) -> Look {
        match self.slots[at].state {
            State::Free | State::Filling => Look::Nothing,
            State::Ready => match self.submit(at) {
                Ok(()) => Look::Nothing,
                Err(code) => Look::Ended(Err(code)),
            },
            State::Running => {
                let fence = self.slots[at].fence;
                // SAFETY: the fence is ours.
                match ended(unsafe { self.device.raw.get_fence_status(fence) }) {
                    None => Look::Nothing,
                    Some(Ok(())) => Look::Ended(self.end(at)),
                    Some(Err(code)) => Look::Ended(Err(code)),
                }
            }
        }
    }

    /// The device is done with a batch: its data goes where it belongs.
    fn end(&self, at: usize) -> std::result::Result<(), vk::Result> {
        let slot = &self.slots[at];
        for (op, _) in slot.ops.iter().filter(|(op, _)| op.direction == Direction::Read) {
            // SAFETY: as in `launch`.
            unsafe { self.reach.relay(op.host as usize, op.bytes as usize, Direction::Read) };
        }
        // SAFETY: the fence is ours, and nothing is under way with it.
        unsafe { self.device.raw.reset_fences(&[slot.fence]) }
    }

    /// The operations of a slot.
    pub fn operations(&self, at: usize) -> impl Iterator<Item = &PageOp> {
        self.slots[at].ops.iter().map(|(op, _)| op)
    }

    /// Frees a slot whose batch ended and was reported.
    pub fn free(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.ops.clear();
        slot.state = State::Free;
    }

    /// Operations that the device has or will get.
    pub fn outstanding(&self) -> usize {
        self.slots.iter().map(|slot| slot.ops.len()).sum()
    }

    /// Runs operations to their end, for trials: waits.
    ///
    /// Errors: the driver's; `TimedOut` for a device that does not answer.
    pub fn run(&mut self, way: Way, ops: &[(PageOp, Target)]) -> Result<()> {
        let failed = |device: &Device, code| {
            error(code, format!("GPU {}: copying to try it out", device.facts()))
        };
        let mut ops = ops.iter();
        let mut next = ops.next();
        while next.is_some() {
            let at = self.take(way).expect("nothing else is under way");
            while let Some((op, target)) = next
                && self.push(at, op, *target)
            {
                next = ops.next();
            }
            self.launch(at).map_err(|code| failed(&self.device, code))?;
            self.wait(at)?;
        }
        Ok(())
    }

    fn wait(&mut self, at: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.look(at) {
                Look::Nothing if begun.elapsed() < PATIENCE => std::hint::spin_loop(),
                Look::Nothing => {
                    let (facts, seconds) = (self.device.facts(), PATIENCE.as_secs());
                    let text = format!("GPU {facts}: a copy took more than {seconds} s");
                    return Err(Error::new(Kind::TimedOut, text)
                        .with_hint("look for the GPU driver's lines: journalctl -k -b"));
                }
                Look::Ended(result) => {
                    self.free(at);
                    return result.map_err(|code| {
                        error(code, format!("GPU {}: trying a copy", self.device.facts()))
                    });
                }
            }
        }
    }

    /// Runs every slot once in each way, from the calling thread, over `scratch`,
    /// memory of the device that nobody else uses: waits. The lane's own memory is
    /// not touched.
    pub fn warm(&mut self, scratch: Option<vk::Buffer>) -> Result<()> {
        for at in 0..self.slots.len() {
            if self.slots[at].state != State::Free {
                continue;
            }
            if self.gathers() {
                // A table of zeros.
                self.slots[at].state = State::Filling;
                (self.slots[at].way, self.slots[at].entries) = (Way::Gather, 0);
                self.launch(at).map_err(|code| self.failed(code))?;
                self.wait(at)?;
            }
            let Some(scratch) = scratch else { continue };
            let raw = &self.device.raw;
            let commands = self.slots[at].copies;
            let once = vk::CommandBufferBeginInfo::default();
            self.regions.clear();
            self.regions.extend((0..BATCH as u64).map(|n| {
                let (page, half) = (PAGE_BYTES as u64, (BATCH * PAGE_BYTES) as u64);
                vk::BufferCopy::default()
                    .src_offset(n * page)
                    .dst_offset(half + n * page)
                    .size(page)
            }));
            // SAFETY: the commands are not in use; the ranges are inside the scratch
            // memory and apart.
            unsafe {
                raw.reset_command_buffer(commands, vk::CommandBufferResetFlags::empty())
                    .and_then(|()| raw.begin_command_buffer(commands, &once))
                    .map_err(|code| self.failed(code))?;
                // As many commands as a batch can have.
                for region in &self.regions {
                    raw.cmd_copy_buffer(commands, scratch, scratch, std::slice::from_ref(region));
                }
                raw.end_command_buffer(commands).map_err(|code| self.failed(code))?;
            }
            (self.slots[at].state, self.slots[at].way) = (State::Ready, Way::Copy);
            self.wait(at)?;
        }
        Ok(())
    }
}

/// Writes an entry of a slot's table.
fn write_entry(tables: &HostBuffer, slot: usize, entry: usize, addresses: [u64; 2]) {
    debug_assert!(slot < SLOTS && entry < PAGES);
    let words = tables.base.cast::<std::ffi::c_void>().cast::<[u64; 2]>();
    // SAFETY: inside the tables, whose mapping is aligned to 64 bytes at least; the
    // device does not read the table of a slot that is being filled.
    unsafe { words.add(slot * PAGES + entry).write_volatile(addresses) };
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: all are ours or null; whoever drops made sure that the device is
        // done with them. Commands go with their pool.
        unsafe {
            for slot in &self.slots {
                self.device.raw.destroy_fence(slot.fence, None);
            }
            for pool in self.pools {
                self.device.raw.destroy_command_pool(pool, None);
            }
        }
    }
}

/// What a fence's status says of its batch; `None`: it may be under way. Of the
/// errors only the loss of the device ends one: after any other the device may still
/// write where the batch was told to, and that place must not be given to anybody.
/// Whoever waits has a deadline for that.
fn ended(
    status: std::result::Result<bool, vk::Result>,
) -> Option<std::result::Result<(), vk::Result>> {
    match status {
        Ok(true) => Some(Ok(())),
        Err(vk::Result::ERROR_DEVICE_LOST) => Some(Err(vk::Result::ERROR_DEVICE_LOST)),
        Ok(false) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_under_way_until_its_fence_says_otherwise() {
        let lost = vk::Result::ERROR_DEVICE_LOST;
        assert_eq!(ended(Ok(true)), Some(Ok(())));
        assert_eq!(ended(Err(lost)), Some(Err(lost)));
        for code in [vk::Result::ERROR_OUT_OF_HOST_MEMORY, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY] {
            assert_eq!(ended(Err(code)), None, "{code}");
        }
        assert_eq!(ended(Ok(false)), None);
    }
}
