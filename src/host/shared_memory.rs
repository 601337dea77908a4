// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory behind a descriptor, so that it outlives the process: made, sealed
//! against shrinking, mapped for good and locked.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::memory::{Lock, lock_refused};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES};

/// Shared memory as this process has it mapped, from now until it ends.
#[derive(Debug)]
pub struct SharedMemory {
    memory: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is never undone and is given out as atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes zeroed memory of at least `bytes`, all of it allocated.
    pub fn create(name: &str, bytes: u64, lock: Lock) -> Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        let failed = |what: &str, errno: rustix::io::Errno| {
            let size = ByteLen(bytes);
            Error::new(Kind::NoSpace, format!("{name}: {size} of shared memory: cannot {what}"))
                .with_source(errno)
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory =
            rustix::fs::memfd_create(name, flags).map_err(|errno| failed("make it", errno))?;
        rustix::fs::ftruncate(&memory, bytes).map_err(|errno| failed("size it", errno))?;
        // A page that is missing is found when it is needed most, or not at all.
        rustix::fs::fallocate(&memory, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .map_err(|errno| failed("allocate it", errno))?;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| failed("seal it", errno))?;
        Self::map(memory, lock)
    }

    /// Maps memory that another process made.
    ///
    /// Errors: `Protocol` if it could shrink under us: a load beyond its end
    /// would be the end of this process.
    pub fn map(memory: OwnedFd, lock: Lock) -> Result<Self> {
        let protocol = |what: String| Error::new(Kind::Protocol, what);
        let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|errno| {
            protocol("this descriptor is of no shared memory".to_owned()).with_source(errno)
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(protocol("the shared memory is not sealed against shrinking".to_owned()));
        }
        let bytes = rustix::fs::fstat(&memory)
            .ok()
            .and_then(|data| usize::try_from(data.st_size).ok())
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| protocol("the shared memory has no size".to_owned()))?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )
        };
        let size = ByteLen(bytes as u64);
        let base = base.map_err(|errno| {
            Error::new(Kind::NoSpace, format!("cannot map {size} of shared memory"))
                .with_source(errno)
        })?;
        if lock == Lock::Required {
            // SAFETY: the whole mapping just made. Locking also faults it in.
            unsafe { rustix::mm::mlock(base, bytes) }
                .map_err(|errno| lock_refused(errno, &format!("{size} of shared memory")))?;
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| {
            Error::new(Kind::NoSpace, "the kernel mapped shared memory at address 0")
        })?;
        Ok(Self { memory, base, bytes })
    }

    /// Its length; at least what was asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// All of it as words.
    #[must_use]
    pub fn words(&self) -> &'static [AtomicU64] {
        // SAFETY: mapped, aligned to pages, never unmapped (there is no Drop)
        // and never shorter (sealed); every bit pattern is a word, and every
        // access of this program to it is atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8) }
    }

    /// What follows the first `words` words, as half words.
    #[must_use]
    pub fn half_words_after(&self, words: usize) -> &'static [AtomicU32] {
        let start = words * 8;
        assert!(start <= self.bytes, "{words} words of {} bytes", self.bytes);
        // SAFETY: as in `words`, from an offset within the mapping, aligned to 8.
        unsafe {
            let start_of_half_words = self.base.as_ptr().add(start).cast();
            std::slice::from_raw_parts(start_of_half_words, (self.bytes - start) / 4)
        }
    }

    /// Another descriptor of it.
    pub fn share(&self) -> Result<OwnedFd> {
        self.memory.try_clone().map_err(|cause| {
            Error::new(Kind::Io, "cannot copy a descriptor of shared memory").with_source(cause)
        })
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// A text in sealed memory that no longer changes.
pub fn text(name: &str, text: &str) -> Result<OwnedFd> {
    use std::io::Write;
    let failed = |errno: std::io::Error| {
        Error::new(Kind::NoSpace, format!("{name}: cannot keep {} bytes of text", text.len()))
            .with_source(errno)
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(name, flags).map_err(|errno| failed(errno.into()))?;
    let mut file = std::fs::File::from(memory);
    file.write_all(text.as_bytes()).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|errno| failed(errno.into()))?;
    Ok(file.into())
}

/// The text that [`text`] keeps.
pub fn read_text(memory: &OwnedFd) -> Result<String> {
    use std::os::unix::fs::FileExt;
    let broken = |what: &str| Error::new(Kind::Protocol, format!("a text in memory {what}"));
    let file = std::fs::File::from(memory.try_clone().map_err(|cause| {
        Error::new(Kind::Io, "cannot copy a descriptor of shared memory").with_source(cause)
    })?);
    debug_assert!(file.as_raw_fd() >= 0);
    let bytes = file.metadata().map_err(|cause| broken("has no size").with_source(cause))?.len();
    let mut text = vec![0; usize::try_from(bytes).map_err(|_| broken("is too long"))?];
    file.read_exact_at(&mut text, 0).map_err(|cause| broken("ends early").with_source(cause))?;
    String::from_utf8(text).map_err(|cause| broken("is not UTF-8").with_source(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_stores_another_one_loads() {
        let first = SharedMemory::create("test", 10_000, Lock::None).unwrap();
        assert_eq!(first.bytes(), 12288);
        first.words()[3].store(77, Ordering::Relaxed);
        first.half_words_after(1000)[1].store(9, Ordering::Relaxed);
        let second = SharedMemory::map(first.share().unwrap(), Lock::None).unwrap();
        assert_eq!(second.words()[3].load(Ordering::Relaxed), 77);
        assert_eq!(second.half_words_after(1000)[1].load(Ordering::Relaxed), 9);
        assert_eq!(second.words()[1000].load(Ordering::Relaxed), 9 << 32);
        assert_eq!(second.half_words_after(1536).len(), 0);
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        let error = SharedMemory::map(open, Lock::None).unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
        let made = SharedMemory::create("made", 4096, Lock::None).unwrap();
        rustix::fs::ftruncate(made.as_fd(), 0).unwrap_err();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(SharedMemory::map(file.into(), Lock::None).unwrap_err().kind(), Kind::Protocol);
    }

    #[test]
    fn a_text_is_kept_as_it_is() {
        let memory = text("test", "ein Wort: größer\n").unwrap();
        assert_eq!(read_text(&memory).unwrap(), "ein Wort: größer\n");
        assert_eq!(read_text(&memory).unwrap(), "ein Wort: größer\n");
    }
}
