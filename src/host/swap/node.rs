// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device node of a swap area: without one nobody can switch the area off,
//! for swapoff(2) wants a path. The area itself stays on, and its pages are
//! served as before.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::engine::error::{Error, Kind, Result};
use crate::host::sysfs::read;

/// Takes the node of block device `device` away; nothing happens if there is none.
///
/// Errors: `Invalid` if something else is there.
pub fn hide(device: &Path) -> Result<()> {
    let data = match std::fs::symlink_metadata(device) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| failed("look at", device).with_source(error))?,
    };
    if !data.file_type().is_block_device() {
        return Err(Error::new(
            Kind::Invalid,
            format!("{} is no node of a block device; it stays", device.display()),
        ));
    }
    std::fs::remove_file(device).map_err(|error| failed("remove", device).with_source(error))
}

/// Makes the node of `device` again, below `/dev`, from the numbers that
/// `<root>/sys/class/block` shows; nothing happens if it is there.
///
/// Errors: `Missing` for a device that the kernel does not have.
pub fn show(root: &Path, device: &Path) -> Result<()> {
    if device.exists() {
        return Ok(());
    }
    let name = device.file_name().unwrap_or_default();
    let path = root.join("sys/class/block").join(name).join("dev");
    let text = read(&path)?;
    let (major, minor) = numbers(&text).ok_or_else(|| {
        Error::new(Kind::Protocol, format!("{} is {text:?}, no MAJOR:MINOR", path.display()))
    })?;
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, device, FileType::BlockDevice, mode, makedev(major, minor))
        .map_err(|errno| failed("make", device).with_source(errno))
}

fn numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn failed(what: &str, device: &Path) -> Error {
    Error::new(Kind::Io, format!("cannot {what} the node {}", device.display()))
        .with_hint("as root, with CAP_MKNOD, on a /dev that can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;

    #[test]
    fn only_a_block_device_loses_its_node_and_a_missing_one_is_none() {
        let root = tree(&[("dev/nbd0", "a file")]);
        let error = hide(&root.path().join("dev/nbd0")).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(root.path().join("dev/nbd0").exists());
        hide(&root.path().join("dev/nbd1")).unwrap();
    }

    #[test]
    fn a_node_is_made_from_the_numbers_of_the_kernel_and_of_no_others() {
        let root = tree(&[
            ("sys/class/block/nbd1/dev", "43:32\n"),
            ("sys/class/block/nbd2/dev", "forty-three\n"),
            ("dev/nbd0", ""),
        ]);
        let dev = root.path().join("dev");
        // There already.
        show(root.path(), &dev.join("nbd0")).unwrap();
        assert_eq!(show(root.path(), &dev.join("nbd9")).unwrap_err().kind(), Kind::Missing);
        let error = show(root.path(), &dev.join("nbd2")).unwrap_err();
        assert!(error.to_string().contains("forty-three"), "{error}");
        // Whoever may make nodes gets one that hides again; anybody else an error.
        match show(root.path(), &dev.join("nbd1")) {
            Ok(()) => {
                use std::os::unix::fs::MetadataExt;
                let data = std::fs::metadata(dev.join("nbd1")).unwrap();
                assert_eq!(data.rdev(), makedev(43, 32));
                hide(&dev.join("nbd1")).unwrap();
                assert!(!dev.join("nbd1").exists());
            }
            Err(error) => assert!(error.to_string().contains("cannot make"), "{error}"),
        }
    }
}
