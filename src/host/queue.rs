// SPDX-License-Identifier: MIT OR Apache-2.0
//! A block device's size and request queue, as `/sys/block` shows them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::sysfs::{read, read_if_there, read_number, write};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// `/sys/block/*/size` counts these, whatever the device's block size.
const SECTOR_BYTES: u64 = 512;
/// How often a device that is not ready is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The size of block device `name` (`nbd0`); 0 if nothing is attached to it.
pub fn size_bytes(root: &Path, name: &str) -> Result<ByteLen> {
    let path = root.join("sys/block").join(name).join("size");
    let sectors = read_number(&path)?;
    sectors.checked_mul(SECTOR_BYTES).map(ByteLen).ok_or_else(|| {
        Error::new(Kind::Protocol, format!("{} is {sectors}: no size", path.display()))
    })
}

/// Waits until the kernel shows `size` and `/dev/<name>` exists: both follow an
/// attach, the node through devtmpfs or udev.
///
/// Errors: `TimedOut` after `patience`, saying what is missing.
pub fn wait_until_live(root: &Path, name: &str, size: ByteLen, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let node = root.join("dev").join(name);
    loop {
        let shown = match size_bytes(root, name) {
            Ok(shown) => Some(shown),
            Err(error) if error.kind() == Kind::Missing => None,
            Err(error) => return Err(error),
        };
        let missing = match shown {
            None => format!("there is no /sys/block/{name}"),
            Some(shown) if shown != size => format!("its size is {shown}, not {size}"),
            Some(_) if !node.exists() => format!("there is no {}", node.display()),
            Some(_) => return Ok(()),
        };
        if Instant::now() >= deadline {
            return Err(Error::new(
                Kind::TimedOut,
                format!("block device {name} is not ready after {patience:?}: {missing}"),
            )
            .with_hint(
                "check that devtmpfs is on /dev and that nothing else attached the device",
            ));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sets how long a request may take before the block layer asks the driver
/// about it, and returns what is in force (the kernel rounds up to whole ticks).
///
/// For nbd this is the time after a reconnect until requests in flight on the
/// dead socket are sent again. An nbd attach, or a change of nbd's own timeout,
/// resets it to 30 s. A slow server is safe from it while nbd's timeout is 0.
pub fn set_io_timeout(root: &Path, name: &str, timeout: Duration) -> Result<Duration> {
    /// The longest tick (100 Hz) the kernel could round up to.
    const TICK: Duration = Duration::from_millis(10);
    let path = root.join("sys/block").join(name).join("queue/io_timeout");
    let wanted = timeout.as_millis();
    write(&path, &wanted.to_string())?;
    let found = Duration::from_millis(read_number(&path)?);
    if found < timeout || found > timeout + TICK {
        return Err(Error::new(
            Kind::Io,
            format!("{} is {found:?} after writing {wanted} ms", path.display()),
        ));
    }
    Ok(found)
}

/// Opens a block device for the caller alone (`O_EXCL`): while the result lives,
/// nobody can mount it, map it or swap to it, and udev does not look at it.
///
/// Errors: `Busy` if somebody does so now.
pub fn claim(device: &Path) -> Result<File> {
    let claimed =
        OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(device);
    let claimed = claimed.map_err(|cause| {
        let (kind, what) = match cause.raw_os_error() {
            Some(libc::EBUSY) => (Kind::Busy, "is still in use"),
            _ => (Kind::Io, "cannot be claimed"),
        };
        Error::new(kind, format!("{} {what}", device.display()))
            .with_hint(format!("see lsblk {0} and swapon --show", device.display()))
            .with_source(cause)
    })?;
    keep_udev_out(&claimed, UDEV_LOOKS);
    Ok(claimed)
}

/// The longest that udev is waited for: then it reads from a device that goes away,
/// which the kernel logs as an I/O error and which harms nobody.
const UDEV_LOOKS: Duration = Duration::from_secs(5);

/// Waits until udev has read what it wants to know of a device that has changed, and
/// has it come back later: it keeps a shared BSD lock meanwhile, and looks at none
/// that another has locked ("Locking Block Device Access", systemd's documentation).
/// The lock ends with `device`.
fn keep_udev_out(device: &File, patience: Duration) {
    let begun = Instant::now();
    while flock(device, FlockOperation::NonBlockingLockExclusive).is_err()
        && begun.elapsed() < patience
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether nbd device `name` has a server attached, or had one that it still
/// waits for.
pub(super) fn nbd_is_attached(root: &Path, name: &str) -> Result<bool> {
    Ok(read_if_there(&root.join("sys/block").join(name).join("pid"))?.is_some())
}

/// The kernel's release, as `uname -r` prints it.
pub(super) fn kernel_release(root: &Path) -> Result<String> {
    read(&root.join("proc/sys/kernel/osrelease"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;
    use std::fs;

    #[test]
    fn a_size_is_in_sectors_of_512_bytes() {
        let root = tree(&[("sys/block/nbd0/size", "2097152\n")]);
        assert_eq!(size_bytes(root.path(), "nbd0").unwrap(), ByteLen(1 << 30));
        for bad in ["", "x\n", "-1\n", "18446744073709551615\n"] {
            let root = tree(&[("sys/block/nbd0/size", bad)]);
            assert_eq!(size_bytes(root.path(), "nbd0").unwrap_err().kind(), Kind::Protocol);
        }
    }

    #[test]
    fn waiting_ends_at_once_when_the_device_is_there() {
        let root = tree(&[("sys/block/nbd0/size", "8\n"), ("dev/nbd0", "")]);
        wait_until_live(root.path(), "nbd0", ByteLen(4096), Duration::ZERO).unwrap();
    }

    #[test]
    fn waiting_in_vain_says_what_is_missing() {
        let wait = |files: &[(&str, &str)]| {
            let root = tree(files);
            let error = wait_until_live(root.path(), "nbd0", ByteLen(4096), Duration::ZERO);
            let error = error.unwrap_err();
            assert_eq!(error.kind(), Kind::TimedOut);
            error.to_string()
        };
        assert!(wait(&[]).ends_with("there is no /sys/block/nbd0"));
        assert!(wait(&[("sys/block/nbd0/size", "0\n")]).ends_with("its size is 0 B, not 4 KiB"));
        assert!(wait(&[("sys/block/nbd0/size", "8\n")]).ends_with("/dev/nbd0"));
    }

    #[test]
    fn the_request_timeout_is_written_in_milliseconds_and_read_back() {
        let root = tree(&[("sys/block/nbd0/queue/io_timeout", "30000\n")]);
        let set = Duration::from_millis(100);
        assert_eq!(set_io_timeout(root.path(), "nbd0", set).unwrap(), set);
        let path = root.path().join("sys/block/nbd0/queue/io_timeout");
        assert_eq!(fs::read_to_string(path).unwrap(), "100");
        let error = set_io_timeout(root.path(), "nbd1", set).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("nbd1/queue/io_timeout"), "{error}");
    }

    #[test]
    fn a_device_that_udev_looks_at_is_waited_for_and_then_locked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let udev = open();
        flock(&udev, FlockOperation::LockShared).unwrap();
        let ours = open();
        keep_udev_out(&ours, Duration::ZERO);
        flock(open(), FlockOperation::NonBlockingLockShared).expect("it was given up");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| keep_udev_out(&ours, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished());
            drop(udev);
            waiting.join().unwrap();
        });
        flock(open(), FlockOperation::NonBlockingLockShared).unwrap_err();
    }
}
