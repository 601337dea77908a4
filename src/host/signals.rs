// SPDX-License-Identifier: MIT OR Apache-2.0
//! Termination signals as a descriptor, so that a loop can wait for them
//! beside everything else. Nothing runs in a signal handler.

use std::io::Error as IoError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::engine::error::{Error, Kind, Result};

/// SIGTERM and SIGINT, blocked for the process and readable here.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in the calling thread and those it starts later:
    /// call before the first thread.
    pub fn block() -> Result<Self> {
        let failed = |what: &str| {
            Error::new(Kind::Io, format!("cannot {what} termination signals"))
                .with_source(IoError::last_os_error())
        };
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set that the other calls use.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            set
        };
        // SAFETY: an initialised set; the old mask is not asked for.
        if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }
            != 0
        {
            return Err(failed("block"));
        }
        // SAFETY: an initialised set; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(failed("watch"));
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// True if a signal came since the last call.
    pub fn take(&self) -> bool {
        let mut came = false;
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: the buffer has the length given.
        while unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) } > 0 {
            came = true;
        }
        came
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
