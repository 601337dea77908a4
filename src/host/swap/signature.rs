// SPDX-License-Identifier: MIT OR Apache-2.0
//! The swap signature (`union swap_header` of `include/linux/swap.h`): page 0 of
//! the area, with the version at byte 1024 and the magic in its last 10 bytes.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES};
use crate::host::sysfs::read;

const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const MAGIC_AT: usize = PAGE_BYTES - MAGIC.len();
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
/// Bytes of a label, its terminator included where it is shorter.
const LABEL_BYTES: usize = 16;
/// The smallest area worth a signature; mkswap(8) has the same.
const PAGES_MIN: u64 = 10;
/// How much of a device must be zeros to call it blank: every signature of
/// [`KNOWN`] lies in it.
const PROBE_BYTES: usize = 128 * 1024;

/// What may be overwritten by a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Zeros, or a swap signature with the same label.
    BlankOrOurs,
    /// Anything.
    Anything,
}

/// What identifies a swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// As in blkid(8).
    pub uuid: [u8; 16],
    /// 1 to 16 bytes; it also marks a signature as ours.
    pub label: String,
}

/// A random UUID of the kernel's (`<root>/proc/sys/kernel/random/uuid`).
pub fn new_uuid(root: &Path) -> Result<[u8; 16]> {
    let path = root.join("proc/sys/kernel/random/uuid");
    let text = read(&path)?;
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)
        .map(u128::to_be_bytes)
        .ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{} is {text:?}, no UUID", path.display()))
        })
}

/// A buffer that a device can write from directly.
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

fn page(signature: &Signature, pages: u64) -> Result<Box<Page>> {
    let label = signature.label.as_bytes();
    if label.is_empty() || label.len() > LABEL_BYTES || label.contains(&0) {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "swap label {:?}: must be 1 to {LABEL_BYTES} bytes without NUL",
                signature.label
            ),
        ));
    }
    let last_page = u32::try_from(pages.saturating_sub(1))
        .ok()
        .filter(|_| pages >= PAGES_MIN)
        .ok_or_else(|| {
            let size = ByteLen(pages.saturating_mul(PAGE_BYTES as u64));
            Error::new(
                Kind::Invalid,
                format!("swap area of {size}: must be {PAGES_MIN} to 2^32 pages of 4 KiB"),
            )
        })?;
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    let mut put = |at: usize, bytes: &[u8]| page.0[at..at + bytes.len()].copy_from_slice(bytes);
    put(VERSION_AT, &1u32.to_ne_bytes());
    put(LAST_PAGE_AT, &last_page.to_ne_bytes());
    put(UUID_AT, &signature.uuid);
    put(LABEL_AT, label);
    put(MAGIC_AT, MAGIC);
    Ok(page)
}

/// Makes all of `device` a swap area: one write of one page, then fsync. Must
/// not run on the thread that serves the device.
///
/// Errors: `Busy` if it is mounted, swapped to or holds something else, naming
/// what was found.
pub fn write_signature(device: &Path, signature: &Signature, overwrite: Overwrite) -> Result<()> {
    let failed = |what: &str, error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot {what} {}", device.display())).with_source(error)
    };
    // O_EXCL on a block device: fails while anybody else claims it.
    let mut file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(device).map_err(
            |error| match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    Error::new(Kind::Busy, format!("{} is mounted or swapped to", device.display()))
                        .with_hint("see lsblk and /proc/swaps")
                        .with_source(error)
                }
                _ => failed("open", error),
            },
        )?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed("measure", error))?;
    let page = page(signature, bytes / PAGE_BYTES as u64)?;
    if overwrite == Overwrite::BlankOrOurs {
        let start = probe(&file, bytes).map_err(|error| failed("read", error))?;
        if let Some(found) = foreign(&start, signature.label.as_bytes()) {
            return Err(Error::new(
                Kind::Busy,
                format!("{} is not blank: it holds {found}", device.display()),
            )
            .with_hint(format!("if nobody needs it, clear it: wipefs -a {}", device.display())));
        }
    }
    file.write_all_at(&page.0, 0).map_err(|error| failed("write a swap signature to", error))?;
    file.sync_all().map_err(|error| failed("flush", error))
}

fn probe(file: &File, device_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut start = vec![0; PROBE_BYTES.min(device_bytes as usize)];
    file.read_exact_at(&mut start, 0)?;
    Ok(start)
}

/// Signatures people put on block devices: where, what, and its name.
const KNOWN: [(usize, &[u8], &str); 9] = [
    (MAGIC_AT, b"S1SUSPEND", "a hibernation image"),
    (MAGIC_AT, b"SWAP-SPACE", "an old swap area"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, &[0x55, 0xaa], "a boot sector or MBR partition table"),
];

