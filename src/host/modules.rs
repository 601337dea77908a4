// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules and the kernel's age.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::queue::kernel_release;
use super::sysfs::read_if_there;
use crate::engine::error::{Error, Kind, Result};

/// The oldest kernel a device is armed on, `(major, minor)`. The I/O-flusher mark
/// needs 5.6 and nbd's back-end identifier 5.14; 6.1 is the oldest long-term
/// kernel that has both.
pub const MINIMUM_KERNEL: (u32, u32) = (6, 1);

/// What [`ensure_module`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// It was there: loaded by somebody, with parameters of their choice, or
    /// built in.
    Present,
    /// It was loaded just now, with our parameters.
    Loaded,
}

/// Makes sure that kernel module `name` is there, running `modprobe` if it is
/// not, with `parameters` such as `max_part=0`. Blocks while it loads.
///
/// Errors: `Missing` if there is no modprobe or no such module for this kernel,
/// `Denied` without the right to load it.
pub fn ensure_module(root: &Path, name: &str, parameters: &[&str]) -> Result<Module> {
    let loaded = root.join("sys/module").join(name);
    if loaded.exists() {
        return Ok(Module::Present);
    }
    let modprobe = find_modprobe(root)?.ok_or_else(|| {
        Error::new(Kind::Missing, format!("module {name} is not loaded and there is no modprobe"))
            .with_hint(format!("load it at boot: {name} in /etc/modules-load.d/sluice.conf"))
    })?;
    let output = Command::new(&modprobe)
        .arg(name)
        .args(parameters)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Error::new(Kind::Io, format!("cannot run {}", modprobe.display())).with_source(error)
        })?;
    if output.status.success() && loaded.exists() {
        return Ok(Module::Loaded);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(not_loaded(root, name, &modprobe, output.status, said.trim())?)
}

fn not_loaded(
    root: &Path,
    name: &str,
    modprobe: &Path,
    status: std::process::ExitStatus,
    said: &str,
) -> Result<Error> {
    let release = kernel_release(root)?;
    let modules = find_modules(root, &release);
    let what = format!(
        "cannot load module {name} for kernel {release}: {} ended with {status}{}{said}",
        modprobe.display(),
        if said.is_empty() { "" } else { ": " },
    );
    // kmod and busybox word these alike enough; the words choose only the hint.
    Ok(if said.contains("not found") || modules.is_none() {
        let hint = match modules {
            None => format!(
                "no modules of kernel {release} are installed; was the kernel upgraded? then reboot"
            ),
            Some(folder) => {
                format!("install the kernel's {name} module ({} has none)", folder.display())
            }
        };
        Error::new(Kind::Missing, what).with_hint(hint)
    } else if said.contains("not permitted") || said.contains("denied") {
        Error::new(Kind::Denied, what).with_hint(format!(
            "load it at boot ({name} in /etc/modules-load.d/sluice.conf), or give the unit CAP_SYS_MODULE"
        ))
    } else {
        Error::new(Kind::Io, what).with_hint("the kernel logs its reason: see dmesg")
    })
}

/// The kernel's own choice of modprobe (NixOS sets it) or the usual places.
fn find_modprobe(root: &Path) -> Result<Option<PathBuf>> {
    let configured = read_if_there(&root.join("proc/sys/kernel/modprobe"))?;
    Ok(configured
        .as_deref()
        .into_iter()
        .chain([
            "/usr/sbin/modprobe",
            "/sbin/modprobe",
            "/usr/bin/modprobe",
            "/bin/modprobe",
            "/run/current-system/sw/bin/modprobe",
        ])
        // Empty where the kernel may not load modules by itself; we ask on purpose.
        .filter(|path| path.starts_with('/'))
        .map(|path| root.join(&path[1..]))
        .find(|path| path.is_file()))
}

fn find_modules(root: &Path, release: &str) -> Option<PathBuf> {
    ["lib/modules", "usr/lib/modules", "run/booted-system/kernel-modules/lib/modules"]
        .into_iter()
        .map(|folder| root.join(folder).join(release))
        .find(|path| path.is_dir())
}

