// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps a measurement from overwriting somebody's data, unless the person
//! said so: a device or file is written to if it holds nothing but zeros where
//! headers are, or what an earlier run wrote; an NBD export if nothing there
//! looks like a filesystem, a partition table or the like.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::contents::recognise;
use super::device;
use super::plan::{Plan, Target};
use crate::block::nbd::client::Client;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::PAGE_BYTES;

/// How much of each end is looked at: partition tables, superblocks and RAID
/// metadata are all within.
const LOOK_BYTES: u64 = 1 << 20;

/// What is neither blank nor known.
const DATA: &str = "data";

/// Where a signature is and what it means.
struct Signature {
    at: usize,
    bytes: &'static [u8],
    what: &'static str,
}

/// Offsets and magics as the formats' own documents give them.
const SIGNATURES: [Signature; 17] = [
    sign(4086, b"SWAPSPACE2", "a swap area"),
    sign(1080, &[0x53, 0xef], "an ext filesystem"),
    sign(0, b"XFSB", "an XFS filesystem"),
    sign(0x1_0040, b"_BHRfS_M", "a btrfs filesystem"),
    sign(1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS filesystem"),
    sign(1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS filesystem"),
    sign(0, b"hsqs", "a squashfs filesystem"),
    sign(4120, &[0xc6, 0x85, 0x73, 0xf6], "a bcachefs or bcache device"),
    sign(3, b"NTFS    ", "an NTFS filesystem"),
    sign(32_769, b"CD001", "an ISO 9660 filesystem"),
    sign(0, b"LUKS\xba\xbe", "a LUKS volume"),
    sign(512, b"LABELONE", "an LVM volume"),
    sign(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member"),
    sign(0, b"QFI\xfb", "a qcow2 image"),
    sign(512, b"EFI PART", "a partition table"),
    sign(4096, b"EFI PART", "a partition table"),
    sign(510, &[0x55, 0xaa], "a partition table or boot sector"),
];

const fn sign(at: usize, bytes: &'static [u8], what: &'static str) -> Signature {
    Signature { at, bytes, what }
}

/// Whether the plan may write to `target`. A target in use is never allowed:
/// that is up to opening it.
pub(super) fn allow(target: &Target, plan: &Plan) -> Result<()> {
    let told = plan.destroy_contents && matches!(target, Target::Nbd { .. });
    if !plan.writes() || told {
        return Ok(());
    }
    let (place, head, tail) = match target {
        Target::Nbd { socket, name } => {
            let mut client = Client::connect(socket, name)?;
            let bytes = client.export().bytes;
            let (head, tail) = ends(bytes, |at, into| client.read(at, into))?;
            client.disconnect()?;
            (socket.display().to_string(), head, tail)
        }
        Target::Path(path) => {
            let place = path.display().to_string();
            // Opened as it will be, so that a device in use is refused first.
            let (_, bytes) = device::open(path, true)?;
            let unreadable = |error: std::io::Error| {
                Error::new(Kind::Io, format!("cannot read {place}")).with_source(error)
            };
            let file = File::open(path).map_err(unreadable)?;
            let (head, tail) =
                ends(bytes, |at, into| file.read_exact_at(into, at).map_err(unreadable))?;
            (place, head, tail)
        }
    };
    match found(&head, &tail) {
        Some(_) if plan.destroy_contents => Ok(()),
        // Servers under test are full of what other generators wrote.
        Some(DATA) if matches!(target, Target::Nbd { .. }) => Ok(()),
        None => Ok(()),
        Some(what) => Err(Error::new(Kind::Busy, format!("{place} holds {what}"))
            .with_hint("to overwrite it add --destroy-contents; to only read it, --write 0")),
    }
}

/// The first and the last part of something of `bytes` bytes.
fn ends(
    bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    // Whole pages: servers with 4 KiB blocks refuse anything else.
    let look = bytes.min(LOOK_BYTES) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let mut head = vec![0; look as usize];
    let mut tail = head.clone();
    let step = 64 << 10;
    let last = bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64 - look;
    for (part, start) in [(&mut head, 0), (&mut tail, last)] {
        for (number, chunk) in part.chunks_mut(step).enumerate() {
            read(start + (number * step) as u64, chunk)?;
        }
    }
    Ok((head, tail))
}

/// What a target holds by its two ends; `None` if nothing is lost with it.
fn found(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let dirty = |part: &[u8]| {
        part.chunks(PAGE_BYTES)
            .any(|page| page.iter().any(|byte| *byte != 0) && recognise(page).is_none())
    };
    if !dirty(head) && !dirty(tail) {
        return None;
    }
    let named = SIGNATURES
        .iter()
        .find(|sign| head.get(sign.at..).is_some_and(|rest| rest.starts_with(sign.bytes)));
    Some(named.map_or(DATA, |sign| sign.what))
}

#[cfg(test)]
mod tests {
    use super::super::contents::Page;
    use super::*;

    #[test]
    fn every_signature_is_named_and_plain_data_too() {
        let blank = vec![0; 1 << 20];
        assert_eq!(found(&blank, &blank), None);
        for sign in &SIGNATURES {
            let mut head = blank.clone();
            head[sign.at..sign.at + sign.bytes.len()].copy_from_slice(sign.bytes);
            assert_eq!(found(&head, &blank), Some(sign.what));
        }
        let mut data = blank.clone();
        data[70_000] = 1;
        assert_eq!(found(&data, &blank), Some(DATA));
        assert_eq!(found(&blank, &data), Some(DATA));
    }

    #[test]
    fn what_a_run_wrote_may_be_overwritten() {
        let mut head = vec![0; 1 << 20];
        Page { number: 9, version: 2, run: 3 }.fill(&mut head[36_864..40_960]);
        assert_eq!(found(&head, &[]), None);
        head[36_900] ^= 1;
        assert_eq!(found(&head, &[]), Some(DATA));
    }
}
