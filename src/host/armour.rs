// SPDX-License-Identifier: MIT OR Apache-2.0
//! What keeps the store from waiting for itself: a process that serves swap
//! must never need the memory that only it can free.
//!
//! In the order in which a store calls them, all before the device is armed:
//! [`set_io_flusher`] (before the first thread and the GPU library),
//! [`set_oom_score_adj`], [`raise_nofile`], [`lock_all_memory`], on each I/O
//! thread [`touch_stack`] and [`set_realtime_fifo`], and last, with every thread
//! running, [`verify_io_flusher_on_all_threads`]. Locks do not survive a fork;
//! the I/O-flusher flag, the OOM score and limits survive fork and exec.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::memory::lock_refused;
use super::sysfs::{kb_field, read, read_number};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES};

/// How much of this process the kernel may not move out of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Locked address space, resident or not.
    pub locked: ByteLen,
    /// Resident anonymous memory: what swap would take.
    pub anonymous: ByteLen,
    /// What swap has taken already.
    pub swapped: ByteLen,
    /// All that is resident: what the process costs the machine.
    pub resident: ByteLen,
    /// Pinned by drivers, for transfers.
    pub pinned: ByteLen,
}

/// Locks everything this process has mapped and will ever map, and checks that
/// the kernel agrees. Blocks while pages are faulted in.
///
/// Errors: `Denied` or `NoSpace` if refused. Do not arm a device then.
pub fn lock_all_memory(root: &Path) -> Result<LockedMemory> {
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(|errno| lock_refused(errno, "all memory of the store"))?;
    verify_locked_memory(root)
}

/// Locks what this process has mapped now, and not what it maps later.
///
/// Errors: as [`lock_all_memory`].
pub fn lock_present_memory() -> Result<()> {
    rustix::mm::mlockall(MlockAllFlags::CURRENT)
        .map_err(|errno| lock_refused(errno, "the memory of this process"))
}

/// Free memory of the machine above which an allocation finds a page at once,
/// without anybody having to give one up: twice `vm.min_free_kbytes`, for the
/// kernel begins to look for more at one and a half of it, and a little.
pub fn free_memory_floor(root: &Path) -> Result<u64> {
    let kib = read_number(&root.join("proc/sys/vm/min_free_kbytes"))?;
    Ok(kib.saturating_mul(2 << 10).saturating_add(4 << 20))
}

/// Reads `/proc/self/status` and refuses a process with swapped-out or unlocked
/// memory (for example a forked child, which inherits no locks).
pub fn verify_locked_memory(root: &Path) -> Result<LockedMemory> {
    let path = root.join("proc/self/status");
    let text = read(&path)?;
    let field = |name| kb_field(&path, &text, name).map(ByteLen);
    let memory = LockedMemory {
        locked: field("VmLck")?,
        anonymous: field("RssAnon")?,
        swapped: field("VmSwap")?,
        resident: field("VmRSS")?,
        pinned: field("VmPin")?,
    };
    if memory.swapped > ByteLen(0) {
        return Err(Error::new(
            Kind::Denied,
            format!("{} of the store's memory is in swap although it is locked", memory.swapped),
        )
        .with_hint("set MemorySwapMax=0 for the unit, free some memory and start again"));
    }
    if memory.locked < memory.anonymous {
        return Err(Error::new(
            Kind::Denied,
            format!(
                "only {} of {} of the store's memory is locked",
                memory.locked, memory.anonymous
            ),
        )
        .with_hint("lock after the last fork: a child inherits no locks"));
    }
    Ok(memory)
}

/// Marks the calling thread, and every thread and child it starts later, as one
/// that I/O waits for: its allocations never start I/O (`prctl(2)`,
/// `PR_SET_IO_FLUSHER`, since Linux 5.6).
///
/// Errors: `Denied` without `CAP_SYS_RESOURCE`, `Missing` on an older kernel.
pub fn set_io_flusher() -> Result<()> {
    configure_io_flusher(true)
}

/// Takes the mark off again: for a disposable process that must be able to
/// reclaim memory, such as the one that runs `swapoff`.
pub fn clear_io_flusher() -> Result<()> {
    configure_io_flusher(false)
}

fn configure_io_flusher(enable: bool) -> Result<()> {
    rustix::process::configure_io_flusher_behavior(enable).map_err(|errno| {
        let what = format!("cannot set PR_SET_IO_FLUSHER to {}", u8::from(enable));
        match errno {
            Errno::PERM => Error::new(Kind::Denied, what)
                .with_hint("give the unit CAP_SYS_RESOURCE (CapabilityBoundingSet=)"),
            Errno::INVAL => Error::new(Kind::Missing, what).with_hint("needs Linux 5.6 or newer"),
            _ => Error::new(Kind::Io, what),
        }
        .with_source(errno)
    })
}

