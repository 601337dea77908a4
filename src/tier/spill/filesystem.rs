// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which filesystems may hold a spill file: those whose written blocks stay
//! where they are, on a disk of this machine, and that write by direct I/O
//! without asking anybody. All others are refused, the unknown included.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::space::io_error;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::PAGE_BYTES;

/// What to do instead where no file can be a spill.
const ELSEWHERE: &str = "use a partition, a logical volume, or a file on ext4 or xfs";

/// What is thought of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Blocks stay where they are.
    Full,
    /// Only for files with the attribute that forbids copying on write.
    WithoutCow,
    /// Why not, and what to do.
    None(&'static str, &'static str),
}

/// Name and trust by `statfs`'s type; numbers from linux/magic.h, those of zfs
/// and the cluster filesystems from their own sources.
pub(super) fn judge(kind: u32) -> (&'static str, Trust) {
    let memory = "keeps it in the memory that is to be relieved";
    let network = "needs memory and a network to write it";
    let moves = "moves blocks when they are written";
    match kind {
        0xef53 => ("ext4", Trust::Full),
        0x5846_5342 => ("xfs", Trust::Full),
        0x9123_683e => ("btrfs", Trust::WithoutCow),
        0x2fc1_2fc1 => ("zfs", Trust::None(moves, "use a partition, or a zvol")),
        0xca45_1a4e => ("bcachefs", Trust::None(moves, ELSEWHERE)),
        0xf2f5_2010 => ("f2fs", Trust::None(moves, ELSEWHERE)),
        0x3434 => ("nilfs2", Trust::None(moves, ELSEWHERE)),
        0x0102_1994 => ("tmpfs", Trust::None(memory, ELSEWHERE)),
        0x8584_58f6 => ("ramfs", Trust::None(memory, ELSEWHERE)),
        0x794c_7630 => (
            "overlayfs",
            Trust::None("does not say where it keeps it", "name the file on the disk below it"),
        ),
        0x6969 => ("nfs", Trust::None(network, ELSEWHERE)),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => ("cifs", Trust::None(network, ELSEWHERE)),
        0x00c3_6400 => ("ceph", Trust::None(network, ELSEWHERE)),
        0x5346_414f | 0x6b41_4653 => ("afs", Trust::None(network, ELSEWHERE)),
        0x0116_1970 => ("gfs2", Trust::None(network, ELSEWHERE)),
        0x7461_636f => ("ocfs2", Trust::None(network, ELSEWHERE)),
        0x0102_1997 => ("9p", Trust::None("needs memory and a peer to write it", ELSEWHERE)),
        0x6573_5546 => ("fuse", Trust::None("needs another process to write it", ELSEWHERE)),
        _ => ("unknown", Trust::None("was never tried with a spill", ELSEWHERE)),
    }
}

/// The filesystem that an open file or folder lies on, or why no spill may.
pub(super) fn check(file: &File, path: &Path) -> Result<(&'static str, Trust)> {
    let mut facts = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs fills the structure when it returns 0.
    let facts = unsafe {
        if libc::fstatfs(file.as_raw_fd(), facts.as_mut_ptr()) != 0 {
            return Err(io_error(path, "stat the filesystem of", std::io::Error::last_os_error()));
        }
        facts.assume_init()
    };
    let kind = facts.f_type.cast_unsigned() as u32;
    let (name, trust) = judge(kind);
    let name_or_number =
        if name == "unknown" { format!("filesystem type {kind:#x}") } else { name.to_owned() };
    match trust {
        Trust::None(why, next) => Err(Error::new(
            Kind::Invalid,
            format!("spill {}: {name_or_number} {why}", path.display()),
        )
        .with_hint(next)),
        trust => Ok((name, trust)),
    }
}

/// Attributes of a file (`FS_*_FL`, linux/fs.h).
const COMPRESSED: u32 = 0x4;
const APPEND_ONLY: u32 = 0x20;
const ENCRYPTED: u32 = 0x800;
const JOURNALED: u32 = 0x4000;
const VERITY: u32 = 0x0010_0000;
const NO_COW: u32 = 0x0080_0000;
const INLINE: u32 = 0x1000_0000;

