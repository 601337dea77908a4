// SPDX-License-Identifier: MIT OR Apache-2.0
//! Switching a swap area off with a budget before and progress meanwhile, for the
//! disposable process that does it (`sluice-store detach`).
//!
//! That process calls [`clear_io_flusher`](super::armour::clear_io_flusher)
//! first: reading pages back needs memory, and a flusher may not reclaim any.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::memory::available_memory;
use super::swap::{entries, swapoff, used_bytes};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// What a swapoff has to move, and where it could go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// In use on the device.
    pub used: ByteLen,
    /// RAM the kernel could free without swapping (`MemAvailable`).
    pub available: ByteLen,
    /// Free space in the other swap areas.
    pub other_swap: ByteLen,
}

impl Budget {
    /// Whether everything on the device fits elsewhere with `reserve` to spare.
    #[must_use]
    pub fn suffices(&self, reserve: ByteLen) -> bool {
        let room = self.available.0.saturating_add(self.other_swap.0);
        room >= self.used.0.saturating_add(reserve.0)
    }
}

/// The budget for switching all of `devices` off together. Devices that are not
/// on need nothing; areas whose node is gone are no room for anything.
pub fn budget(root: &Path, devices: &[PathBuf]) -> Result<Budget> {
    let available = available_memory(root)?;
    let (mut used, mut other_swap) = (0, 0);
    for entry in &entries(root)? {
        if devices.contains(&entry.path) {
            used += entry.used.0;
        } else if !entry.deleted {
            other_swap += entry.size.0.saturating_sub(entry.used.0);
        }
    }
    Ok(Budget { used: ByteLen(used), available, other_swap: ByteLen(other_swap) })
}

/// Switches `device` off and calls `progress` about every `tick` with the bytes
/// still in use on it, then checks that it is gone from `<root>/proc/swaps`.
///
/// Errors: as [`swapoff`]; the device stays on after any.
pub fn swapoff_with_progress(
    root: &Path,
    device: &Path,
    tick: Duration,
    mut progress: impl FnMut(ByteLen),
) -> Result<()> {
    watch(
        || swapoff(device),
        tick,
        || {
            if let Some(left) = used_bytes(root, device)? {
                progress(left);
            }
            Ok(())
        },
    )?;
    match used_bytes(root, device)? {
        None => Ok(()),
        Some(left) => Err(Error::new(
            Kind::Io,
            format!("{} was switched off and is still on with {left} in use", device.display()),
        )
        .with_hint(
            "somebody switched it on again: see swapon --show and systemctl list-units -t swap",
        )),
    }
}

/// Runs `work` on another thread and `look` on this one every `tick` until the
/// work is done. A failed look is told only if the work itself succeeded.
fn watch(
    work: impl FnOnce() -> Result<()> + Send,
    tick: Duration,
    mut look: impl FnMut() -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (send, done) = channel();
        let worker = scope.spawn(move || {
            let result = work();
            drop(send);
            result
        });
        let mut looked = Ok(());
        while done.recv_timeout(tick) == Err::<(), _>(RecvTimeoutError::Timeout) {
            looked = looked.and(look());
        }
        match worker.join() {
            Ok(result) => result.and(looked),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;

    const SWAPS: &str = "Filename Type Size Used Priority\n\
        /dev/nbd0 partition 2048 1024 5\n/dev/sda2 partition 4096 1000 -2\n\
        /dev/nbd1\\040(deleted) partition 9999 8 5\n";

    #[test]
    fn the_budget_counts_ram_and_other_living_swap() {
        let root = tree(&[
            ("proc/swaps", SWAPS),
            ("proc/meminfo", "MemTotal:  9999 kB\nMemAvailable:     512 kB\n"),
        ]);
        let budget = |devices: &[&str]| {
            let devices: Vec<PathBuf> = devices.iter().map(PathBuf::from).collect();
            budget(root.path(), &devices).unwrap()
        };
        let found = budget(&["/dev/nbd0"]);
        let kib = |kib: u64| ByteLen(kib * 1024);
        let expected = Budget { used: kib(1024), available: kib(512), other_swap: kib(3096) };
        assert_eq!(found, expected);
        assert!(found.suffices(kib(512 + 3096 - 1024)));
        assert!(!found.suffices(kib(512 + 3096 - 1024 + 1)));
        // What is switched off together is no room for each other.
        let both = budget(&["/dev/nbd0", "/dev/sda2"]);
        let expected = Budget { used: kib(2024), available: kib(512), other_swap: ByteLen(0) };
        assert_eq!(both, expected);
        assert_eq!(budget(&["/dev/nbd7"]).used, ByteLen(0));
        // Its node was taken away; its pages are there all the same.
        assert_eq!(budget(&["/dev/nbd1"]).used, kib(8));
    }

    #[test]
    fn a_budget_without_available_memory_is_an_error() {
        let root = tree(&[("proc/swaps", SWAPS), ("proc/meminfo", "MemTotal:  9999 kB\n")]);
        let error = budget(root.path(), &[PathBuf::from("/dev/nbd0")]).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol);
        assert!(error.to_string().contains("MemAvailable"), "{error}");
    }

    #[test]
    fn the_work_is_looked_at_until_it_is_done() {
        let (look_seen, wait_for_looks) = channel();
        let mut looks = 0;
        watch(
            move || {
                // Ends only after three looks, however slow this machine is.
                for _ in 0..3 {
                    wait_for_looks.recv().unwrap();
                }
                Ok(())
            },
            Duration::from_millis(1),
            || {
                looks += 1;
                // The worker stops listening after the third.
                let _ = look_seen.send(());
                Ok(())
            },
        )
        .unwrap();
        assert!(looks >= 3, "{looks}");
    }

    #[test]
    fn a_failed_look_does_not_hide_how_the_work_ended() {
        let fail = |text: &'static str| move || Err(Error::new(Kind::Io, text));
        let error = watch(fail("work"), Duration::ZERO, fail("look")).unwrap_err();
        assert_eq!(error.to_string(), "work");
        let (looked, wait) = channel();
        let error = watch(
            move || wait.recv().map_err(|_| Error::new(Kind::Io, "never looked")),
            Duration::ZERO,
            || {
                let _ = looked.send(());
                Err(Error::new(Kind::Io, "look"))
            },
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "look");
    }

    #[test]
    fn a_refused_swapoff_is_the_error() {
        let root = tree(&[("proc/swaps", SWAPS)]);
        let device = root.path().join("nbd0");
        let error =
            swapoff_with_progress(root.path(), &device, Duration::ZERO, |_| {}).unwrap_err();
        assert!(error.to_string().contains("cannot swap off"), "{error}");
    }
}
