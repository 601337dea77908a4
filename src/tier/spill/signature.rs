// SPDX-License-Identifier: MIT OR Apache-2.0
//! What somebody else keeps where a spill shall be: signatures of filesystems,
//! volume managers, encryption, partition tables and swap. Pure.

/// Bytes at the start in which all common signatures lie.
pub(super) const START_BYTES: usize = 128 << 10;

const EXT: (&str, usize, &[u8]) = ("an ext2, ext3 or ext4 filesystem", 1080, &[0x53, 0xef]);

/// Name, place, bytes. Where two could match, the more telling one is first.
const SIGNATURES: [(&str, usize, &[u8]); 25] = [
    ("another swap area", 4086, b"SWAPSPACE2"),
    ("another swap area", 4086, b"SWAP-SPACE"),
    ("a hibernation image", 4086, b"S1SUSPEND"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS volume", 0, b"SKUL\xba\xbe"),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a member of an md array", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a member of an md array", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("an xfs filesystem", 0, b"XFSB"),
    ("a btrfs filesystem", 65600, b"_BHRfS_M"),
    ("an f2fs filesystem", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a bcache or bcachefs device", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a FAT filesystem", 54, b"FAT1"),
    ("a FAT filesystem", 82, b"FAT32"),
    ("an ISO 9660 filesystem", 32769, b"CD001"),
    ("a squashfs filesystem", 0, b"hsqs"),
    ("a partition table (GPT)", 512, b"EFI PART"),
    EXT,
    ("a partition table (MBR)", 510, &[0x55, 0xaa]),
];

/// What is in the way in the first [`START_BYTES`]: a known name, or the first
/// byte that is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing but zeros.
    Nothing,
    /// A signature.
    Known(&'static str),
    /// Something else, from this byte on.
    Data(usize),
}

/// Looks through the start of the space.
pub(super) fn find(start: &[u8]) -> Found {
    let known = SIGNATURES.iter().find(|(_, at, bytes)| {
        start.get(*at..at + bytes.len()).is_some_and(|there| there == *bytes)
    });
    if let Some((name, _, _)) = known {
        return Found::Known(name);
    }
    start.iter().position(|byte| *byte != 0).map_or(Found::Nothing, Found::Data)
}

/// The pages, by their first byte, in which a signature may lie at the end of a
/// device of `bytes`, with the place and bytes of each.
pub(super) fn at_end(bytes: u64) -> [(&'static str, u64, &'static [u8]); 3] {
    // md's superblock 0.90: the last whole 64 KiB that have 64 KiB behind them;
    // 1.0: 8 KiB before the end, on 4 KiB. GPT's copy: the last 512 bytes.
    let md_old = (bytes & !0xffff).saturating_sub(0x1_0000);
    let md_new = ((bytes / 512).saturating_sub(16) & !7) * 512;
    [
        ("a member of an md array", md_old, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a member of an md array", md_new, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a partition table (GPT)", bytes.saturating_sub(512), b"EFI PART"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut start = vec![0; START_BYTES];
        start[at..at + bytes.len()].copy_from_slice(bytes);
        start
    }

    #[test]
    fn each_signature_is_found_by_its_name() {
        for (name, at, bytes) in SIGNATURES {
            assert_eq!(find(&start(at, bytes)), Found::Known(name));
            // One byte less is data, but not that.
            let cut = find(&start(at, &bytes[..bytes.len() - 1]));
            assert_eq!(cut, Found::Data(at), "{name}");
        }
    }

    #[test]
    fn zeros_are_nothing_and_anything_else_is_something() {
        assert_eq!(find(&start(0, &[])), Found::Nothing);
        assert_eq!(find(&start(99_999, b"x")), Found::Data(99_999));
    }

    #[test]
    fn the_end_of_a_device_is_where_mdadm_and_gpt_look() {
        let places = at_end(1 << 30).map(|(_, at, _)| at);
        assert_eq!(places, [(1 << 30) - 65536, (1 << 30) - 8192, (1 << 30) - 512]);
        assert_eq!(at_end(0).map(|(_, at, _)| at), [0, 0, 0]);
    }
}