/// What the start of a device holds that is neither zeros nor our signature.
fn foreign(start: &[u8], label: &[u8]) -> Option<String> {
    let holds = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    if holds(MAGIC_AT, MAGIC) {
        let found = &start[LABEL_AT..LABEL_AT + LABEL_BYTES];
        let found = found.split(|byte| *byte == 0).next().unwrap_or_default();
        return (found != label)
            .then(|| format!("a swap area labelled {:?}", String::from_utf8_lossy(found)));
    }
    if let Some((_, _, name)) = KNOWN.iter().find(|(at, magic, _)| holds(*at, magic)) {
        return Some((*name).to_owned());
    }
    let data = start.iter().position(|byte| *byte != 0)?;
    Some(format!("data at byte {data}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;
    use std::path::PathBuf;

    fn device(root: &tempfile::TempDir, bytes: usize, content: &[(usize, &[u8])]) -> PathBuf {
        let mut data = vec![0; bytes];
        for (at, piece) in content {
            data[*at..at + piece.len()].copy_from_slice(piece);
        }
        let path = root.path().join("device");
        std::fs::write(&path, data).unwrap();
        path
    }

    fn ours() -> Signature {
        Signature { uuid: *b"0123456789abcdef", label: "sluice".to_owned() }
    }

    #[test]
    fn a_signature_is_where_the_kernel_and_blkid_look_for_it() {
        let root = tree(&[]);
        let path = device(&root, 1 << 20, &[]);
        write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap();
        let data = std::fs::read(&path).unwrap();
        assert_eq!(&data[4086..4096], b"SWAPSPACE2");
        assert_eq!(data[1024..1028], 1u32.to_ne_bytes(), "version");
        assert_eq!(data[1028..1032], 255u32.to_ne_bytes(), "last page of 256");
        assert_eq!(data[1032..1036], [0; 4], "no bad pages");
        assert_eq!(&data[1036..1052], b"0123456789abcdef");
        assert_eq!(&data[1052..1068], b"sluice\0\0\0\0\0\0\0\0\0\0");
        let rest = data.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at);
        assert!(
            rest.into_iter().all(|at| (1024..1068).contains(&at) || (4086..4096).contains(&at))
        );
    }

    #[test]
    fn our_own_signature_is_written_again_and_others_are_not() {
        let root = tree(&[]);
        let path = device(&root, 1 << 20, &[]);
        write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap();
        write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap();
        let other = Signature { label: "other".to_owned(), ..ours() };
        let error = write_signature(&path, &other, Overwrite::BlankOrOurs).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(error.to_string().ends_with("a swap area labelled \"sluice\""), "{error}");
        write_signature(&path, &other, Overwrite::Anything).unwrap();
        let error = write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap_err();
        assert!(error.to_string().contains("\"other\""), "{error}");
    }

    #[test]
    fn what_is_on_a_device_is_named_and_left_alone() {
        for (at, magic, name) in KNOWN.iter().copied().chain([
            (12_345, b"x".as_slice(), "data at byte 12345"),
            (PROBE_BYTES - 1, b"x".as_slice(), "data at byte 131071"),
        ]) {
            let root = tree(&[]);
            let path = device(&root, 1 << 20, &[(at, magic)]);
            let before = std::fs::read(&path).unwrap();
            let error = write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap_err();
            assert_eq!(error.kind(), Kind::Busy);
            assert!(error.to_string().ends_with(name), "{error}, not {name}");
            assert!(error.hint().unwrap().contains("wipefs"));
            assert_eq!(std::fs::read(&path).unwrap(), before, "{name}");
        }
    }

    #[test]
    fn areas_too_small_and_labels_that_do_not_fit_are_refused() {
        let root = tree(&[]);
        let small = device(&root, 9 * PAGE_BYTES, &[]);
        let error = write_signature(&small, &ours(), Overwrite::BlankOrOurs).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("36 KiB"), "{error}");
        let path = device(&root, 10 * PAGE_BYTES, &[]);
        write_signature(&path, &ours(), Overwrite::BlankOrOurs).unwrap();
        for label in ["", "seventeen letters", "a\0b"] {
            let bad = Signature { label: label.to_owned(), ..ours() };
            let error = write_signature(&path, &bad, Overwrite::Anything).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{label:?}");
        }
    }

    #[test]
    fn uuids_come_from_the_kernel_in_the_order_they_are_printed() {
        let uuid = "0d3a1c5e-1b1f-4c62-9a53-00112233ffee\n";
        let root = tree(&[("proc/sys/kernel/random/uuid", uuid)]);
        let bytes = new_uuid(root.path()).unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[15]), (0x0d, 0x3a, 0xee));
        for bad in [
            "",
            "0d3a1c5e\n",
            "0d3a1c5e-1b1f-4c62-9a53-00112233ffeg\n",
            "+d3a1c5e-1b1f-4c62-9a53-00112233ffee0\n",
        ] {
            let root = tree(&[("proc/sys/kernel/random/uuid", bad)]);
            assert_eq!(new_uuid(root.path()).unwrap_err().kind(), Kind::Protocol, "{bad:?}");
        }
    }
}
