// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/swaps` in every shape the kernel prints, and refusals of the calls.

use super::*;
use crate::host::tests_support::{tree, without};
use proptest::prelude::*;
use rustix::thread::CapabilitySet;

const HEADER: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

fn swaps(lines: &str) -> tempfile::TempDir {
    tree(&[("proc/swaps", &format!("{HEADER}{lines}"))])
}

#[test]
fn areas_are_listed_with_sizes_in_bytes() {
    // As printed by Linux 6.12.
    let root = swaps(
        "/dev/nbd0                               partition\t262140\t\t1024\t\t32767\n\
         /swap\\040file                           file\t\t8388604\t\t0\t\t-2\n",
    );
    let found = entries(root.path()).unwrap();
    assert_eq!(
        found,
        [
            Entry {
                path: "/dev/nbd0".into(),
                deleted: false,
                is_partition: true,
                size: ByteLen(262_140 * 1024),
                used: ByteLen(1 << 20),
                priority: 32767,
            },
            Entry {
                path: "/swap file".into(),
                deleted: false,
                is_partition: false,
                size: ByteLen(8_388_604 * 1024),
                used: ByteLen(0),
                priority: -2,
            },
        ]
    );
    let used = |path: &str| used_bytes(root.path(), Path::new(path)).unwrap();
    assert_eq!(used("/dev/nbd0"), Some(ByteLen(1 << 20)));
    assert_eq!(used("/dev/nbd1"), None);
}

#[test]
fn an_area_of_a_mount_namespace_that_has_ended_is_the_device_that_it_is() {
    // As Linux 6.12 shows one whose /dev is mounted nowhere any more.
    let root = swaps("/nbd0 partition 1020 8 5\n/file file 1020 8 5\n");
    let paths: Vec<_> = entries(root.path()).unwrap().into_iter().map(|e| e.path).collect();
    assert_eq!(paths, [PathBuf::from("/dev/nbd0"), PathBuf::from("/file")]);
}

#[test]
fn a_foreign_file_whose_name_is_not_utf8_hides_nothing() {
    let root = swaps("");
    let text =
        [HEADER.as_bytes(), b"/sw\xe4p file 1020 8 5\n/dev/nbd0 partition 1020 8 5\n"].concat();
    std::fs::write(root.path().join("proc/swaps"), text).unwrap();
    assert_eq!(entries(root.path()).unwrap().len(), 2);
    let used = used_bytes(root.path(), Path::new("/dev/nbd0")).unwrap();
    assert_eq!(used, Some(ByteLen(8 * 1024)));
}

#[test]
fn no_areas_is_an_empty_list() {
    assert_eq!(entries(swaps("").path()).unwrap(), []);
}

#[test]
fn a_deleted_device_is_a_ghost_and_not_the_device_of_that_name() {
    let root = swaps("/dev/nbd0\\040(deleted)                   partition\t1020\t\t8\t\t5\n");
    let found = ghosts(root.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sign, GhostSign::Deleted);
    assert_eq!(found[0].entry.path, Path::new("/dev/nbd0"));
    assert_eq!(used_bytes(root.path(), Path::new("/dev/nbd0")).unwrap(), None);
}

#[test]
fn an_nbd_area_without_an_attachment_is_a_ghost_and_others_are_not() {
    let root = tree(&[
        (
            "proc/swaps",
            &format!(
                "{HEADER}/dev/nbd0 partition 1020 8 5\n/dev/nbd1 partition 1020 8 5\n\
                 /dev/nbd2p1 partition 1020 8 5\n/dev/sda2 partition 1020 8 5\n\
                 /old\\040(deleted) file 1020 8 5\n"
            ),
        ),
        ("sys/block/nbd0/pid", "41\n"),
        ("sys/block/nbd1/size", "0\n"),
    ]);
    let found = ghosts(root.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].entry.path, Path::new("/dev/nbd1"));
    assert_eq!(found[0].sign, GhostSign::Detached);
}

#[test]
fn a_line_that_does_not_parse_is_an_error_that_quotes_it() {
    for line in [
        "/dev/nbd0 partition 1020 8",
        "/dev/nbd0 partition 1020 8 5 6",
        "/dev/nbd0 partition many 8 5",
        "/dev/nbd0 partition -1 8 5",
        "/dev/nbd0 disk 1020 8 5",
        "/dev/nbd0\\04 partition 1020 8 5",
        "/dev/nbd0\\0x0 partition 1020 8 5",
        "/dev/nbd0\\777 partition 1020 8 5",
        "/dev/nbd0 partition 18446744073709551615 8 5",
    ] {
        let root = swaps(&format!("{line}\n"));
        let error = entries(root.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol, "{line:?}");
        assert!(error.to_string().contains(&format!("{line:?}")), "{error}");
    }
    let root = tree(&[("proc/swaps", "Device Size\n")]);
    assert_eq!(entries(root.path()).unwrap_err().kind(), Kind::Protocol);
}

/// The kernel's `seq_file` escaping of a path: blank, tab, line end, backslash.
fn escape(path: &str) -> String {
    path.chars()
        .map(|c| match c {
            ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32),
            c => c.to_string(),
        })
        .collect()
}

proptest! {
    #[test]
    fn any_path_survives_the_kernels_escaping(path in "/dev/x[ -~\t\n\u{e9}\u{4e2d}]{0,40}",
                                              used in 0u64..1 << 40, priority in -32768i32..32768) {
        prop_assume!(!path.ends_with(" (deleted)"));
        let line = format!("{} partition\t{used}\t{used}\t{priority}", escape(&path));
        let entry = parse_line(&line).unwrap();
        prop_assert_eq!(entry.path.to_str(), Some(path.as_str()));
        prop_assert_eq!(entry.used, ByteLen(used * 1024));
        prop_assert_eq!((entry.priority, entry.deleted), (priority, false));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*") {
        let _ = parse(&text);
        let _ = parse(&format!("{HEADER}{text}"));
    }
}

#[test]
fn discards_are_asked_for_with_the_kernels_flags() {
    let flags = [Discard::None, Discard::Once, Discard::Pages, Discard::Both].map(Discard::flags);
    assert_eq!(flags, [0, 0x3_0000, 0x5_0000, 0x1_0000]);
}

#[test]
fn swapping_to_what_is_not_there_names_it() {
    for answer in [
        swapon(Path::new("/nowhere/nbd0"), None, Discard::None),
        swapoff(Path::new("/nowhere/nbd0")),
    ] {
        let error = answer.unwrap_err();
        assert!(error.to_string().ends_with("/nowhere/nbd0"), "{error}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn swapping_is_refused_without_cap_sys_admin() {
    without(CapabilitySet::SYS_ADMIN, || {
        let answers = [
            swapon(Path::new("/dev/null"), Some(5), Discard::Both),
            swapoff(Path::new("/dev/null")),
        ];
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{error:?}");
            assert!(error.hint().unwrap().contains("CAP_SYS_ADMIN"));
        }
    });
}

#[test]
fn negative_priorities_and_odd_paths_are_invalid() {
    let error = swapon(Path::new("/dev/null"), Some(-1), Discard::None).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("-1"), "{error}");
    assert_eq!(swapoff(Path::new("/dev/\0")).unwrap_err().kind(), Kind::Invalid);
}