/// `PF_MEMALLOC_NOIO | PF_LOCAL_THROTTLE` of `include/linux/sched.h`: together
/// they are the kernel's `PR_IO_FLUSHER` (`kernel/sys.c`). Values as in 5.6 to 6.18.
const IO_FLUSHER_FLAGS: u64 = 0x0008_0000 | 0x0010_0000;

/// Checks every thread of this process, those that libraries started included,
/// and returns how many there are.
///
/// Errors: `Denied`, naming each thread without the mark. Such a thread was
/// started before [`set_io_flusher`], or something cleared its mark.
pub fn verify_io_flusher_on_all_threads(root: &Path) -> Result<usize> {
    let tasks = root.join("proc/self/task");
    let unreadable = |error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot list threads in {}", tasks.display()))
            .with_source(error)
    };
    let mut marked = 0;
    let mut bare = Vec::new();
    for task in fs::read_dir(&tasks).map_err(unreadable)? {
        let task = task.map_err(unreadable)?;
        let path = task.path().join("stat");
        let stat = match fs::read(&path) {
            Ok(stat) => String::from_utf8_lossy(&stat).into_owned(),
            // The thread ended between the listing and now.
            Err(error) if gone(&error) => continue,
            Err(error) => {
                return Err(Error::new(Kind::Io, format!("cannot read {}", path.display()))
                    .with_source(error));
            }
        };
        let (name, flags) = name_and_flags(&stat).ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{}: no thread flags in {stat:?}", path.display()))
        })?;
        if flags & IO_FLUSHER_FLAGS == IO_FLUSHER_FLAGS {
            marked += 1;
        } else {
            bare.push(format!("{} ({name})", task.file_name().display()));
        }
    }
    if bare.is_empty() && marked > 0 {
        return Ok(marked);
    }
    if bare.is_empty() {
        return Err(Error::new(Kind::Protocol, format!("{} lists no thread", tasks.display())));
    }
    bare.sort();
    Err(Error::new(Kind::Denied, format!("threads without PR_SET_IO_FLUSHER: {}", bare.join(", ")))
        .with_hint("set it before the first thread and before the GPU library is loaded"))
}

fn gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The name and the flags (field 9 of proc(5)) in `/proc/PID/task/TID/stat`.
/// The name may hold spaces and parentheses, so the last `)` ends it.
fn name_and_flags(stat: &str) -> Option<(&str, u64)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_tid, name) = head.split_once('(')?;
    // After the name: state, ppid, pgrp, session, tty, tpgid, flags.
    Some((name, rest.split_ascii_whitespace().nth(6)?.parse().ok()?))
}

/// Runs the calling thread at `SCHED_FIFO` with `priority` (1 to 99) and reads
/// that back. Real-time tasks may dip into the kernel's memory reserves, and no
/// ordinary task keeps them from the CPU.
///
/// Errors: `Denied` without `CAP_SYS_NICE` or a big enough `RLIMIT_RTPRIO`,
/// `Invalid` for a priority out of range.
pub fn set_realtime_fifo(priority: i32) -> Result<()> {
    let what = || format!("cannot run a thread at SCHED_FIFO priority {priority}");
    let wanted = libc::sched_param { sched_priority: priority };
    // SAFETY: pid 0 is the calling thread; the parameter outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wanted) } != 0 {
        let error = std::io::Error::last_os_error();
        let (kind, hint) = match error.raw_os_error() {
            Some(libc::EPERM) => (
                Kind::Denied,
                "give the unit CAP_SYS_NICE or LimitRTPRIO=1; a cgroup with no real-time budget refuses too",
            ),
            Some(libc::EINVAL) => (Kind::Invalid, "use a priority from 1 to 99"),
            _ => (Kind::Io, "check RestrictRealtime= of the unit"),
        };
        return Err(Error::new(kind, what()).with_hint(hint).with_source(error));
    }
    let mut found = libc::sched_param { sched_priority: 0 };
    // SAFETY: as above, with room for the answer. Both are plain system calls,
    // unlike pthread_getschedparam, which answers from a cache.
    let policy = unsafe {
        libc::sched_getparam(0, &raw mut found);
        libc::sched_getscheduler(0)
    };
    if (policy, found.sched_priority) != (libc::SCHED_FIFO, priority) {
        return Err(Error::new(
            Kind::Io,
            format!("{}: policy {policy} priority {} is in force", what(), found.sched_priority),
        ));
    }
    Ok(())
}

/// Runs the calling thread as an ordinary one again.
pub fn set_ordinary_scheduling() -> Result<()> {
    schedule(libc::SCHED_OTHER, 0, "leave real-time scheduling")
}

