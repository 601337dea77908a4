// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scatter/gather on a stream socket, never waiting, never raising SIGPIPE.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::engine::tier::HostMemory;

/// A piece of memory for one scatter/gather call.
pub(super) type Piece = libc::iovec;

/// A piece that is not used.
pub(super) const NOTHING: Piece = Piece { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The address of `bytes` bytes of host memory from `at` on.
///
/// # Panics
/// When the range is not inside the memory: whoever reserved it broke its contract.
pub(super) fn host_range(memory: &Arc<dyn HostMemory>, at: u32, bytes: u32) -> *mut u8 {
    let end = at as usize + bytes as usize;
    assert!(end <= memory.bytes(), "ticket range {at}+{bytes} is outside its host memory");
    // SAFETY: `at` is within the allocation that `base` starts, as just checked.
    unsafe { memory.base().add(at as usize) }
}

/// Receives what is there into `pieces`, in order. `Ok(0)` is the end of the stream.
///
/// # Safety
/// Until the call returns, every piece is memory that the caller may write to
/// and nobody else touches.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, pieces: &mut [Piece]) -> Result<usize, Errno> {
    let mut message = message(pieces);
    // SAFETY: `message` describes `pieces`, whose memory the caller vouches for.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    outcome(count)
}

/// Sends as much of `pieces`, in order, as the socket takes.
///
/// # Safety
/// Until the call returns, every piece is initialised memory that nobody writes to.
pub(super) unsafe fn send(socket: BorrowedFd<'_>, pieces: &mut [Piece]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let message = message(pieces);
    // SAFETY: `message` describes `pieces`, whose memory the caller vouches for.
    let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    outcome(count)
}

fn message(pieces: &mut [Piece]) -> libc::msghdr {
    // SAFETY: all zeros is a valid msghdr: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    message
}

fn outcome(count: isize) -> Result<usize, Errno> {
    usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
