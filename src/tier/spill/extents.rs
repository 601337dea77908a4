// SPDX-License-Identifier: MIT OR Apache-2.0
//! The blocks of a file, read from the filesystem's extent map (FIEMAP,
//! linux/fiemap.h): every one must be allocated, written and the file's alone,
//! so that a write never makes the filesystem allocate.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::space::io_error;
use crate::engine::error::{Error, Kind, Result};

/// Flags of an extent that can be no spill, and what they mean.
const UNFIT: [(u32, &str); 7] = [
    (0x800, "allocated but not written"),
    (0x2000, "shared with another file or a snapshot"),
    (0x8, "compressed or encrypted"),
    (0x4, "not allocated yet"),
    (0x2, "at no known place"),
    (0x200, "inside the inode"),
    (0x400, "packed with others into one block"),
];
const LAST: u32 = 0x1;

/// Walks the map; gives the number of extents.
pub(super) fn check(file: &File, path: &Path, bytes: u64) -> Result<u64> {
    // A request of 32 bytes, then 56 bytes per extent.
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    const EXTENTS: usize = 64;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))?;
    let mut map = [0u64; 4 + 7 * EXTENTS];
    let (mut at, mut count) = (0, 0);
    while at < bytes {
        map.fill(0);
        map[0] = at;
        map[1] = bytes - at;
        map[3] = EXTENTS as u64;
        // SAFETY: the buffer has the layout and room that the request states.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, map.as_mut_ptr()) } != 0 {
            return Err(io_error(path, "map the blocks of", std::io::Error::last_os_error())
                .with_hint("use a partition, or a file on ext4 or xfs"));
        }
        let mapped = (map[2] >> 32) as usize;
        if mapped == 0 {
            return Err(refusal(path, at, "a hole"));
        }
        for extent in map[4..].chunks_exact(7).take(mapped) {
            let (logical, length, flags) = (extent[0], extent[2], extent[5] as u32);
            if logical > at || length == 0 {
                return Err(refusal(path, at, "a hole"));
            }
            if let Some((_, what)) = UNFIT.iter().find(|(flag, _)| flags & flag != 0) {
                return Err(refusal(path, at, what));
            }
            count += 1;
            at = logical + length;
            if flags & LAST != 0 && at < bytes {
                return Err(refusal(path, at, "a hole"));
            }
        }
    }
    Ok(count)
}

fn refusal(path: &Path, at: u64, what: &str) -> Error {
    let path = path.display();
    Error::new(Kind::Invalid, format!("spill {path}: byte {at} is {what}")).with_hint(format!(
        "have it written in full: rm {path}; sluice spill create {path} --size SIZE, with the \
         swap's size"
    ))
}