/// Runs the calling thread at `SCHED_FIFO`, and those that it starts as ordinary
/// ones.
pub fn set_realtime_alone() -> Result<()> {
    schedule(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1, "be the only real-time thread")
}

fn schedule(policy: i32, priority: i32, what: &str) -> Result<()> {
    let wanted = libc::sched_param { sched_priority: priority };
    // SAFETY: pid 0 is the calling thread; the parameter outlives the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const wanted) } != 0 {
        let cause = std::io::Error::last_os_error();
        return Err(Error::new(Kind::Denied, format!("a thread cannot {what}"))
            .with_hint("give the unit CAP_SYS_NICE")
            .with_source(cause));
    }
    Ok(())
}

/// Names the calling process, as `ps` and `pgrep` show it.
pub fn set_name(name: &std::ffi::CStr) {
    // A name that is too long is cut; nothing depends on it.
    let _ = rustix::thread::set_name(name);
}

/// Sets this process's OOM score adjustment (-1000: never chosen) and reads it
/// back.
///
/// Errors: `Denied` without `CAP_SYS_RESOURCE` when lowering it.
pub fn set_oom_score_adj(root: &Path, adjustment: i16) -> Result<()> {
    let path = root.join("proc/self/oom_score_adj");
    fs::write(&path, adjustment.to_string()).map_err(|error| {
        let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let kind = if denied { Kind::Denied } else { Kind::Io };
        Error::new(kind, format!("cannot write {adjustment} to {}", path.display()))
            .with_hint(format!(
                "set OOMScoreAdjust={adjustment} for the unit, or give it CAP_SYS_RESOURCE"
            ))
            .with_source(error)
    })?;
    let found = read(&path)?;
    if found.trim().parse() != Ok(adjustment) {
        return Err(Error::new(
            Kind::Io,
            format!("{} is {} after writing {adjustment}", path.display(), found.trim()),
        ));
    }
    Ok(())
}

/// Raises the soft limit of open files to the hard one and returns it.
///
/// Errors: `NoSpace` if that is below `needed`.
pub fn raise_nofile(needed: u64) -> Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(|errno| {
        Error::new(Kind::Denied, format!("cannot raise the limit of open files to {maximum:?}"))
            .with_source(errno)
    })?;
    // No limit: the kernel's own fs.nr_open applies, far above any need of ours.
    let files = maximum.unwrap_or(u64::MAX);
    if files < needed {
        return Err(Error::new(
            Kind::NoSpace,
            format!("{needed} open files are needed, the limit is {files}"),
        )
        .with_hint(format!("set LimitNOFILE={needed} for the unit")));
    }
    Ok(files)
}

/// Faults in the next `bytes` of the calling thread's stack, so that no later
/// call on it allocates a page.
///
/// Errors: `Invalid` if the stack has less than that (and a reserve) left.
pub fn touch_stack(bytes: usize) -> Result<()> {
    /// Left alone below the touched part: for this function's own callees.
    const RESERVE: usize = 16 * 1024;
    let left = stack_left()?;
    if bytes.saturating_add(RESERVE) > left {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "cannot touch {} of stack: {} are left of this thread's",
                ByteLen(bytes as u64),
                ByteLen(left as u64)
            ),
        )
        .with_hint("start the thread with a larger stack (LimitSTACK= for the main thread)"));
    }
    let here = 0u8;
    touch_down_to((&raw const here as usize).saturating_sub(bytes));
    Ok(())
}

/// Recurses, a page a frame, until a frame lies below `address`.
#[inline(never)]
fn touch_down_to(address: usize) {
    let frame = black_box([0u8; PAGE_BYTES]);
    if (&raw const frame as usize) > address {
        touch_down_to(address);
    }
    // Used after the call, so that the compiler can't turn it into a loop.
    black_box(&frame);
}

/// Bytes between here and the end of the calling thread's stack.
fn stack_left() -> Result<usize> {
    let failed = |code: i32| {
        Error::new(Kind::Io, "cannot find this thread's stack")
            .with_source(std::io::Error::from_raw_os_error(code))
    };
    let mut low = std::ptr::null_mut();
    let mut bytes = 0;
    // SAFETY: the attributes are initialised by pthread_getattr_np for a live
    // thread (the caller), read once and destroyed.
    let code = unsafe {
        let mut attributes = std::mem::zeroed();
        match libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) {
            0 => {
                let code = libc::pthread_attr_getstack(
                    &raw const attributes,
                    &raw mut low,
                    &raw mut bytes,
                );
                libc::pthread_attr_destroy(&raw mut attributes);
                code
            }
            code => code,
        }
    };
    if code != 0 {
        return Err(failed(code));
    }
    let here = 0u8;
    Ok((&raw const here as usize).saturating_sub(low as usize))
}

#[cfg(test)]
mod tests;
