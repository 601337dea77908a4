// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a spill: which space may be one, and making it ours. Whatever could
//! make a later write fail, wait or land elsewhere is refused here.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::HEADER_BYTES;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES, SLAB_BYTES};

/// What our header page begins with.
const MAGIC: &[u8; 16] = b"SLUICE-SPILL-1\n\0";

/// Opens `path` for direct I/O, checks that it can be a spill, and claims it.
/// Gives the whole slabs that fit.
pub(super) fn open(path: &Path) -> Result<(File, u32)> {
    let file = open_direct(path)?;
    let data = file.metadata().map_err(|cause| io_error(path, "stat", cause))?;
    let bytes = if data.file_type().is_block_device() {
        block_device_bytes(&file, path)?
    } else {
        check_filesystem(&file, path)?;
        lock_file(&file, path)?;
        check_extents(&file, path, data.len())?;
        data.len()
    };
    let slabs = bytes.saturating_sub(HEADER_BYTES) / SLAB_BYTES as u64;
    if slabs == 0 {
        let least = ByteLen(HEADER_BYTES + SLAB_BYTES as u64);
        return Err(Error::new(
            Kind::NoSpace,
            format!("spill {}: {} is less than {least}", path.display(), ByteLen(bytes)),
        ));
    }
    claim(&file, path)?;
    // More slabs than a u32 counts would be more than a device can have.
    Ok((file, u32::try_from(slabs).unwrap_or(u32::MAX)))
}

pub(super) fn io_error(path: &Path, what: &str, cause: std::io::Error) -> Error {
    let kind = match cause.raw_os_error() {
        Some(libc::ENOENT) => Kind::Missing,
        Some(libc::EACCES | libc::EPERM) => Kind::Denied,
        Some(libc::EBUSY | libc::ETXTBSY) => Kind::Busy,
        _ => Kind::Io,
    };
    Error::new(kind, format!("spill {}: cannot {what} it", path.display())).with_source(cause)
}

fn not_a_store(path: &Path) -> Error {
    let what = format!("spill {}: neither a block device nor a file", path.display());
    Error::new(Kind::Invalid, what).with_hint("name a partition, a logical volume or a file")
}

fn open_direct(path: &Path) -> Result<File> {
    let kind = std::fs::metadata(path).map_err(|cause| io_error(path, "open", cause))?.file_type();
    let is_block = kind.is_block_device();
    if !is_block && !kind.is_file() {
        return Err(not_a_store(path));
    }
    // O_EXCL without O_CREAT: on a block device, refuse one that is in use.
    let exclusive = if is_block { libc::O_EXCL } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive)
        .open(path)
        .map_err(|cause| match cause.raw_os_error() {
            Some(libc::EBUSY | libc::ETXTBSY) => io_error(path, "open", cause).with_hint(
                "it is mounted, used as swap, or held by another store; name a free partition",
            ),
            Some(libc::EINVAL) => io_error(path, "open", cause)
                .with_hint("its filesystem has no direct I/O; use a partition, ext4 or xfs"),
            _ => io_error(path, "open", cause),
        })
}

fn block_device_bytes(file: &File, path: &Path) -> Result<u64> {
    // BLKGETSIZE64, linux/fs.h: _IOR(0x12, 114, size_t).
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut bytes = 0u64;
    // SAFETY: the ioctl stores one u64 where the pointer says.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } != 0 {
        return Err(io_error(path, "size", std::io::Error::last_os_error()));
    }
    Ok(bytes)
}

