// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device is tried before swap depends on it: what a driver does for the first
//! time may allocate, a device that does not give back what it was given is better
//! found out now, and which way is the fastest for what is measured, not assumed.

use std::sync::Arc;
use std::time::Instant;

use super::channel::{Channel, Target, Way};
use super::copy::{Copier, fence};
use super::device::Device;
use super::gather::Gather;
use super::limits::{By, Limits, Times};
use super::memory::DeviceMemory;
use super::types::MemoryType;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::{Direction, PageOp};
use crate::engine::units::{EXTENT_BYTES, PAGE_BYTES, SlabIndex};

/// Pages that are sent out and back, in two halves of one batch.
const PAGES: usize = 64;
/// How often each way is timed; the median counts.
const ROUNDS: usize = 9;

/// A page of host memory.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u64; PAGE_BYTES / 8]);

impl Page {
    fn numbered(seed: u64, number: usize) -> Self {
        let word = |n: usize| {
            (seed ^ (number * PAGE_BYTES / 8 + n) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        Self(std::array::from_fn(word))
    }
}

/// A device with everything to try it: memory of both sides and a channel.
pub struct Trial {
    // Undone first: it uses the others.
    channel: Channel,
    device: DeviceMemory,
    host: Box<[Page]>,
    copier: Copier,
    what: String,
    gpu: Arc<Device>,
    memory: (MemoryType, bool),
}

impl Trial {
    /// Takes the memory: an extent of the device's, of one of its types, and as much
    /// of the host's.
    pub fn new(
        device: &Arc<Device>,
        gather: Option<&Arc<Gather>>,
        copier: Copier,
        memory: (MemoryType, bool),
    ) -> Result<Self> {
        let what = format!("GPU {}", device.facts());
        let doing = format!("{what}: memory to try it");
        let taken = DeviceMemory::take_of(device, &doing, EXTENT_BYTES, memory)?;
        let mut host =
            vec![Page([0; PAGE_BYTES / 8]); EXTENT_BYTES / PAGE_BYTES].into_boxed_slice();
        let base = host.as_mut_ptr().cast();
        let channel = Channel::new(device, gather, base, EXTENT_BYTES)?;
        let gpu = Arc::clone(device);
        Ok(Self { channel, device: taken, host, copier, what, gpu, memory })
    }

    /// The device's memory, for others to run over; `None`: it has no buffer.
    pub fn into_scratch(self) -> Option<DeviceMemory> {
        self.is_reached().then_some(self.device)
    }

    fn is_reached(&self) -> bool {
        self.device.buffer() != ash::vk::Buffer::null()
    }

    /// The ways that there are.
    fn ways(&self) -> impl Iterator<Item = By> + use<> {
        let cpu = (!self.device.base().is_null()).then_some(By::Cpu);
        let device = self.is_reached();
        let gather = (device && self.channel.gathers()).then_some(By::Gather);
        cpu.into_iter().chain(device.then_some(By::Copy)).chain(gather)
    }

    /// Whether memory that is given out is the same when it is taken over: else
    /// none is given out, for whoever takes it over would find other pages in it.
    fn check_sharing(&mut self) -> Result<()> {
        if self.device.base().is_null() || !self.gpu.shares() {
            return Ok(());
        }
        let again = self.device.again(EXTENT_BYTES, self.memory)?;
        self.host[0] = Page::numbered(u64::MAX, 0);
        self.go(By::Cpu, Direction::Write, 1, PAGE_BYTES)?;
        let mut seen = Page([0; PAGE_BYTES / 8]);
        // SAFETY: a page of a mapping that is ours and a page of ours, apart.
        let read = unsafe { self.copier.load((&raw mut seen).cast(), again.base(), PAGE_BYTES) };
        if read.is_err() || seen.0 != Page::numbered(u64::MAX, 0).0 {
            tracing::warn!(
                "{}: memory that its driver gives out is other memory when it is taken over",
                self.what
            );
            self.gpu.share_no_more();
        }
        Ok(())
    }

    /// Sends pages out by each way and back by each way, and compares.
    ///
    /// Errors: `Checksum` for a device that gives back something else, `Io` for one
    /// that is gone, `TimedOut` for one that does not answer.
    pub fn check(&mut self) -> Result<()> {
        for (n, out) in self.ways().enumerate() {
            for (m, back) in self.ways().enumerate() {
                let seed = (n * 16 + m + 1) as u64;
                for number in 0..PAGES {
                    self.host[number] = Page::numbered(seed, number);
                }
                self.go(out, Direction::Write, PAGES, PAGE_BYTES)?;
                self.host[..PAGES].fill(Page([0; PAGE_BYTES / 8]));
                self.go(back, Direction::Read, PAGES, PAGE_BYTES)?;
                for number in 0..PAGES {
                    if self.host[number].0 != Page::numbered(seed, number).0 {
                        let text = format!(
                            "{}: page {number}, written by {out:?} and read by {back:?}, is not what \
                             was written",
                            self.what
                        );
                        return Err(Error::new(Kind::Checksum, text)
                            .with_hint("do not use this GPU; look at the log: journalctl -k -b"));
                    }
                }
            }
        }
        self.check_sharing()
    }

    /// Measures all ways.
    pub fn measure(&mut self) -> Result<Limits> {
        if !self.is_reached() {
            // No choice: the CPU moves what it reaches.
            return Ok(Limits::only(By::Cpu));
        }
        let read = self.times(Direction::Read)?;
        let write = self.times(Direction::Write)?;
        Ok(Limits::measured(&read, &write))
    }

    fn times(&mut self, direction: Direction) -> Result<Times> {
        const LOW: usize = 16;
        const HIGH: usize = 256;
        let page = if self.device.base().is_null() {
            // Not a choice, then.
            f64::MAX
        } else {
            self.time(By::Cpu, direction, 16, PAGE_BYTES)? / 16.0
        };
        let gather = if self.channel.gathers() {
            let one = self.time(By::Gather, direction, 1, PAGE_BYTES)?;
            Some((one, self.time(By::Gather, direction, 32, PAGE_BYTES)?))
        } else {
            None
        };
        let low = self.time(By::Copy, direction, 1, LOW * PAGE_BYTES)?;
        let high = self.time(By::Copy, direction, 1, HIGH * PAGE_BYTES)?;
        let pieces = (LOW as f64, HIGH as f64);
        Ok(Times { page, gather, batch: 32, copy: (low, high), pieces })
    }

    /// The median time of moving `count` pieces, in nanoseconds.
    fn time(&mut self, by: By, direction: Direction, count: usize, bytes: usize) -> Result<f64> {
        let mut times = [0.0; ROUNDS];
        for time in &mut times {
            let begun = Instant::now();
            self.go(by, direction, count, bytes)?;
            *time = begun.elapsed().as_nanos() as f64;
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }

    /// Moves the first `count` pieces of the memory.
    fn go(&mut self, by: By, direction: Direction, count: usize, bytes: usize) -> Result<()> {
        assert!(count * bytes <= EXTENT_BYTES);
        let way = match by {
            By::Cpu => return self.by_cpu(direction, count * bytes),
            By::Copy => Way::Copy,
            By::Gather => Way::Gather,
        };
        let target = Target { buffer: self.device.buffer(), address: self.device.address() };
        let op = |n: usize| PageOp {
            tag: n as u32,
            direction,
            slab: SlabIndex(0),
            offset: (n * bytes) as u32,
            host: (n * bytes) as u32,
            bytes: bytes as u32,
        };
        let ops: Vec<_> = (0..count).map(|n| (op(n), target)).collect();
        self.channel.run(way, &ops)
    }

    fn by_cpu(&mut self, direction: Direction, bytes: usize) -> Result<()> {
        let (device, host) = (self.device.base(), self.host.as_mut_ptr().cast::<u8>());
        fence();
        // SAFETY: both memories are at least so long, ours alone, and apart.
        let copied = unsafe {
            match direction {
                Direction::Write => self.copier.store(device, host, bytes),
                Direction::Read => self.copier.load(host, device, bytes),
            }
        };
        fence();
        copied.map_err(|_| {
            Error::new(Kind::Io, format!("{} is gone: its memory is not there", self.what))
                .with_hint("look for the GPU driver's lines in the kernel's log: journalctl -k -b")
        })
    }
}