/// Refuses a kernel older than [`MINIMUM_KERNEL`]; returns the release.
pub fn require_kernel(root: &Path) -> Result<String> {
    let release = kernel_release(root)?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(Error::new(Kind::Protocol, format!("kernel release {release:?}: no version")));
    };
    if (major, minor) < MINIMUM_KERNEL {
        let (major, minor) = MINIMUM_KERNEL;
        return Err(Error::new(
            Kind::Missing,
            format!("kernel {release} is too old to swap over nbd safely"),
        )
        .with_hint(format!("boot Linux {major}.{minor} or newer")));
    }
    Ok(release)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests_support::tree;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A root where modprobe is a script that does `body`.
    fn machine(body: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tree(files);
        let tool = root.path().join("run/current-system/sw/bin/modprobe");
        fs::create_dir_all(tool.parent().unwrap()).unwrap();
        fs::write(&tool, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    const RELEASE: (&str, &str) = ("proc/sys/kernel/osrelease", "6.12.95+deb12-amd64\n");

    #[test]
    fn a_module_that_is_there_is_not_loaded_again() {
        let root = machine("exit 1", &[("sys/module/nbd/parameters/max_part", "16\n")]);
        assert_eq!(ensure_module(root.path(), "nbd", &[]).unwrap(), Module::Present);
    }

    #[test]
    fn a_missing_module_is_loaded_with_its_parameters() {
        let root = machine("", &[RELEASE]);
        let path = root.path().display();
        let body = format!(
            "/bin/mkdir -p {path}/sys/module/nbd && echo \"$@\" > {path}/arguments && test -z \"$HOME\""
        );
        let tool = root.path().join("run/current-system/sw/bin/modprobe");
        fs::write(tool, format!("#!/bin/sh\n{body}\n")).unwrap();
        let found = ensure_module(root.path(), "nbd", &["nbds_max=1", "max_part=0"]).unwrap();
        assert_eq!(found, Module::Loaded);
        let arguments = fs::read_to_string(root.path().join("arguments")).unwrap();
        assert_eq!(arguments, "nbd nbds_max=1 max_part=0\n");
    }

    #[test]
    fn the_kernels_own_modprobe_comes_first() {
        let root = machine(
            "echo wrong one >&2; exit 1",
            &[
                RELEASE,
                ("proc/sys/kernel/modprobe", "/nix/store/kmod/bin/modprobe\n"),
                ("nix/store/kmod/bin/modprobe", "#!/bin/sh\necho right one >&2; exit 3\n"),
            ],
        );
        let tool = root.path().join("nix/store/kmod/bin/modprobe");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let error = ensure_module(root.path(), "nbd", &[]).unwrap_err();
        assert!(error.to_string().ends_with("exit status: 3: right one"), "{error}");
    }

    #[test]
    fn a_module_the_kernel_does_not_have_names_release_and_folder() {
        let body = "echo 'modprobe: FATAL: Module nbd not found in directory X' >&2; exit 1";
        let root = machine(body, &[RELEASE, ("lib/modules/6.12.95+deb12-amd64/modules.dep", "")]);
        let error = ensure_module(root.path(), "nbd", &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("module nbd for kernel 6.12.95+deb12-amd64"), "{error}");
        assert!(error.to_string().contains("Module nbd not found"), "{error}");
        assert!(error.hint().unwrap().contains("lib/modules/6.12.95+deb12-amd64 has none"));
    }

    #[test]
    fn a_kernel_whose_modules_are_gone_is_told_to_reboot() {
        let root = machine("echo boom >&2; exit 1", &[RELEASE]);
        let error = ensure_module(root.path(), "nbd", &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.hint().unwrap().contains("reboot"));
    }

    #[test]
    fn a_refused_load_and_a_failed_one_differ() {
        let modules = ("lib/modules/6.12.95+deb12-amd64/modules.dep", "");
        for (said, kind, hint) in [
            ("could not insert 'nbd': Operation not permitted", Kind::Denied, "CAP_SYS_MODULE"),
            ("could not insert 'nbd': Exec format error", Kind::Io, "dmesg"),
        ] {
            let root = machine(&format!("echo \"{said}\" >&2; exit 1"), &[RELEASE, modules]);
            let error = ensure_module(root.path(), "nbd", &[]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.hint().unwrap().contains(hint), "{error:?}");
        }
    }

    #[test]
    fn without_modprobe_the_way_out_is_to_load_at_boot() {
        let root = tree(&[RELEASE, ("proc/sys/kernel/modprobe", "\n")]);
        let error = ensure_module(root.path(), "nbd", &[]).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.hint().unwrap().contains("modules-load.d"));
    }

    #[test]
    fn kernels_are_compared_by_number_and_old_ones_refused() {
        let check =
            |release: &str| require_kernel(tree(&[("proc/sys/kernel/osrelease", release)]).path());
        for good in ["6.1.0\n", "6.12.95+deb12-amd64\n", "10.0-rc1\n"] {
            assert_eq!(check(good).unwrap(), good.trim_end());
        }
        for old in ["6.0.19\n", "5.15.0-generic\n"] {
            let error = check(old).unwrap_err();
            assert_eq!(error.kind(), Kind::Missing);
            assert!(error.hint().unwrap().contains("6.1 or newer"));
        }
        for broken in ["\n", "six.one\n", "6\n"] {
            assert_eq!(check(broken).unwrap_err().kind(), Kind::Protocol, "{broken:?}");
        }
    }
}