/// Refuses filesystems whose files move, live in memory, or live elsewhere.
fn check_filesystem(file: &File, path: &Path) -> Result<()> {
    let mut facts = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs fills the structure when it returns 0.
    let facts = unsafe {
        if libc::fstatfs(file.as_raw_fd(), facts.as_mut_ptr()) != 0 {
            return Err(io_error(path, "stat the filesystem of", std::io::Error::last_os_error()));
        }
        facts.assume_init()
    };
    let why = match facts.f_type {
        // linux/magic.h; ZFS and the cluster filesystems from their own sources.
        0x0102_1994 => "tmpfs keeps it in the memory that is to be relieved",
        0x8584_58f6 => "ramfs keeps it in the memory that is to be relieved",
        0x9123_683e => "btrfs moves blocks when they are written",
        0x2fc1_2fc1 => "zfs moves blocks when they are written",
        0xca45_1a4e => "bcachefs moves blocks when they are written",
        0x794c_7630 => "overlayfs copies it when it is written",
        0x6969 => "nfs needs memory and a network to write it",
        0xff53_4d42 | 0xfe53_4d42 => "cifs needs memory and a network to write it",
        0x0102_1997 => "9p needs memory and a peer to write it",
        0x6573_5546 => "fuse needs another process to write it",
        _ => return Ok(()),
    };
    Err(Error::new(Kind::Invalid, format!("spill {}: {why}", path.display()))
        .with_hint("use a partition, a logical volume, or a file on ext4 or xfs"))
}

fn lock_file(file: &File, path: &Path) -> Result<()> {
    // SAFETY: a plain system call on our own descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(Error::new(
            Kind::Busy,
            format!("spill {}: another process holds its lock", path.display()),
        )
        .with_source(std::io::Error::last_os_error())
        .with_hint("stop the other store, or name another file"));
    }
    Ok(())
}

/// Every block must be allocated, written and ours alone: a write must never
/// make the filesystem allocate. Reads the extent map (FIEMAP).
fn check_extents(file: &File, path: &Path, bytes: u64) -> Result<()> {
    // linux/fiemap.h: a request of 32 bytes, then 56 bytes per extent.
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    const EXTENTS: usize = 64;
    // UNKNOWN, DELALLOC, ENCODED, DATA_INLINE, DATA_TAIL, UNWRITTEN, SHARED.
    const UNFIT: u32 = 0x2 | 0x4 | 0x8 | 0x200 | 0x400 | 0x800 | 0x2000;
    const LAST: u32 = 0x1;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))?;
    let refuse = |at: u64, what: &str| {
        Error::new(Kind::Invalid, format!("spill {}: byte {at} is {what}", path.display()))
            .with_hint(format!(
                "write every block: dd if=/dev/zero of={} bs=1M count={} conv=fsync",
                path.display(),
                bytes >> 20
            ))
    };
    let mut map = [0u64; 4 + 7 * EXTENTS];
    let mut at = 0;
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
            return Err(refuse(at, "a hole"));
        }
        for extent in map[4..].chunks_exact(7).take(mapped) {
            let (logical, length, flags) = (extent[0], extent[2], extent[5] as u32);
            if logical > at {
                return Err(refuse(at, "a hole"));
            }
            if flags & UNFIT != 0 {
                return Err(refuse(at, "allocated but not written, shared, or stored otherwise"));
            }
            at = logical + length;
            if flags & LAST != 0 && at < bytes {
                return Err(refuse(at, "a hole"));
            }
        }
    }
    Ok(())
}

/// A page-aligned page, as direct I/O wants it.
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Makes the space ours: our header, or zeros where others keep theirs.
fn claim(file: &File, path: &Path) -> Result<()> {
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    file.read_exact_at(&mut page.0, 0).map_err(|cause| io_error(path, "read", cause))?;
    if page.0.starts_with(MAGIC) {
        return Ok(());
    }
    // Superblocks and labels of all common filesystems, volume managers and
    // partition tables lie in the first 128 KiB.
    let mut at = 0;
    while at < 128 * 1024 {
        file.read_exact_at(&mut page.0, at).map_err(|cause| io_error(path, "read", cause))?;
        if let Some(byte) = page.0.iter().position(|byte| *byte != 0) {
            return Err(Error::new(
                Kind::Busy,
                format!("spill {}: holds data at byte {}", path.display(), at + byte as u64),
            )
            .with_hint(format!(
                "if nothing there is needed: wipefs -a {0}; dd if=/dev/zero of={0} bs=128K count=1",
                path.display()
            )));
        }
        at += PAGE_BYTES as u64;
    }
    page.0[..MAGIC.len()].copy_from_slice(MAGIC);
    file.write_all_at(&page.0, 0).map_err(|cause| io_error(path, "write the header of", cause))?;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))
}