/// The file's attributes; `None` where the filesystem has none.
pub(super) fn attributes(file: &File) -> Option<u32> {
    // FS_IOC_GETFLAGS, linux/fs.h: _IOR('f', 1, long); the kernel stores an int.
    const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
    let mut flags: libc::c_long = 0;
    // SAFETY: the ioctl stores an int where the pointer says; a long is there.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS, &raw mut flags) };
    (answer == 0).then_some(flags.cast_unsigned() as u32)
}

/// Forbids copying on write, before the first byte is written.
pub(super) fn forbid_cow(file: &File, path: &Path) -> Result<()> {
    // FS_IOC_SETFLAGS, linux/fs.h: _IOW('f', 2, long); the kernel reads an int.
    const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
    let flags = libc::c_long::from(attributes(file).unwrap_or(0) | NO_COW);
    // SAFETY: the ioctl reads an int where the pointer says; a long is there.
    if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS, &raw const flags) } != 0 {
        return Err(io_error(path, "forbid copying on write of", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Refuses a file whose attributes make a write more than a write.
pub(super) fn check_attributes(flags: u32, trust: Trust) -> std::result::Result<(), &'static str> {
    let unfit = [
        (COMPRESSED, "is compressed: a write may need another block"),
        (APPEND_ONLY, "may only be appended to"),
        (ENCRYPTED, "is encrypted by its filesystem, which needs memory to write it"),
        (JOURNALED, "has its data journaled, which goes through the page cache"),
        (VERITY, "is sealed by fs-verity"),
        (INLINE, "lies inside its inode"),
    ];
    if let Some((_, why)) = unfit.iter().find(|(flag, _)| flags & flag != 0) {
        return Err(why);
    }
    if trust == Trust::WithoutCow && flags & NO_COW == 0 {
        return Err("is copied on write: each write needs a new block");
    }
    Ok(())
}

/// Refuses a file that the filesystem would write through the page cache, or in
/// larger units than a page, direct I/O or not. Kernels before 6.1 do not say.
pub(super) fn check_direct(file: &File, path: &Path) -> Result<()> {
    let mut facts = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: statx fills the structure when it returns 0; zeros are valid in it.
    let (answer, facts) = unsafe {
        let answer = libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            facts.as_mut_ptr(),
        );
        (answer, facts.assume_init())
    };
    if answer != 0 || facts.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(());
    }
    let unit = facts.stx_dio_offset_align;
    if unit != 0 && unit as usize <= PAGE_BYTES {
        return Ok(());
    }
    let why = if unit == 0 {
        "no direct I/O to it; it would be written through the page cache".to_owned()
    } else {
        format!("direct I/O in units of {unit} bytes; a page has {PAGE_BYTES}")
    };
    Err(Error::new(Kind::Invalid, format!("spill {}: {why}", path.display()))
        .with_hint("mount its filesystem without data=journal and encryption, or use a partition"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_filesystems_whose_blocks_stay_are_trusted() {
        assert_eq!(judge(0xef53), ("ext4", Trust::Full));
        assert_eq!(judge(0x5846_5342), ("xfs", Trust::Full));
        assert_eq!(judge(0x9123_683e), ("btrfs", Trust::WithoutCow));
        for kind in [
            0x0102_1994,
            0x8584_58f6,
            0x6969,
            0xff53_4d42,
            0x0102_1997,
            0x6573_5546,
            0x794c_7630,
            0x2fc1_2fc1,
            0x1234,
        ] {
            assert!(matches!(judge(kind).1, Trust::None(..)), "{kind:#x}");
        }
    }

    #[test]
    fn attributes_that_make_a_write_more_than_a_write_are_refused() {
        assert_eq!(check_attributes(0, Trust::Full), Ok(()));
        assert!(check_attributes(0, Trust::WithoutCow).is_err_and(|why| why.contains("copied")));
        assert_eq!(check_attributes(NO_COW, Trust::WithoutCow), Ok(()));
        for flag in [COMPRESSED, APPEND_ONLY, ENCRYPTED, JOURNALED, VERITY, INLINE] {
            assert!(check_attributes(NO_COW | flag, Trust::WithoutCow).is_err(), "{flag:#x}");
        }
    }
}
