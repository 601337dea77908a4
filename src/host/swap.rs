// SPDX-License-Identifier: MIT OR Apache-2.0
//! Swap areas: writing the signature, switching on and off, reading `/proc/swaps`.

pub mod node;
mod signature;

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::queue::nbd_is_attached;
use super::sysfs::read;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;
pub use signature::{Overwrite, Signature, new_uuid, write_signature};

/// Flags of swapon(2), from `include/linux/swap.h` (`SWAP_FLAG_*`); libc has none.
const FLAG_PREFER: i32 = 0x8000;
const FLAG_DISCARD: i32 = 0x1_0000;
const FLAG_DISCARD_ONCE: i32 = 0x2_0000;
const FLAG_DISCARD_PAGES: i32 = 0x4_0000;
/// The priority is in the low 15 bits (`SWAP_FLAG_PRIO_MASK`).
const PRIORITY_MAX: i16 = 0x7fff;

/// When the kernel tells the device which of its pages are dead. The kernel
/// ignores this, silently, on a device that takes no discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Never.
    None,
    /// The whole area, when it is switched on.
    Once,
    /// Whole freed clusters (2 MiB with 4 KiB pages), as they are freed.
    Pages,
    /// Both.
    Both,
}

impl Discard {
    fn flags(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Once => FLAG_DISCARD | FLAG_DISCARD_ONCE,
            Self::Pages => FLAG_DISCARD | FLAG_DISCARD_PAGES,
            Self::Both => FLAG_DISCARD,
        }
    }
}

/// Lets the kernel swap to `device`, which holds a signature. `priority` is 0 to
/// 32767, higher is used first; `None` is below all that have one.
///
/// Errors: `Busy` if it is in use (as swap already, or otherwise), `Invalid`
/// without a valid signature, `Denied` without `CAP_SYS_ADMIN` or with all of
/// the kernel's swap slots taken.
pub fn swapon(device: &Path, priority: Option<i16>, discard: Discard) -> Result<()> {
    let prefer = match priority {
        None => 0,
        Some(priority @ 0..=PRIORITY_MAX) => FLAG_PREFER | i32::from(priority),
        Some(priority) => {
            return Err(Error::new(
                Kind::Invalid,
                format!("swap priority {priority}: must be 0 to {PRIORITY_MAX}"),
            ));
        }
    };
    let path = c_path(device)?;
    // SAFETY: a NUL-terminated path that outlives the call.
    let answer = unsafe { libc::swapon(path.as_ptr(), prefer | discard.flags()) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::EBUSY) => (Kind::Busy, "see /proc/swaps and lsblk for who uses it"),
        Some(libc::EPERM) => (
            Kind::Denied,
            "run as root or with CAP_SYS_ADMIN; at most about 28 swap areas can be on",
        ),
        Some(libc::EINVAL) => (Kind::Invalid, "it holds no valid swap signature: see dmesg"),
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            (Kind::Missing, "check that the device is attached")
        }
        Some(libc::ENOMEM) => (Kind::NoSpace, "free some memory and try again"),
        _ => (Kind::Io, "see dmesg"),
    };
    Err(Error::new(kind, format!("cannot swap on {}", device.display()))
        .with_hint(hint)
        .with_source(error))
}

/// Stops swapping to `device`. Blocks until every page has been read back, which
/// takes minutes for a full one, and makes the calling *process* the first
/// victim of the OOM killer meanwhile: call it in a disposable process only.
///
/// Errors: `NoSpace` if the pages do not fit in RAM and other swap, `Invalid` if
/// the device is not a swap area that is on, `Denied` without `CAP_SYS_ADMIN`.
/// The area stays on after any error.
pub fn swapoff(device: &Path) -> Result<()> {
    let path = c_path(device)?;
    // SAFETY: a NUL-terminated path that outlives the call.
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            (Kind::NoSpace, "close programs or add other swap; the device stays in use until then")
        }
        Some(libc::EINVAL) => (Kind::Invalid, "see /proc/swaps for what is on"),
        Some(libc::EPERM) => (Kind::Denied, "run as root or with CAP_SYS_ADMIN"),
        Some(libc::EINTR) => (Kind::TimedOut, "it was interrupted; the device stays in use"),
        Some(libc::ENOENT) => (Kind::Missing, "see /proc/swaps for what is on"),
        _ => (Kind::Io, "see dmesg; the device stays in use"),
    };
    Err(Error::new(kind, format!("cannot swap off {}", device.display()))
        .with_hint(hint)
        .with_source(error))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Kind::Invalid, format!("path {} holds a NUL", path.display())))
}

