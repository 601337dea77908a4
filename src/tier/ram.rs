// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs in the machine's own memory: the tier of the demonstration and the
//! tests, and of a machine that asks for it by name. One memfd per slab, so a
//! slab's memory outlives the process for as long as somebody holds its
//! descriptor. Copies complete inside `submit`.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::{Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier};
use crate::engine::units::{ByteLen, SLAB_BYTES, SlabIndex};

/// Whether slabs are locked into memory. A store that the kernel swaps to must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// `mlock` each slab; failure is an error.
    Locked,
    /// Leave it to the kernel (a VRAM disk for trying things out).
    Pageable,
}

/// The tier; see the module.
pub struct RamTier {
    slabs: Arc<[AtomicPtr<u8>]>,
    descriptors: Mutex<Vec<Option<OwnedFd>>>,
    pinning: Pinning,
    free: FreeBytes,
    /// There is no device to close; what was asked for is remembered.
    open: AtomicBool,
}

/// Tells how many bytes of memory anybody could still take.
pub type FreeBytes = Box<dyn Fn() -> Result<u64> + Send + Sync>;

impl RamTier {
    /// A tier of at most `max_slabs` slabs, none held; `free` is what
    /// [`Tier::free_bytes`] answers.
    #[must_use]
    pub fn new(max_slabs: u32, pinning: Pinning, free: FreeBytes) -> Self {
        Self {
            slabs: (0..max_slabs).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            descriptors: Mutex::new((0..max_slabs).map(|_| None).collect()),
            pinning,
            free,
            open: AtomicBool::new(true),
        }
    }

    fn map(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        let cell = self.slabs.get(slab.0 as usize).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("ram slab {} of {}", slab.0, self.slabs.len()))
        })?;
        // SAFETY: a fresh shared mapping chosen by the kernel aliases nothing.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SLAB_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                memory.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(no_memory(slab, "mapped"));
        }
        // SAFETY: the range was mapped just above.
        if self.pinning == Pinning::Locked && unsafe { libc::mlock(address, SLAB_BYTES) } != 0 {
            let error = no_memory(slab, "locked")
                .with_hint("grant CAP_IPC_LOCK or raise LimitMEMLOCK, or lower the tier's size");
            // SAFETY: mapped above, not yet visible to anyone.
            unsafe { libc::munmap(address, SLAB_BYTES) };
            return Err(error);
        }
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)[slab.0 as usize] =
            Some(memory);
        cell.store(address.cast(), Ordering::Release);
        Ok(())
    }
}

fn no_memory(slab: SlabIndex, what: &str) -> Error {
    let cause = std::io::Error::last_os_error();
    let bytes = ByteLen(SLAB_BYTES as u64);
    Error::new(Kind::NoSpace, format!("ram slab {} ({bytes}) could not be {what}", slab.0))
        .with_source(cause)
}

impl Tier for RamTier {
    fn name(&self) -> &'static str {
        "ram"
    }

    fn max_slabs(&self) -> u32 {
        self.slabs.len() as u32
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        (self.free)().map(Some)
    }

    fn take(&self, slab: SlabIndex) -> Result<()> {
        // SAFETY: the name is a NUL-terminated constant.
        let fd = unsafe { libc::memfd_create(c"sluice-ram-slab".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(no_memory(slab, "created"));
        }
        // SAFETY: `fd` is new and owned by nobody else.
        let memory = unsafe { OwnedFd::from_raw_fd(fd) };
        // Allocating now, not at the first write, is what makes a held slab held.
        // SAFETY: plain system calls on our own descriptor.
        let sized = unsafe {
            libc::ftruncate(fd, SLAB_BYTES as libc::off_t) == 0
                && libc::fallocate(fd, 0, 0, SLAB_BYTES as libc::off_t) == 0
        };
        if !sized {
            return Err(no_memory(slab, "allocated"));
        }
        self.map(slab, memory)?;
        self.open.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.open.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self) -> Result<()> {
        self.open.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        let address = self.slabs[slab.0 as usize].swap(ptr::null_mut(), Ordering::AcqRel);
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)[slab.0 as usize] = None;
        if !address.is_null() {
            // SAFETY: mapped by `map` with this length; the caller made sure
            // that no operation on the slab is open, and the cell is empty now.
            unsafe { libc::munmap(address.cast::<c_void>(), SLAB_BYTES) };
        }
        Ok(())
    }

    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = descriptors
            .get(slab.0 as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| Error::new(Kind::Invalid, format!("ram slab {} is not held", slab.0)))?;
        memory.try_clone().map_err(|cause| {
            Error::new(Kind::Io, format!("ram slab {}: descriptor", slab.0)).with_source(cause)
        })
    }

    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        let file = std::fs::File::from(memory);
        let bytes = file.metadata().map_or(0, |data| data.len());
        if bytes != SLAB_BYTES as u64 {
            let (is, must) = (ByteLen(bytes), ByteLen(SLAB_BYTES as u64));
            return Err(Error::new(
                Kind::Invalid,
                format!("ram slab {}: the descriptor holds {is}, a slab is {must}", slab.0),
            ));
        }
        self.map(slab, file.into())
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        Ok(Box::new(RamLane {
            slabs: Arc::clone(&self.slabs),
            memory: setup.memory,
            done: Vec::with_capacity(setup.depth),
        }))
    }
}

impl Drop for RamTier {
    fn drop(&mut self) {
        // A lane that is still there keeps using the mappings.
        if Arc::strong_count(&self.slabs) == 1 {
            for slab in 0..self.max_slabs() {
                let _ = self.release(SlabIndex(slab));
            }
        }
    }
}

struct RamLane {
    slabs: Arc<[AtomicPtr<u8>]>,
    memory: Arc<dyn HostMemory>,
    done: Vec<Done>,
}

impl RamLane {
    fn copy(&self, op: &PageOp) -> std::result::Result<(), Fault> {
        let slab = self.slabs[op.slab.0 as usize].load(Ordering::Acquire);
        if slab.is_null() {
            return Err(Fault::NotHeld);
        }
        let (offset, host, bytes) = (op.offset as usize, op.host as usize, op.bytes as usize);
        assert!(offset + bytes <= SLAB_BYTES && host + bytes <= self.memory.bytes());
        // SAFETY: both ranges are inside their mappings (asserted above); the
        // slab stays mapped while an operation on it is open, and the host
        // range belongs to this lane until the operation is reported. The two
        // are different mappings, so they cannot overlap.
        unsafe {
            let slab = slab.add(offset);
            let host = self.memory.base().add(host);
            match op.direction {
                Direction::Read => ptr::copy_nonoverlapping(slab, host, bytes),
                Direction::Write => ptr::copy_nonoverlapping(host, slab, bytes),
            }
        }
        Ok(())
    }
}

impl Lane for RamLane {
    fn submit(&mut self, ops: &[PageOp]) {
        for op in ops {
            let result = self.copy(op);
            self.done.push(Done { tag: op.tag, result });
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let room = done.capacity() - done.len();
        let from = self.done.len() - room.min(self.done.len());
        done.extend(self.done.drain(from..));
    }

    fn pending(&self) -> usize {
        self.done.len()
    }

    fn needs_polling(&self) -> bool {
        true
    }
}
