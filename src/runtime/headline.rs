// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unit's status line: one sentence of what the store is at, for
//! `systemctl status`. The main thread says it, and never an I/O thread.

use std::path::{Path, PathBuf};

use crate::engine::orders::{Progress, State as Orders};
use crate::engine::units::{ByteLen, PAGE_BYTES, SLAB_BYTES};
use crate::engine::view::State;
use crate::host::swap;

/// What the line is made of.
pub struct Facts<'a> {
    /// Where in its life the store is.
    pub state: State,
    /// What a person should know, or nothing.
    pub message: &'a str,
    /// The size of all devices.
    pub size: ByteLen,
    /// Their nodes.
    pub paths: &'a [PathBuf],
    /// How far the keeper is.
    pub progress: &'a Progress,
    /// Bytes that are still swapped to the devices; `None`: not known.
    pub swapped: Option<ByteLen>,
}

/// What is under way, else what is in the way, else what there is.
#[must_use]
pub fn headline(facts: &Facts<'_>) -> String {
    let Facts { state, message, size, paths, progress, swapped } = facts;
    let name = state.name();
    if *state == State::Draining {
        let left = swapped.map_or_else(String::new, |left| format!(", {left} left"));
        return format!("{name}: {message}{left}");
    }
    match &progress.state {
        Orders::Working => format!("{name}: {}", giving_back(progress)),
        _ if !message.is_empty() => format!("{name}: {message}"),
        Orders::Stuck(why) => format!("{name}: {why}"),
        Orders::AtRest => {
            let closed: Vec<&str> = progress
                .tiers
                .iter()
                .filter(|tier| !tier.is_open)
                .map(|tier| tier.name.as_str())
                .collect();
            let closed = match closed[..] {
                [] => String::new(),
                _ => format!(", {} closed", closed.join(", ")),
            };
            format!("{name} {size} on {}{closed}", list(paths))
        }
    }
}

fn giving_back(progress: &Progress) -> String {
    let (mut over, mut pages) = (0, 0);
    for tier in &progress.tiers {
        over += u64::from(tier.held_slabs.saturating_sub(tier.target_slabs));
        pages += tier.pages_over_target;
    }
    let bytes = |count: u64, each: usize| ByteLen(count * each as u64);
    if over == 0 {
        return "moving pages out of memory that failed, or closing a device".to_owned();
    }
    let (over, data) = (bytes(over, SLAB_BYTES), bytes(pages, PAGE_BYTES));
    format!("giving {over} of fast memory back, {data} of pages still to be moved")
}

/// Paths, for a sentence.
#[must_use]
pub fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// What the kernel has swapped to these devices; `None`: it does not tell.
#[must_use]
pub fn swapped(paths: &[PathBuf]) -> Option<ByteLen> {
    let entries = swap::entries(Path::new("/")).ok()?;
    let ours = entries.iter().filter(|entry| paths.contains(&entry.path) && !entry.deleted);
    Some(ByteLen(ours.map(|entry| entry.used.0).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::orders::TierProgress;

    fn tier(is_open: bool, held_slabs: u32, target_slabs: u32, pages: u64) -> TierProgress {
        TierProgress {
            tier: 0,
            name: "cuda:0".into(),
            is_open,
            held_slabs,
            target_slabs,
            pages_over_target: pages,
            released_slabs: 0,
            moved_extents: 0,
            moved_bytes: 0,
        }
    }

    fn line(state: State, message: &str, orders: Orders, tier: TierProgress) -> String {
        headline(&Facts {
            state,
            message,
            size: ByteLen(1 << 30),
            paths: &["/dev/nbd0".into(), "/dev/nbd1".into()],
            progress: &Progress { order: 1, state: orders, tiers: vec![tier] },
            swapped: Some(ByteLen(300 << 20)),
        })
    }

    #[test]
    fn what_is_under_way_comes_before_what_happened_and_that_before_what_there_is() {
        let (well, off) = (|| tier(true, 4, 4, 0), "switching /dev/nbd0 off");
        for (said, expected) in [
            (
                line(State::Draining, off, Orders::AtRest, well()),
                "draining: switching /dev/nbd0 off, 300 MiB left",
            ),
            (
                line(State::Serving, "old news", Orders::Working, tier(true, 4, 1, 512)),
                "serving: giving 192 MiB of fast memory back, 2 MiB of pages still to be moved",
            ),
            (line(State::Serving, "news", Orders::AtRest, well()), "serving: news"),
            (
                line(State::Serving, "", Orders::Stuck("the disk is full".into()), well()),
                "serving: the disk is full",
            ),
            (
                line(State::Serving, "", Orders::AtRest, well()),
                "serving 1 GiB on /dev/nbd0, /dev/nbd1",
            ),
            (
                line(State::Serving, "", Orders::AtRest, tier(false, 0, 0, 0)),
                "serving 1 GiB on /dev/nbd0, /dev/nbd1, cuda:0 closed",
            ),
        ] {
            assert_eq!(said, expected);
        }
        let failing = line(State::Serving, "", Orders::Working, well());
        assert!(failing.contains("memory that failed"), "{failing}");
    }
}
