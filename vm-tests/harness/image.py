# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns the Debian image: what is in it, and how it is made to boot quickly.

An image is a folder with `root.erofs`, `vmlinuz` and `initrd`. It is the same for all
scenarios and knows nothing of Sluice: what is under test comes in as a payload.
"""

import dataclasses
import lzma
import os
import pathlib
import shutil
import subprocess
import tempfile

from . import apt, cache
from .errors import HarnessError

SUITE = "trixie"
# The one place that pins the kernel. SLUICE_VM_KERNEL names another one.
KERNEL = "6.12.95+deb12-cloud-amd64"
KERNEL_SUITES = ["bookworm-backports", "trixie", "trixie-backports"]

PACKAGES = """
    systemd systemd-sysv dbus udev kmod procps util-linux iproute2
    fio nbd-client libnbd-bin e2fsprogs xfsprogs strace
    polkitd upower
""".split()

HOST_PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.erofs": "erofs-utils",
    "cpio": "cpio",
    "busybox": "busybox-static",
    "depmod": "kmod",
}

# Modules that the initramfs loads to reach the root, with what they depend on.
ROOT_MODULES = ["crc32c_generic", "virtio_blk", "erofs", "overlay"]
# Of these, what newer kernels have no more: checksums are plain functions there.
GONE_MODULES = ["crc32c_generic"]

# Units that cost boot time under emulation and do nothing for a test.
MASKED = """
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer
    e2scrub_all.timer e2scrub_reap.service systemd-tmpfiles-clean.timer
    getty.target getty-pre.target getty@.service serial-getty@.service console-getty.service
    dev-hugepages.mount dev-mqueue.mount sys-kernel-config.mount sys-kernel-debug.mount
    sys-kernel-tracing.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount
    modprobe@.service systemd-binfmt.service
    systemd-journal-flush.service systemd-journal-catalog-update.service
    systemd-hwdb-update.service systemd-update-done.service systemd-update-utmp.service
    systemd-update-utmp-runlevel.service systemd-firstboot.service systemd-machine-id-commit.service
    systemd-sysusers.service systemd-random-seed.service systemd-remount-fs.service
    systemd-pcrmachine.service systemd-pcrphase.service systemd-pcrphase-initrd.service
    systemd-pcrphase-sysinit.service systemd-tpm2-setup.service systemd-tpm2-setup-early.service
    systemd-battery-check.service systemd-bsod.service systemd-rfkill.socket
    systemd-networkd.service systemd-networkd.socket systemd-network-generator.service
    systemd-timesyncd.service systemd-pstore.service systemd-ask-password-console.path
    systemd-ask-password-wall.path systemd-user-sessions.service systemd-logind.service
    systemd-udev-load-credentials.service systemd-mountfsd.socket systemd-nsresourced.socket
    systemd-pcrextend.socket systemd-pcrlock.socket systemd-hibernate-clear.service
    systemd-sysext.socket systemd-creds.socket systemd-hostnamed.socket systemd-importd.socket
    systemd-journald-audit.socket systemd-quotacheck-root.service nbd-client.service nbd@.service
    xfs_scrub_all.timer remote-fs.target systemd-initctl.socket systemd-vconsole-setup.service
""".split()

EXCLUDED = ["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"]

GUEST = pathlib.Path(__file__).resolve().parent.parent / "guest"


@dataclasses.dataclass(frozen=True)
class Image:
    """Where the parts of a built image lie, and what tells it from another."""

    root: pathlib.Path
    kernel: pathlib.Path
    initrd: pathlib.Path
    identity: str


def kernel_version() -> str:
    """Gives the kernel to boot, as the part of its package's name after linux-image-."""
    return os.environ.get("SLUICE_VM_KERNEL") or KERNEL


def _inputs() -> dict[str, object]:
    guest = {path.name: path.read_text(encoding="utf-8") for path in sorted(GUEST.iterdir())}
    script = pathlib.Path(__file__).read_text(encoding="utf-8")
    return {"kernel": kernel_version(), "guest": guest, "script": script}


def get() -> Image:
    """Gives the image, building it where the cache does not have it (a few minutes)."""
    folder = cache.entry("image", _inputs(), _build)
    return Image(folder / "root.erofs", folder / "vmlinuz", folder / "initrd", folder.name)


def _run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise HarnessError(f"{words} failed ({done.returncode}):\n{done.stderr.strip()[-4000:]}")


