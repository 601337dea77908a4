// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of one I/O thread, and what the machine has left.
//!
//! An [`Arena`] is everything a request's data ever touches on the host side:
//! mapped, faulted in and (for an armed device) locked before the first
//! request, because a page fault on the swap path waits for the swap path.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use super::sysfs::{kb_field, read};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::HostMemory;
use crate::engine::units::{ByteLen, PAGE_BYTES};

/// Whether an arena must stay in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Locked, or no arena: for anything the kernel may swap to.
    Required,
    /// Faulted in but not locked: for serving other clients without privileges.
    None,
}

/// Page-aligned, zeroed, faulted-in anonymous memory.
///
/// A forked child does not get it (`MADV_DONTFORK`): sharing it copy-on-write
/// would make the I/O thread's next write allocate a page, and would take the
/// page from under a GPU transfer that is still running.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the arena owns its mapping and has no thread affinity.
unsafe impl Send for Arena {}
// SAFETY: `&Arena` gives out a raw pointer and two range operations. Which range
// may be touched by whom and when is the ownership contract of `engine::tier`;
// the arena itself holds no mutable state.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` (whole pages, below 4 GiB), faults every page in and locks
    /// them if asked. Blocks while the kernel finds the memory.
    ///
    /// Errors: `Invalid` for a bad size, `NoSpace` without that much memory,
    /// `Denied` if locking it is not allowed.
    pub fn new(bytes: usize, lock: Lock) -> Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || u32::try_from(bytes).is_err() {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "I/O memory of {bytes} bytes: must be whole pages of {PAGE_BYTES}, above 0 and below 4 GiB"
                ),
            ));
        }
        let size = ByteLen(bytes as u64);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| {
            Error::new(Kind::NoSpace, format!("cannot map {size} of I/O memory")).with_source(errno)
        })?;
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::new(Kind::NoSpace, "the kernel mapped I/O memory at address 0"));
        };
        // From here on dropping the arena unmaps it.
        let arena = Self { base, bytes };
        // SAFETY: the range is the whole mapping just made; nothing else uses it.
        unsafe { rustix::mm::madvise(arena.start(), bytes, Advice::LinuxDontFork) }.map_err(
            |errno| {
                Error::new(Kind::Io, format!("cannot keep {size} of I/O memory out of children"))
                    .with_source(errno)
            },
        )?;
        if lock == Lock::Required {
            // SAFETY: as above. Locking also faults every page in.
            unsafe { rustix::mm::mlock(arena.start(), bytes) }
                .map_err(|errno| lock_refused(errno, &format!("{size} of I/O memory")))?;
        }
        // SAFETY: the whole mapping is ours and writable. Writing, not reading,
        // is what gives each page a frame of its own.
        unsafe { std::ptr::write_bytes(arena.base.as_ptr(), 0, bytes) };
        Ok(arena)
    }

    fn start(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    fn range(&self, at: u32, bytes: u32) -> *mut u8 {
        let end = at as usize + bytes as usize;
        assert!(end <= self.bytes, "[{at}, {end}) is outside {} bytes of I/O memory", self.bytes);
        // SAFETY: `at` is within the mapping, just checked.
        unsafe { self.base.as_ptr().add(at as usize) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; the owner of the last reference
        // made sure that no lane still uses it (a lane holds one).
        let unmapped = unsafe { rustix::mm::munmap(self.start(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

impl HostMemory for Arena {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn zero(&self, at: u32, bytes: u32) {
        // SAFETY: inside the mapping; the caller owns the range meanwhile.
        unsafe { std::ptr::write_bytes(self.range(at, bytes), 0, bytes as usize) };
    }

    fn crc32c(&self, at: u32, bytes: u32) -> u32 {
        // SAFETY: inside the mapping, initialised by `new`; the caller owns the
        // range meanwhile, so nobody writes it while the slice lives.
        let data = unsafe { std::slice::from_raw_parts(self.range(at, bytes), bytes as usize) };
        crc32c::crc32c(data)
    }

    fn is_all_ones(&self, at: u32, bytes: u32) -> bool {
        // SAFETY: as in `crc32c`.
        let data = unsafe { std::slice::from_raw_parts(self.range(at, bytes), bytes as usize) };
        data.iter().all(|byte| *byte == 0xff)
    }
}

/// RAM that the kernel could give out without swapping: `MemAvailable` of
/// `<root>/proc/meminfo`.
pub fn available_memory(root: &Path) -> Result<ByteLen> {
    let path = root.join("proc/meminfo");
    kb_field(&path, &read(&path)?, "MemAvailable").map(ByteLen)
}

/// Why `what` could not be locked, with the next step. Shared with
/// [`armour`](super::armour), whose `mlockall` fails for the same reasons.
pub(super) fn lock_refused(errno: Errno, what: &str) -> Error {
    let limit = getrlimit(Resource::Memlock)
        .current
        .map_or_else(|| "unlimited".to_owned(), |bytes| ByteLen(bytes).to_string());
    let (kind, hint) = match errno {
        // The kernel answers EPERM for a limit of 0 and ENOMEM for a larger one
        // that is too small; ENOMEM also when there is no memory at all.
        Errno::PERM | Errno::NOMEM => (
            if errno == Errno::PERM { Kind::Denied } else { Kind::NoSpace },
            "set LimitMEMLOCK=infinity for the unit or give it CAP_IPC_LOCK, and check MemAvailable",
        ),
        Errno::AGAIN => (Kind::NoSpace, "free some memory and start again"),
        _ => (Kind::Io, "check LimitMEMLOCK and CAP_IPC_LOCK of the unit"),
    };
    Error::new(kind, format!("cannot lock {what} in RAM (RLIMIT_MEMLOCK is {limit})"))
        .with_hint(hint)
        .with_source(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::without;
    use rustix::thread::CapabilitySet;

    fn fill(arena: &Arena, at: usize, data: &[u8]) {
        assert!(at + data.len() <= arena.bytes());
        // SAFETY: inside the mapping, and this test is its only user.
        unsafe { std::ptr::copy(data.as_ptr(), arena.base().add(at), data.len()) };
    }

    #[test]
    fn an_arena_is_page_aligned_zeroed_and_resident() {
        let arena = Arena::new(64 * PAGE_BYTES, Lock::None).unwrap();
        assert_eq!(arena.base() as usize % PAGE_BYTES, 0);
        assert_eq!(arena.bytes(), 64 * PAGE_BYTES);
        assert_eq!(arena.crc32c(0, 4096), crc32c::crc32c(&[0; 4096]));
        let mut resident = [0u8; 64];
        // SAFETY: one byte of room per page of the mapping asked about.
        let answer = unsafe { libc::mincore(arena.start(), arena.bytes(), resident.as_mut_ptr()) };
        assert_eq!(answer, 0);
        assert!(resident.iter().all(|page| page & 1 == 1), "{resident:?}");
    }

    #[test]
    fn checksums_and_zeroing_touch_exactly_their_range() {
        let arena = Arena::new(2 * PAGE_BYTES, Lock::None).unwrap();
        // The check value of CRC-32C (RFC 3720): "123456789".
        fill(&arena, 100, b"123456789");
        assert_eq!(arena.crc32c(100, 9), 0xE306_9283);
        fill(&arena, 99, b"x123456789y");
        arena.zero(100, 9);
        let mut expected = [0u8; 11];
        (expected[0], expected[10]) = (b'x', b'y');
        assert_eq!(arena.crc32c(99, 11), crc32c::crc32c(&expected));
        arena.zero(0, 2 * PAGE_BYTES as u32);
        assert_eq!(arena.crc32c(0, 8192), crc32c::crc32c(&[0; 8192]));
    }

    #[test]
    #[should_panic(expected = "outside 4096 bytes")]
    fn a_range_past_the_end_panics() {
        Arena::new(PAGE_BYTES, Lock::None).unwrap().zero(4095, 2);
    }

    #[test]
    #[should_panic(expected = "outside 4096 bytes")]
    fn a_range_that_overflows_thirty_two_bits_panics() {
        Arena::new(PAGE_BYTES, Lock::None).unwrap().crc32c(u32::MAX, u32::MAX);
    }

    #[test]
    fn sizes_that_are_not_whole_pages_below_four_gib_are_refused() {
        for bytes in [0, 1, PAGE_BYTES + 1, 1 << 32] {
            let error = Arena::new(bytes, Lock::None).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{bytes}");
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
    }

    #[test]
    fn a_required_lock_that_is_refused_says_what_to_raise() {
        without(CapabilitySet::IPC_LOCK, || {
            let limit = getrlimit(Resource::Memlock).current.expect("a limit to exceed");
            let bytes = (limit as usize).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
            let error = Arena::new(bytes, Lock::Required).unwrap_err();
            assert!(matches!(error.kind(), Kind::Denied | Kind::NoSpace), "{error:?}");
            assert!(error.hint().unwrap().contains("LimitMEMLOCK"));
            assert!(error.to_string().contains(&ByteLen(limit).to_string()), "{error}");
        });
    }

    #[test]
    fn a_locked_arena_shows_as_locked() {
        // One page is within every default limit, with or without privileges.
        let arena = Arena::new(PAGE_BYTES, Lock::Required).unwrap();
        let locked = std::fs::read_to_string("/proc/self/smaps")
            .unwrap()
            .lines()
            .skip_while(|line| !line.starts_with(&format!("{:x}-", arena.base() as usize)))
            .find(|line| line.starts_with("VmFlags:"))
            .expect("the arena has a mapping of its own: DONTFORK keeps it apart")
            .to_owned();
        assert!(locked.contains(" lo "), "locked: {locked}");
        assert!(locked.contains(" dc "), "not for children: {locked}");
    }
}
