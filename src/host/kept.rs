// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and memory that a process keeps in RAM for another one: mapped to be
//! read, locked, never looked at. And memory kept free for it. Nothing here
//! allocates; errors are the kernel's numbers.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping that keeps its pages in RAM; unmapped when dropped.
#[derive(Debug)]
pub struct Locked {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping is owned and never read or written through.
unsafe impl Send for Locked {}

impl Locked {
    /// Maps the first `bytes` of a file or of shared memory and locks them, read
    /// in if they were not there. Waits for that.
    pub fn map(file: BorrowedFd<'_>, bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::INVAL)?;
        // SAFETY: a fresh mapping that nothing is read from or written to, at an
        // address of the kernel's choice.
        unsafe {
            let base =
                rustix::mm::mmap(null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)?;
            let locked = Self { base, bytes };
            rustix::mm::mlock(base, bytes)?;
            Ok(locked)
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody has a reference into.
        let _ = unsafe { rustix::mm::munmap(self.base, self.bytes) };
    }
}

/// Memory held only to be given away when another process needs it at once.
#[derive(Debug)]
pub struct Reserve {
    base: *mut c_void,
    /// How much it can ever hold.
    room: usize,
    /// How much it should hold.
    wanted: usize,
    held: usize,
    /// Free memory of the machine below which nothing is taken.
    floor: u64,
}

// SAFETY: the mapping is owned and never read or written through.
unsafe impl Send for Reserve {}

/// What is taken at once: short, for whoever takes it has other things to do.
const STEP: usize = 1 << 20;
impl Reserve {
    /// Room for `bytes`, whole mebibytes; nothing is held yet, and nothing is taken
    /// while the machine has less than `floor` bytes free. Call after `mlockall`,
    /// without `MCL_FUTURE`.
    pub fn new(bytes: usize, floor: u64) -> Result<Self> {
        let room = bytes.next_multiple_of(STEP);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(null_mut(), room, access, flags)?
        };
        Ok(Self { base, room, wanted: 0, held: 0, floor })
    }

    /// How much it should hold from now on; as much as there is room for.
    pub fn want(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(self.room).min(self.room);
        self.wanted = bytes.next_multiple_of(STEP).min(self.room);
    }

    /// True while it holds less than it should.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.held < self.wanted
    }

    /// Bytes held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes one step, if the machine has so much free that nobody has to give
    /// up anything for it: whoever waits here for memory does not watch.
    pub fn grow(&mut self) -> Result<()> {
        let machine = rustix::system::sysinfo();
        let free = machine.freeram.saturating_mul(u64::from(machine.mem_unit));
        if !self.is_short() || free < self.floor {
            return Ok(());
        }
        // SAFETY: within our own mapping.
        unsafe { rustix::mm::mlock(self.base.byte_add(self.held), STEP) }?;
        self.held += STEP;
        Ok(())
    }

    /// Gives everything back to the machine, at once.
    pub fn release(&mut self) {
        // SAFETY: our own mapping, whose contents nobody needs.
        unsafe {
            let _ = rustix::mm::munlock(self.base, self.room);
            let _ = rustix::mm::madvise(self.base, self.room, Advice::LinuxDontNeed);
        }
        self.held = 0;
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody has a reference into.
        let _ = unsafe { rustix::mm::munmap(self.base, self.room) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn locked_kib(base: *mut c_void) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        maps.lines()
            .skip_while(|line| !line.starts_with(&format!("{:x}-", base as usize)))
            .find_map(|line| line.strip_prefix("Locked:"))
            .map_or(0, |kib| kib.trim().trim_end_matches(" kB").parse().unwrap())
    }

    #[test]
    fn a_kept_file_is_locked_until_it_is_let_go() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16384).unwrap();
        let kept = Locked::map(file.as_fd(), 16384).unwrap();
        let base = kept.base;
        assert_eq!(locked_kib(base), 16);
        drop(kept);
        assert_eq!(locked_kib(base), 0);
        assert_eq!(Locked::map(file.as_fd(), 0).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn a_reserve_grows_to_what_is_wanted_and_is_given_away_whole() {
        let mut reserve = Reserve::new(3 * STEP, 0).unwrap();
        reserve.want(1);
        for _ in 0..4 {
            reserve.grow().unwrap();
        }
        assert_eq!((reserve.held(), reserve.is_short()), (STEP, false));
        assert_eq!(locked_kib(reserve.base), 1024);
        reserve.want(u64::MAX);
        while reserve.is_short() {
            reserve.grow().unwrap();
        }
        assert_eq!(reserve.held(), 3 * STEP);
        reserve.floor = u64::MAX;
        reserve.release();
        reserve.grow().unwrap();
        assert_eq!((reserve.held(), reserve.is_short()), (0, true));
        assert_eq!(locked_kib(reserve.base), 0);
    }
}