def _build(folder: pathlib.Path) -> None:
    if os.geteuid() != 0:
        raise HarnessError("building the image needs root, for the owners of its files")
    apt.install(HOST_PROGRAMS)
    print("building the image (once for each machine and version)", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = pathlib.Path(scratch) / "root"
        unpacked = pathlib.Path(scratch) / "kernel"
        _fetch_kernel(pathlib.Path(scratch) / "apt", unpacked)
        _bootstrap(root)
        modules = _install_modules(unpacked, root)
        _configure(root)
        _run("mkfs.erofs", "--quiet", "-T0", folder / "root.erofs", root)
        _make_initrd(pathlib.Path(scratch) / "initrd", modules, folder / "initrd")
        shutil.copy(_kernel_in(unpacked), folder / "vmlinuz")


def _fetch_kernel(state: pathlib.Path, target: pathlib.Path) -> None:
    archive = apt.Archive(state, KERNEL_SUITES)
    package = f"linux-image-{kernel_version()}"
    offers = archive.offers(r"^linux-image-[0-9].*-amd64$")
    if package not in offers:
        versions = "\n  ".join(name.removeprefix("linux-image-") for name in offers)
        raise HarnessError(
            f"the archive has no kernel {kernel_version()}.\n"
            f"Set SLUICE_VM_KERNEL to one of these, or KERNEL in {__file__}:\n  {versions}"
        )
    archive.unpack(package, target)
    # Of newer kernels it is empty: what it needs of its own version are the parts.
    for part in archive.needs(package):
        if part.endswith(f"-{kernel_version()}"):
            archive.unpack(part, target)


def _kernel_in(unpacked: pathlib.Path) -> pathlib.Path:
    """Gives the kernel itself: in /boot, where newer ones have it beside their modules."""
    version = kernel_version()
    places = [unpacked / f"boot/vmlinuz-{version}", unpacked / f"usr/lib/modules/{version}/vmlinuz"]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        names = "\n  ".join(map(str, places))
        raise HarnessError(f"the packages of kernel {version} have none of\n  {names}")
    return found


def _bootstrap(root: pathlib.Path) -> None:
    options = [f"--aptopt={line}" for line in apt.carried_options()]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    _run(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        '--aptopt=APT::Install-Recommends "false"',
        *options,
        f"--include={','.join(PACKAGES)}",
        SUITE,
        root,
        apt.mirror(),
    )


def _install_modules(kernel: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """Moves the kernel's modules into the root, unpacked: xz is slow under emulation."""
    # Where the kernel package has /lib as a folder, trixie has it as a link to /usr/lib.
    source = next(p for p in (kernel / "usr/lib/modules", kernel / "lib/modules") if p.is_dir())
    modules = root / "usr/lib/modules" / kernel_version()
    ignored = shutil.ignore_patterns("vmlinuz")
    shutil.copytree(source / kernel_version(), modules, symlinks=True, ignore=ignored)
    for packed in modules.rglob("*.ko.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    _run("depmod", "-b", root, kernel_version())
    return modules


def _configure(root: pathlib.Path) -> None:
    """Makes the first boot do as little as a later one."""
    etc = root / "etc"
    (etc / "machine-id").write_text("51d1ce51d1ce51d1ce51d1ce51d1ce51\n", encoding="ascii")
    (etc / "hostname").write_text("machine\n", encoding="ascii")
    (etc / "hosts").write_text("127.0.0.1 localhost machine\n", encoding="ascii")
    (etc / "fstab").write_text("", encoding="ascii")
    system = etc / "systemd/system"
    for unit in MASKED:
        link = system / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    # Only what a scenario looks at is announced again at boot.
    coldplug = system / "systemd-udev-trigger.service.d/block.conf"
    coldplug.parent.mkdir()
    coldplug.write_text(
        "[Service]\nExecStart=\nExecStart=udevadm trigger --action=add --subsystem-match=block\n",
        encoding="ascii",
    )
    shutil.copy(GUEST / "sluice-shell.service", system / "sluice-shell.service")
    wants = system / "sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "sluice-shell.service").symlink_to("../sluice-shell.service")
    shell = root / "usr/local/sbin/sluice-shell"
    shutil.copy(GUEST / "shell", shell)
    shell.chmod(0o755)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    # Newer than /usr: units with ConditionNeedsUpdate have nothing to do.
    for stamp in (etc / ".updated", root / "var/.updated"):
        stamp.write_text("", encoding="ascii")


def _make_initrd(folder: pathlib.Path, modules: pathlib.Path, target: pathlib.Path) -> None:
    for name in ("bin", "modules", "proc", "sys", "dev"):
        (folder / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, folder / "bin/busybox")
    for applet in "sh mount umount insmod cat grep tar mkdir poweroff switch_root".split():
        (folder / "bin" / applet).symlink_to("busybox")
    shutil.copy(GUEST / "init", folder / "init")
    (folder / "init").chmod(0o755)
    order = _load_order(modules)
    for path in order:
        shutil.copy(modules / path, folder / "modules" / pathlib.Path(path).name)
    names = "".join(f"{pathlib.Path(path).name}\n" for path in order)
    (folder / "modules/order").write_text(names, encoding="ascii")
    _run("sh", "-c", f"find . | cpio -o -H newc --quiet -R 0:0 > '{target}'", cwd=folder)


def _load_order(modules: pathlib.Path) -> list[str]:
    """Gives the files of ROOT_MODULES, each after what it depends on."""
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text(encoding="ascii").splitlines():
        path, _, rest = line.partition(":")
        needs[pathlib.Path(path).stem.replace("-", "_")] = (path, rest.split())
    built_in = (modules / "modules.builtin").read_text(encoding="ascii").split()
    inside = {pathlib.Path(path).stem.replace("-", "_") for path in built_in}
    order: list[str] = []
    for name in ROOT_MODULES:
        if name in needs:
            path, first = needs[name]
            order += [p for p in [*reversed(first), path] if p not in order]
        elif name not in inside and name not in GONE_MODULES:
            raise HarnessError(f"kernel {kernel_version()} has no module {name}")
    return order
