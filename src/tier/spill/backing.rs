// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a block device stands on, and who uses it, from `/sys` and `/proc`
//! below a root. A device that needs memory, another process or a network to
//! write a page can be no spill, however far below the named one it is.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Major and minor number.
pub(super) type Number = (u32, u32);

/// The numbers of a device, from a `dev_t`.
pub(super) fn number(device: u64) -> Number {
    (libc::major(device), libc::minor(device))
}

/// Devices by the beginning of their name, digits following, and why not.
const UNFIT: [(&str, &str); 7] = [
    ("zram", "keeps it in the memory that is to be relieved"),
    ("ram", "keeps it in the memory that is to be relieved"),
    ("loop", "goes through another file and the page cache"),
    ("nbd", "needs another process to write it, which may be this store"),
    ("ublkb", "needs another process to write it, which may be this store"),
    ("rbd", "needs memory and a network to write it"),
    ("drbd", "needs memory and a network to write it"),
];

/// The first device on the way down that can be no spill, and why. `None` also
/// for a device that the kernel does not show (a filesystem over several).
pub(super) fn unfit(root: &Path, device: Number) -> Option<(String, &'static str)> {
    let entry = root.join(format!("sys/dev/block/{}:{}", device.0, device.1));
    let mut left = vec![fs::canonicalize(entry).ok()?];
    let mut seen = Vec::new();
    while let Some(place) = left.pop() {
        if seen.contains(&place) {
            continue;
        }
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((_, why)) = UNFIT.iter().find(|(start, _)| is_numbered(&name, start)) {
            return Some((name, why));
        }
        let uuid = fs::read_to_string(place.join("dm/uuid")).unwrap_or_default();
        if ["-tpool", "-vpool"].iter().any(|end| uuid.trim_end().ends_with(end)) {
            return Some((name, "is a pool that may have no room when a page is written"));
        }
        if place.join("partition").exists() {
            left.extend(place.parent().map(Path::to_path_buf));
        }
        let below = fs::read_dir(place.join("slaves")).into_iter().flatten().flatten();
        left.extend(below.filter_map(|entry| fs::canonicalize(entry.path()).ok()));
        seen.push(place);
    }
    None
}

/// `loop7` and its partition `loop7p1` for `loop`.
fn is_numbered(name: &str, start: &str) -> bool {
    name.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Who uses a block device, as far as the kernel tells.
pub(super) fn user(root: &Path, device: Number) -> Option<String> {
    let wanted = format!("{}:{}", device.0, device.1);
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(&wanted)).then(|| fields.nth(1).unwrap_or_default().to_owned())
    });
    if let Some(place) = mounted {
        return Some(format!("it is mounted on {place}"));
    }
    let is_it = |path: &Path| {
        fs::metadata(path).is_ok_and(|data| data.rdev() != 0 && number(data.rdev()) == device)
    };
    if swap_areas(root).iter().any(|path| is_it(path)) {
        return Some("it is swap".to_owned());
    }
    let holders = root.join(format!("sys/dev/block/{wanted}/holders"));
    let holder = fs::read_dir(holders).ok()?.flatten().next()?;
    Some(format!("{} is built on it", holder.file_name().to_string_lossy()))
}

/// Whether a file is a swap area that is on.
pub(super) fn is_swap_file(root: &Path, file: &fs::Metadata) -> bool {
    let same = |data: &fs::Metadata| (data.dev(), data.ino()) == (file.dev(), file.ino());
    swap_areas(root).iter().any(|path| fs::metadata(path).is_ok_and(|data| same(&data)))
}

/// Paths in `/proc/swaps`; the kernel writes blanks as `\040` and the like.
fn swap_areas(root: &Path) -> Vec<PathBuf> {
    let text = fs::read(root.join("proc/swaps")).unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| line.split(u8::is_ascii_whitespace).next())
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(std::ffi::OsString::from_vec(unescaped(name))))
        .collect()
}

fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, more)) = rest.split_first() {
        let octal = (first == b'\\').then(|| more.first_chunk::<3>()).flatten();
        let value =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = value {
            out.push(byte);
            rest = &more[3..];
        } else {
            out.push(first);
            rest = more;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Block devices: name, number, what it stands on; `sda/sda1` is a partition.
    fn machine(devices: &[(&str, &str, &[&str])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let block = root.path().join("sys/devices/block");
        fs::create_dir_all(root.path().join("sys/dev/block")).unwrap();
        for (name, number, below) in devices {
            let place = block.join(name);
            fs::create_dir_all(place.join("slaves")).unwrap();
            fs::create_dir_all(place.join("holders")).unwrap();
            if name.contains('/') {
                fs::write(place.join("partition"), "1\n").unwrap();
            }
            symlink(&place, root.path().join("sys/dev/block").join(number)).unwrap();
            for slave in *below {
                let name = slave.replace('/', "!");
                symlink(block.join(slave), place.join("slaves").join(name)).unwrap();
            }
        }
        root
    }

    #[test]
    fn a_disk_and_what_is_built_on_disks_is_fit() {
        let root = machine(&[
            ("sda", "8:0", &[]),
            ("sda/sda1", "8:1", &[]),
            ("dm-0", "253:0", &["sda/sda1"]),
            ("dm-1", "253:1", &["dm-0"]),
        ]);
        for device in [(8, 0), (8, 1), (253, 0), (253, 1), (0, 42)] {
            assert_eq!(unfit(root.path(), device), None, "{device:?}");
        }
    }

    #[test]
    fn a_device_that_needs_memory_or_a_process_is_found_at_any_depth() {
        let root = machine(&[
            ("zram0", "252:0", &[]),
            ("loop3", "7:3", &[]),
            ("loop3/loop3p1", "259:0", &[]),
            ("nbd0", "43:0", &[]),
            ("dm-0", "253:0", &["loop3/loop3p1"]),
            ("dm-1", "253:1", &["dm-0"]),
            ("dm-4", "253:4", &["dm-3"]),
            ("dm-3", "253:3", &[]),
        ]);
        let pool = root.path().join("sys/devices/block/dm-3/dm");
        fs::create_dir_all(&pool).unwrap();
        fs::write(pool.join("uuid"), "LVM-abc-tpool\n").unwrap();
        for (device, name, why) in [
            ((252, 0), "zram0", "memory"),
            ((7, 3), "loop3", "page cache"),
            ((43, 0), "nbd0", "this store"),
            ((253, 1), "loop3p1", "page cache"),
            ((253, 4), "dm-3", "no room"),
        ] {
            let found = unfit(root.path(), device).unwrap();
            assert!(found.0 == name && found.1.contains(why), "{device:?}: {found:?}");
        }
    }

    #[test]
    fn the_user_of_a_device_is_named() {
        let root = machine(&[("sda", "8:0", &[]), ("sdb", "8:16", &[])]);
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(
            root.path().join("proc/self/mountinfo"),
            "22 1 8:0 / /srv rw,relatime - ext4 /dev/sda rw\n",
        )
        .unwrap();
        fs::write(root.path().join("sys/devices/block/sdb/holders/dm-7"), "").unwrap();
        assert_eq!(user(root.path(), (8, 0)).unwrap(), "it is mounted on /srv");
        assert_eq!(user(root.path(), (8, 16)).unwrap(), "dm-7 is built on it");
        assert_eq!(user(root.path(), (8, 32)), None);
    }

    #[test]
    fn a_swap_file_is_recognised_whatever_it_is_called() {
        let root = tempfile::tempdir().unwrap();
        let swap = root.path().join("my swap\\file");
        fs::write(&swap, "").unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let shown = swap.to_str().unwrap().replace('\\', "\\134").replace(' ', "\\040");
        let text = format!("Filename Type Size Used Priority\n{shown} file 1 0 -2\n");
        fs::write(root.path().join("proc/swaps"), text).unwrap();
        assert!(is_swap_file(root.path(), &fs::metadata(&swap).unwrap()));
        let other = root.path().join("other");
        fs::write(&other, "").unwrap();
        assert!(!is_swap_file(root.path(), &fs::metadata(&other).unwrap()));
    }
}
