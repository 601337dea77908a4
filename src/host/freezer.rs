// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control groups stopped and continued (`cgroup.freeze`, version 2 of the
//! hierarchy): a task that waits for a page stops only once it has it, so that
//! with everybody stopped nobody waits for the store any more.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use super::sysfs::{read, read_if_there, write};
use crate::engine::error::{Error, Kind, Result};

/// Where the hierarchy is mounted.
const MOUNTED: &str = "sys/fs/cgroup";
/// Between two looks at groups that are about to stop.
const LOOK: Duration = Duration::from_millis(10);

/// A control group: its path below the hierarchy's root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(PathBuf);

impl Group {
    /// The group of process `pid`.
    ///
    /// Errors: `Missing` without such a process, `Protocol` where the machine
    /// does not use the unified hierarchy.
    pub fn of(root: &Path, pid: u32) -> Result<Self> {
        let path = root.join(format!("proc/{pid}/cgroup"));
        let text = read(&path)?;
        let group = text.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{}: no line 0::/", path.display()))
                .with_hint("boot with the unified control group hierarchy (cgroup v2)")
        })?;
        Self::parse(group).ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{}: {group:?} is no group", path.display()))
        })
    }

    /// From a path below the hierarchy's root; `None` for one that leads out of it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let path = PathBuf::from(text);
        path.components().all(|part| matches!(part, Component::Normal(_))).then_some(Self(path))
    }

    /// The path below the hierarchy's root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The unit's name, as a rule.
    fn name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn file(&self, root: &Path, name: &str) -> PathBuf {
        root.join(MOUNTED).join(&self.0).join(name)
    }

    /// Stops or continues all of the group. One that is gone meanwhile is as good.
    pub fn set(&self, root: &Path, frozen: bool) -> Result<()> {
        let value = if frozen { "1" } else { "0" };
        match write(&self.file(root, "cgroup.freeze"), value) {
            Err(error) if error.kind() == Kind::Missing => Ok(()),
            other => other,
        }
    }

    /// Whether everything in it has stopped; a group that is gone has.
    pub fn is_frozen(&self, root: &Path) -> Result<bool> {
        let events = read_if_there(&self.file(root, "cgroup.events"))?;
        Ok(events.is_none_or(|text| text.lines().any(|line| line == "frozen 1")))
    }

    /// Whether somebody stopped it already.
    fn is_told_to_freeze(&self, root: &Path) -> Result<bool> {
        Ok(read_if_there(&self.file(root, "cgroup.freeze"))?.is_some_and(|text| text == "1"))
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(formatter)
    }
}

/// The largest groups that hold none of `spared` and no group called by one of
/// `names`, but for those that somebody stopped already. Those below
/// `system.slice` come last: users' programs may wait for services.
pub fn groups_but(root: &Path, spared: &[Group], names: &[String]) -> Result<Vec<Group>> {
    let mut found = Vec::new();
    collect(root, &Group(PathBuf::new()), spared, names, &mut found)?;
    found.sort_by_key(|group| (group.0.starts_with("system.slice"), group.0.clone()));
    Ok(found)
}

/// Adds those below `group`, which holds something that is spared.
fn collect(
    root: &Path,
    group: &Group,
    spared: &[Group],
    names: &[String],
    found: &mut Vec<Group>,
) -> Result<()> {
    for child in children(root, group)? {
        if spared.contains(&child) || names.iter().any(|name| name == child.name()) {
            continue;
        }
        if spared.iter().any(|spared| spared.0.starts_with(&child.0))
            || holds_name(root, &child, names)?
        {
            collect(root, &child, spared, names, found)?;
        } else if !child.is_told_to_freeze(root)? {
            found.push(child);
        }
    }
    Ok(())
}

fn holds_name(root: &Path, group: &Group, names: &[String]) -> Result<bool> {
    if names.is_empty() {
        return Ok(false);
    }
    for child in children(root, group)? {
        if names.iter().any(|name| name == child.name()) || holds_name(root, &child, names)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn children(root: &Path, group: &Group) -> Result<Vec<Group>> {
    let folder = root.join(MOUNTED).join(&group.0);
    let failed = |error: std::io::Error| {
        let kind = if error.kind() == ErrorKind::NotFound { Kind::Missing } else { Kind::Io };
        Error::new(kind, format!("cannot list {}", folder.display())).with_source(error)
    };
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(&folder) {
        // It ended meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound && group.0 != Path::new("") => {
            return Ok(found);
        }
        other => other.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            found.push(Group(group.0.join(entry.file_name())));
        }
    }
    Ok(found)
}

