// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a spill file: every byte written with data that no disk below can
//! leave out, synced, checked, and only then given its name.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::filesystem::{self, Trust};
use super::space::{MAGIC, bytes_for, io_error};
use super::{backing, extents};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES};

/// Written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Makes `path`, for `swap` bytes of swap, readable and writable by its owner
/// alone. `progress` is called with the bytes written and all. Gives the file's
/// size. The name appears when the file is complete; a failure leaves nothing.
///
/// Errors: `Busy` if the name is taken, `NoSpace` with the figures, `Invalid`
/// for a filesystem that can hold no spill.
pub(super) fn create(
    path: &Path,
    swap: ByteLen,
    progress: &mut dyn FnMut(ByteLen, ByteLen),
) -> Result<ByteLen> {
    let bytes = bytes_for(swap);
    if path.symlink_metadata().is_ok() {
        let what = format!("spill {}: there is something of that name", path.display());
        return Err(Error::new(Kind::Busy, what)
            .with_hint("nothing is overwritten: name another, or remove it first"));
    }
    let folder = folder_of(path);
    let place = File::open(&folder).map_err(|cause| {
        io_error(path, "open the folder of", cause)
            .with_hint(format!("mkdir -p {}", folder.display()))
    })?;
    let (_, trust) = filesystem::check(&place, path)?;
    check_room(&place, path, bytes)?;
    let file = unnamed_file(&folder, path)?;
    let device = file.metadata().map_err(|cause| io_error(path, "stat", cause))?;
    let number = backing::number(std::os::unix::fs::MetadataExt::dev(&device));
    if let Some((name, why)) = backing::unfit(Path::new("/"), number) {
        let what = format!("spill {}: it would stand on {name}, which {why}", path.display());
        return Err(Error::new(Kind::Invalid, what).with_hint("use a disk of this machine"));
    }
    if trust == Trust::WithoutCow {
        filesystem::forbid_cow(&file, path)?;
    }
    reserve(&file, path, bytes)?;
    fill(&file, path, bytes, progress)?;
    extents::check(&file, path, bytes)?;
    give_name(&file, path)?;
    place.sync_all().map_err(|cause| io_error(path, "sync the folder of", cause))?;
    Ok(ByteLen(bytes))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn check_room(place: &File, path: &Path, bytes: u64) -> Result<()> {
    let mut facts = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: fstatvfs fills the structure when it returns 0.
    let facts = unsafe {
        if libc::fstatvfs(place.as_raw_fd(), facts.as_mut_ptr()) != 0 {
            let cause = std::io::Error::last_os_error();
            return Err(io_error(path, "stat the filesystem of", cause));
        }
        facts.assume_init()
    };
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free < bytes {
        let what = format!(
            "spill {}: {} needed, {} free on its filesystem ({} too few)",
            path.display(),
            ByteLen(bytes),
            ByteLen(free),
            ByteLen(bytes - free)
        );
        return Err(Error::new(Kind::NoSpace, what).with_hint("make room, or make it smaller"));
    }
    Ok(())
}

fn unnamed_file(folder: &Path, path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT | libc::O_CLOEXEC)
        .open(folder)
        .map_err(|cause| io_error(path, "create", cause))
}

/// Has the filesystem choose the blocks at once, in as few extents as it can.
fn reserve(file: &File, path: &Path, bytes: u64) -> Result<()> {
    // SAFETY: a plain system call on our own descriptor.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } != 0 {
        return Err(io_error(path, "reserve the blocks of", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Our header, then noise: a thin or compressing disk below would leave zeros out
/// and look for room when the first page comes.
fn fill(
    file: &File,
    path: &Path,
    bytes: u64,
    progress: &mut dyn FnMut(ByteLen, ByteLen),
) -> Result<()> {
    // Room to begin on a page, as direct I/O wants it.
    let mut memory = vec![0; CHUNK_BYTES + PAGE_BYTES];
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    let chunk = &mut memory[skip..skip + CHUNK_BYTES];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut at = 0;
    while at < bytes {
        for word in chunk.chunks_exact_mut(8) {
            // xorshift64, Marsaglia 2003: cheap, and nothing compresses it.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&random.to_le_bytes());
        }
        if at == 0 {
            chunk[..MAGIC.len()].copy_from_slice(MAGIC);
        }
        let now = (bytes - at).min(CHUNK_BYTES as u64) as usize;
        file.write_all_at(&chunk[..now], at).map_err(|cause| io_error(path, "write", cause))?;
        at += now as u64;
        progress(ByteLen(at), ByteLen(bytes));
    }
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))
}

fn give_name(file: &File, path: &Path) -> Result<()> {
    let ours = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|_| Error::new(Kind::Invalid, "a descriptor's path holds a NUL"))?;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Error::new(Kind::Invalid, format!("spill {}: its name holds a NUL", path.display()))
    })?;
    // SAFETY: two NUL-terminated paths that outlive the call.
    let answer = unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            ours.as_ptr(),
            libc::AT_FDCWD,
            name.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    if answer != 0 {
        return Err(io_error(path, "name", std::io::Error::last_os_error()));
    }
    Ok(())
}
