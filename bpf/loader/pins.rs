// SPDX-License-Identifier: GPL-2.0-only
//! Where attached policies are kept: `/sys/fs/bpf/sluice/NAME/KIND`, each a
//! pinned link. A pin that is gone is a policy that is detached; nothing else is state, but for
//! the mark of those that the configuration wants.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::failure::Failure;
use crate::links;
use crate::object::Kind;

/// Where all of them are.
pub const ROOT: &str = "/sys/fs/bpf/sluice";
/// A folder beside the pins whose name begins so says which key of the configuration
/// the policy was loaded for; files there can be pins only.
const MARK: &str = "configured-";

/// The folder of a policy's pins.
pub fn folder(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// The pin of one link of a policy.
pub fn path(name: &str, kind: Kind) -> PathBuf {
    folder(name).join(kind.word())
}

/// Keeps other loaders from changing pins until the result is dropped, or the process ends.
pub fn lock() -> Result<File> {
    DirBuilder::new().recursive(true).mode(0o755).create(ROOT).map_err(|error| {
        Failure::new(
            format!("cannot make {ROOT}: {error}"),
            "run it as root, with the BPF file system on /sys/fs/bpf \
             (mount -t bpf -o mode=0700 bpf /sys/fs/bpf)",
        )
    })?;
    // Not through a link: who made that could have it lead elsewhere afterwards.
    let mut plainly = OpenOptions::new();
    plainly.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
    let root = plainly.open(ROOT).with_context(|| format!("{ROOT} is no folder"))?;
    let about = root.metadata().with_context(|| format!("cannot look at {ROOT}"))?;
    // A bpf file system that was mounted without a mode lets anybody make that folder.
    if about.uid() != 0 || about.mode() & 0o022 != 0 {
        return Err(Failure::new(
            format!(
                "{ROOT} belongs to user {} with mode {:03o}: others than root could put pins there",
                about.uid(),
                about.mode() & 0o777
            ),
            format!("look at what is in it, then: rm -r {ROOT}; chmod 700 /sys/fs/bpf"),
        )
        .into());
    }
    root.lock().with_context(|| format!("cannot lock {ROOT}"))?;
    Ok(root)
}

/// Removes a folder without pins, which a loader left that was killed in between.
fn clear(name: &str) -> Result<()> {
    if exists(name) && kinds(name).is_empty() {
        remove(name)?;
    }
    Ok(())
}

/// Makes the folder for a policy's pins. To be called under [`lock`].
pub fn reserve(name: &str) -> Result<PathBuf> {
    clear(name)?;
    let folder = folder(name);
    std::fs::create_dir(&folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow::Error::new(Failure::new(
            format!("a policy named {name} is attached"),
            format!("sluice policy replace {name} ..., or give another name with --as"),
        )),
        _ => anyhow::Error::new(error).context(format!("cannot make {}", folder.display())),
    })?;
    Ok(folder)
}

/// The kinds of links that a policy has pinned. Empty: it is not there.
pub fn kinds(name: &str) -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| path(name, *kind).exists()).collect()
}

/// Whether a policy has a folder, be it without pins.
pub fn exists(name: &str) -> bool {
    let one = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    one && folder(name).is_dir()
}

/// Notes in a policy's folder that the configuration wants it, and for which of its keys.
pub fn mark(name: &str, key: &str) -> Result<()> {
    let mark = folder(name).join(format!("{MARK}{key}"));
    std::fs::create_dir(&mark).with_context(|| format!("cannot make {}", mark.display()))
}

/// The policies that a configuration has wanted: name and key.
pub fn marked() -> Result<Vec<(String, String)>> {
    let names = match std::fs::read_dir(ROOT) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {ROOT}")),
    };
    let mut all = Vec::new();
    for name in names {
        let name = name?.file_name().to_string_lossy().into_owned();
        all.extend(marks(&name)?.into_iter().map(|key| (name.clone(), key)));
    }
    all.sort();
    Ok(all)
}

fn marks(name: &str) -> Result<Vec<String>> {
    let folder = folder(name);
    let mut keys = Vec::new();
    for entry in
        std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        keys.extend(entry?.file_name().to_string_lossy().strip_prefix(MARK).map(str::to_owned));
    }
    Ok(keys)
}

/// Detaches a policy, and removes its pins and their folder. The marks go last: if it is
/// killed in between, `apply` still knows whose the rest is.
pub fn remove(name: &str) -> Result<()> {
    for kind in Kind::ALL {
        let path = path(name, kind);
        match links::open(&path) {
            Ok(link) => links::detach(link.as_fd())
                .with_context(|| format!("cannot detach {}", path.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).context(format!("cannot open {}", path.display())),
        }
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for key in marks(name)? {
        let mark = folder(name).join(format!("{MARK}{key}"));
        std::fs::remove_dir(&mark).with_context(|| format!("cannot remove {}", mark.display()))?;
    }
    let folder = folder(name);
    std::fs::remove_dir(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Gives the folder of a policy's pins another name.
pub fn rename(from: &str, to: &str) -> Result<()> {
    if from == to {
        return Ok(());
    }
    clear(to)?;
    std::fs::rename(folder(from), folder(to))
        .with_context(|| format!("cannot rename {} to {to}", folder(from).display()))
}
