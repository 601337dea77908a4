// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPU memory as the kernel counts it by control group (`dmem`, Linux 6.14;
//! `Documentation/admin-guide/cgroup-v2.rst`, "DMEM"), for the drivers that take part,
//! as amdgpu and xe. The counters are the kernel's own: reading them wakes no GPU.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Memory, User};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::PciAddress;
use crate::engine::units::ByteLen;

/// Below the root.
const GROUPS: &str = "sys/fs/cgroup";
const USED: &str = "dmem.current";
/// How the names of our units begin.
const OURS: &str = "sluice";

/// The memory of the GPU at `address`. `Ok(None)`: the kernel does not count it.
///
/// Errors: `Io` or `Protocol` if it does, and what it says cannot be read.
pub(super) fn memory(root: &Path, address: PciAddress) -> Result<Option<Memory>> {
    let card = Card { groups: root.join(GROUPS), regions: format!("drm/{address}/vram") };
    let Some(capacity) = card.read(&card.groups.join("dmem.capacity"))? else { return Ok(None) };
    // The documentation has this file in every group but the first. The kernel has it there.
    let Some(used) = card.read(&card.groups.join(USED))? else { return Ok(None) };
    let mut largest = None;
    card.search(&card.groups, used, &mut largest)?;
    let free = ByteLen(capacity.saturating_sub(used));
    Ok(Some(Memory { free, largest }))
}

/// One GPU in these files.
struct Card {
    /// The first group.
    groups: PathBuf,
    /// How the names of its regions begin: amdgpu has `vram`; xe has `vram0`, with a second
    /// tile `vram1`, and `stolen`, which is not the card's.
    regions: String,
}

impl Card {
    /// Bytes of all regions of the card. `Ok(None)`: the file or the card is not there.
    fn read(&self, file: &Path) -> Result<Option<u64>> {
        let gone = rustix::io::Errno::NODEV.raw_os_error();
        match std::fs::read_to_string(file) {
            Ok(text) => self.sum(&text).map_err(|line| {
                let what = format!("{}: not a region and its bytes: {line:?}", file.display());
                Error::new(Kind::Protocol, what)
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // The group ended between two calls.
            Err(error) if error.raw_os_error() == Some(gone) => Ok(None),
            Err(error) => {
                let what = format!("cannot read {}", file.display());
                Err(Error::new(Kind::Io, what).with_source(error))
            }
        }
    }

    /// Of lines `drm/0000:03:00.0/vram0 8514437120`; an error is the line that is none.
    fn sum<'t>(&self, text: &'t str) -> std::result::Result<Option<u64>, &'t str> {
        let mut sum = None;
        for line in text.lines().filter(|line| line.starts_with(&self.regions)) {
            let bytes = line.split_once(' ').and_then(|(_, bytes)| bytes.parse::<u64>().ok());
            sum = Some(sum.unwrap_or(0_u64).saturating_add(bytes.ok_or(line)?));
        }
        Ok(sum)
    }

    /// Looks through a group that uses `total` for what uses more than `best` by itself, the
    /// groups in it not counted. Where the kernel counts no further down, a group stands for
    /// all that are in it.
    fn search(&self, group: &Path, total: u64, best: &mut Option<User>) -> Result<()> {
        let is_more =
            |bytes: u64, best: &Option<User>| bytes > best.as_ref().map_or(0, |user| user.bytes.0);
        let mut own = total;
        let mut inside = Vec::new();
        for child in folders(group) {
            let name = child.file_name().unwrap_or_default().to_string_lossy();
            let is_ours = name.starts_with(OURS);
            match self.read(&child.join(USED))? {
                Some(bytes) => {
                    own = own.saturating_sub(bytes);
                    if !is_ours {
                        inside.push((bytes, child));
                    }
                }
                // The store is in it, and how much of it that is nobody counts.
                None if is_ours => own = 0,
                None => {}
            }
        }
        // The first group's own is the kernel's, and of whoever is not told apart.
        if let Ok(name) = group.strip_prefix(&self.groups)
            && name != Path::new("")
            && is_more(own, best)
        {
            let who = format!("the control group {}", name.display());
            *best = Some(User { who, bytes: ByteLen(own) });
        }
        inside.sort_unstable_by(|one, other| other.cmp(one));
        for (bytes, child) in inside {
            if is_more(bytes, best) {
                self.search(&child, bytes, best)?;
            }
        }
        Ok(())
    }
}

/// The groups in a group; none where it has ended.
fn folders(group: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(group).into_iter().flatten().flatten();
    let folders = listed.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}
