// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals as a descriptor, so that a loop can wait for them
//! beside everything else. Nothing runs in a signal handler.

use std::io::Error as IoError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::engine::error::{Error, Kind, Result};

/// Every signal that can be blocked, blocked for the process and readable here,
/// but for those that a fault of the program itself raises.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in the calling thread and those it starts later:
    /// call before the first thread.
    pub fn block() -> Result<Self> {
        let failed = |what: &str| {
            Error::new(Kind::Io, format!("cannot {what} signals"))
                .with_source(IoError::last_os_error())
        };
        let set = asynchronous();
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

    /// True if one came since the last call that asks for the end: TERM, INT, HUP
    /// or QUIT. All others are swallowed.
    pub fn take(&self) -> bool {
        let heard = self.heard();
        heard.end || heard.hang_up
    }

    /// What came since the last call, told apart.
    pub fn heard(&self) -> Heard {
        let mut heard = Heard::default();
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the length given; a full read initialises it.
        while unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), bytes) }
            == bytes.cast_signed()
        {
            // SAFETY: initialised by the read just above.
            let signal = unsafe { info.assume_init_ref() }.ssi_signo.cast_signed();
            heard.end |= matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGQUIT);
            heard.hang_up |= signal == libc::SIGHUP;
        }
        heard
    }
}

/// What signals asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The end: TERM, INT or QUIT.
    pub end: bool,
    /// HUP: begin anew with what is there now.
    pub hang_up: bool,
}

/// Lets all signals through again: for a child, which inherits the mask.
pub fn unblock() {
    let set = asynchronous();
    // SAFETY: an initialised set; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

/// All signals but those that a fault of the program itself raises.
fn asynchronous() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that the other calls change.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for fault in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
            libc::SIGABRT,
            libc::SIGTRAP,
            libc::SIGSYS,
        ] {
            libc::sigdelset(&raw mut set, fault);
        }
        set
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