/// Waits until all of `groups` have stopped.
///
/// Errors: `TimedOut` after `patience`, naming those that have not.
pub fn wait_until_frozen(root: &Path, groups: &[Group], patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let mut left = Vec::new();
        for group in groups {
            if !group.is_frozen(root)? {
                left.push(group.to_string());
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                Kind::TimedOut,
                format!("{} did not stop in {} s", left.join(", "), patience.as_secs()),
            )
            .with_hint("a task there waits for a device or a network that does not answer"));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;

    fn group(path: &str) -> Group {
        Group::parse(path).unwrap()
    }

    fn machine() -> tempfile::TempDir {
        let running = |path: &str| {
            [
                (format!("sys/fs/cgroup/{path}/cgroup.freeze"), "0\n"),
                (format!("sys/fs/cgroup/{path}/cgroup.events"), "populated 1\nfrozen 0\n"),
            ]
        };
        let mut files: Vec<(String, &str)> = [
            "init.scope",
            "user.slice/user-1000.slice",
            "user.slice",
            "system.slice",
            "system.slice/dbus.service",
            "system.slice/sluice-store.service",
            "system.slice/NetworkManager.service",
            "system.slice/system-getty.slice",
            "system.slice/system-getty.slice/getty@tty1.service",
            "machine.slice",
        ]
        .into_iter()
        .flat_map(running)
        .collect();
        files.push(("sys/fs/cgroup/machine.slice/cgroup.freeze".to_owned(), "1\n"));
        files.push(("proc/7/cgroup".to_owned(), "0::/system.slice/sluice-store.service\n"));
        files.push(("proc/8/cgroup".to_owned(), "1:name=systemd:/old\n"));
        files.push(("proc/9/cgroup".to_owned(), "0::/../../etc\n"));
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        tree(&files)
    }

    #[test]
    fn everything_is_named_once_but_for_what_is_spared_and_what_is_stopped_already() {
        let root = machine();
        let store = Group::of(root.path(), 7).unwrap();
        let spared = [group("init.scope"), store];
        let found = groups_but(root.path(), &spared, &[]).unwrap();
        let expected = [
            "user.slice",
            "system.slice/NetworkManager.service",
            "system.slice/dbus.service",
            "system.slice/system-getty.slice",
        ];
        assert_eq!(found, expected.map(group));
        let names = ["NetworkManager.service".to_owned(), "getty@tty1.service".to_owned()];
        let found = groups_but(root.path(), &spared, &names).unwrap();
        assert_eq!(found, ["user.slice", "system.slice/dbus.service"].map(group));
    }

    #[test]
    fn a_machine_without_the_unified_hierarchy_and_a_path_out_of_it_are_refused() {
        let root = machine();
        for (pid, says) in [(8, "no line 0::/"), (9, "no group"), (10, "there is no")] {
            let error = Group::of(root.path(), pid).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn whoever_does_not_stop_is_named_and_a_group_that_ended_has_stopped() {
        let root = machine();
        let (user, dbus) = (group("user.slice"), group("system.slice/dbus.service"));
        user.set(root.path(), true).unwrap();
        let told = |group: &Group| {
            std::fs::read_to_string(group.file(root.path(), "cgroup.freeze")).unwrap()
        };
        assert_eq!(told(&user), "1");
        let events = user.file(root.path(), "cgroup.events");
        std::fs::write(events, "populated 1\nfrozen 1\n").unwrap();
        let gone = group("system.slice/gone.service");
        gone.set(root.path(), true).unwrap();
        wait_until_frozen(root.path(), &[user.clone(), gone.clone()], Duration::ZERO).unwrap();
        let error =
            wait_until_frozen(root.path(), &[user.clone(), dbus], Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), Kind::TimedOut);
        assert!(error.to_string().contains("system.slice/dbus.service did not stop"), "{error}");
        user.set(root.path(), false).unwrap();
        assert_eq!(told(&user), "0");
    }
}