/// One swap area that is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device or file, without the kernel's `(deleted)` mark.
    pub path: PathBuf,
    /// Its name is gone: no swapoff can reach it.
    pub deleted: bool,
    /// A block device, as opposed to a file.
    pub is_partition: bool,
    /// Usable size.
    pub size: ByteLen,
    /// Pages that hold something, as bytes.
    pub used: ByteLen,
    /// Negative where the kernel chose it.
    pub priority: i32,
}

/// What is on, in the order of `<root>/proc/swaps`.
pub fn entries(root: &Path) -> Result<Vec<Entry>> {
    let path = root.join("proc/swaps");
    let text = read(&path)?;
    parse(&text).map_err(|line| {
        Error::new(Kind::Protocol, format!("{}: cannot read {line:?}", path.display()))
    })
}

/// Bytes in use on `device`; `None` if it is not a swap area that is on.
pub fn used_bytes(root: &Path, device: &Path) -> Result<Option<ByteLen>> {
    let found = entries(root)?.into_iter().find(|entry| !entry.deleted && entry.path == device);
    Ok(found.map(|entry| entry.used))
}

/// Parses `/proc/swaps`; the error is the line that does not parse.
fn parse(text: &str) -> std::result::Result<Vec<Entry>, &str> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    if !header.split_ascii_whitespace().eq(["Filename", "Type", "Size", "Used", "Priority"]) {
        return Err(header);
    }
    lines.map(|line| parse_line(line).ok_or(line)).collect()
}

fn parse_line(line: &str) -> Option<Entry> {
    // Neither the path nor the type can hold a blank: the kernel escapes them.
    let mut fields = line.split_ascii_whitespace();
    let mut path = unescape(fields.next()?)?;
    let is_partition = match fields.next()? {
        "partition" => true,
        "file" => false,
        _ => return None,
    };
    let mut kib = || fields.next()?.parse::<u64>().ok()?.checked_mul(1024).map(ByteLen);
    let (size, used) = (kib()?, kib()?);
    let priority = fields.next()?.parse().ok()?;
    if fields.next().is_some() {
        return None;
    }
    let deleted = path.ends_with(b" (deleted)");
    if deleted {
        path.truncate(path.len() - b" (deleted)".len());
    }
    let mut path = PathBuf::from(OsString::from_vec(path));
    // An nbd device that was switched on in a mount namespace that has ended
    // shows by its path below that namespace's /dev.
    if is_partition && let Ok(name) = path.strip_prefix("/") {
        let node = Path::new("/dev").join(name);
        if nbd_name(&node).is_some() {
            path = node;
        }
    }
    Some(Entry { path, deleted, is_partition, size, used, priority })
}

/// Undoes the kernel's `\ooo` (octal) for blank, tab, line end and backslash.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(3)?;
        if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
            return None;
        }
        let text = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(text, 8).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// A swap area whose back-end is gone. Its pages are lost, it can't be switched
/// off, and only a reboot clears it: never reuse its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ghost {
    /// The entry as the kernel lists it.
    pub entry: Entry,
    /// How it shows.
    pub sign: GhostSign,
}

/// How a [`Ghost`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GhostSign {
    /// The device node was removed under it.
    Deleted,
    /// It is an nbd device that nothing is attached to any more.
    Detached,
}

/// Swap areas on block devices that are gone.
pub fn ghosts(root: &Path) -> Result<Vec<Ghost>> {
    let mut found = Vec::new();
    for entry in entries(root)?.into_iter().filter(|entry| entry.is_partition) {
        if entry.deleted {
            found.push(Ghost { entry, sign: GhostSign::Deleted });
        } else if let Some(name) = nbd_name(&entry.path)
            && !nbd_is_attached(root, name)?
        {
            found.push(Ghost { entry, sign: GhostSign::Detached });
        }
    }
    Ok(found)
}

/// `nbd0` for `/dev/nbd0`; partitions and other devices are not ours to judge.
fn nbd_name(device: &Path) -> Option<&str> {
    let name = device.strip_prefix("/dev").ok()?.to_str()?;
    let digits = name.strip_prefix("nbd")?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests;
