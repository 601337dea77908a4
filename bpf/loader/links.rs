// SPDX-License-Identifier: GPL-2.0-only
//! BPF links of struct-ops maps, and the values that such maps are given.
//!
//! libbpf's own `bpf_map__attach_struct_ops` cannot take the place of a link
//! that another process made, so both steps are done here: the map gets its
//! value (program descriptors in the place of functions), then a link is made
//! from it, or an existing link is moved to it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// In a struct-ops map's value the ops begin at the first cache line behind
/// the kernel's own two words.
const OPS_OFFSET: usize = 64;

/// Writes the ops into a struct-ops map, after which it can be linked.
///
/// The kernel runs the module's own checks here.
pub fn fill(map: BorrowedFd<'_>, value_size: usize, ops: &[u8]) -> io::Result<()> {
    if OPS_OFFSET + ops.len() > value_size {
        return Err(io::Error::other(format!(
            "the module's value has {value_size} bytes, the policy's {}",
            OPS_OFFSET + ops.len()
        )));
    }
    let mut value = vec![0u8; value_size];
    value[OPS_OFFSET..OPS_OFFSET + ops.len()].copy_from_slice(ops);
    let key = 0u32;
    // SAFETY: key and value have the sizes that the map was made with.
    let done = unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_ptr().cast(),
            0,
        )
    };
    result(done).map(|_| ())
}

/// Attaches what a filled map holds, for as long as the link exists.
pub fn create(map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: no options are given; the descriptors are numbers.
    let fd = result(unsafe {
        libbpf_sys::bpf_link_create(map.as_raw_fd(), 0, libbpf_sys::BPF_STRUCT_OPS, ptr::null())
    })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has a link hold another filled map.
pub fn update(link: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no options are given; the descriptors are numbers.
    let done =
        unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), map.as_raw_fd(), ptr::null()) };
    result(done).map(|_| ())
}

/// Gives a link a name in the BPF file system, which keeps it.
pub fn pin(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte and outlives the call.
    result(unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) }).map(|_| ())
}

/// Opens a pinned link.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte and outlives the call.
    let fd = result(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes off what a link attached, before this returns; the link stays, empty.
///
/// Closing the last descriptor or removing the pin does it too, but the kernel
/// may do that later, on a thread of its own.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is a number.
    result(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }).map(|_| ())
}

fn result(code: i32) -> io::Result<i32> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code) }
}
