#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Builds the modules against the newest kernel of Debian's backports, below a folder.

    newest.py OUT [MAKE_ARGUMENT...]

That kernel's build tools need a newer libc than a host of an older release has, so they and
the compiler they name are unpacked into a root of their own in the harness's cache (400 MB,
some minutes, once for each version). The build has its mounts to itself: nothing is left
behind in that root. Prints what it built with, and leaves the kernel's name in OUT/release.
Needs root.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "vm-tests"))

from harness import apt, cache  # noqa: E402
from harness.errors import HarnessError  # noqa: E402

# Debian's newest release, and where it gets newer kernels: they follow unstable's.
RELEASE, BACKPORTS = "trixie", "trixie-backports"
NAME = re.compile(r"^linux-headers-([0-9]+)\.([0-9]+)\.([0-9]+)\+deb[0-9]+-cloud-amd64$")
PROGRAMS = {"mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
PACKAGES = ["make", "gcc"]
EXCLUDED = ["/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"]

# $1 the root, $2 the tree, $3 the folder to build in; then what runs inside.
INSIDE = """set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
for place in "$1" "$2"; do
    mkdir -p "$root$place"
    mount --bind "$place" "$root$place"
done
shift 2
exec chroot "$root" "$@"
"""


def newest() -> str:
    """Gives the newest kernel, as the part of its headers' name after `linux-headers-`."""
    with tempfile.TemporaryDirectory() as state:
        offers = apt.Archive(pathlib.Path(state), [BACKPORTS]).offers(NAME.pattern)
    found = {tuple(map(int, m.groups())): name for name in offers if (m := NAME.match(name))}
    if not found:
        raise HarnessError(f"{BACKPORTS} has no package like {NAME.pattern}")
    return found[max(found)].removeprefix("linux-headers-")


def toolchain(version: str) -> pathlib.Path:
    """Gives the root that holds the headers and what builds with them."""

    def make(folder: pathlib.Path) -> None:
        print(f"unpacking the headers of {version} and their compiler", flush=True)
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
            f"--include={','.join([f'linux-headers-{version}', *PACKAGES])}",
            RELEASE,
            str(folder / "root"),
            f"deb {apt.mirror()} {RELEASE} main",
            f"deb {apt.mirror()} {BACKPORTS} main",
        )

    inputs = {"version": version, "packages": PACKAGES, "release": RELEASE, "layout": 1}
    return cache.entry("toolchain", inputs, make) / "root"


def build(version: str, out: pathlib.Path, arguments: list[str]) -> None:
    """Builds the modules; a warning is an error."""
    out.mkdir(parents=True, exist_ok=True)
    root = toolchain(version)
    inside = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(root), str(TREE), str(out)]
    print(_run(*inside, "gcc", "--version").splitlines()[0], flush=True)
    command = ["make", "--no-print-directory", "-C", f"{TREE}/kernel-module", "modules"]
    command += [f"HEADERS=/usr/src/linux-headers-{version}", f"OUT={out}", *arguments]
    done = subprocess.run([*inside, *command], check=False)
    if done.returncode != 0:
        raise HarnessError(f"the modules do not build for {version}: {shlex.join(command)}")
    (out / "release").write_text(f"{version}\n", encoding="ascii")
    print(f"built for {version}: {out}/kernel-module", flush=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"{command[0]} failed ({done.returncode}):\n{done.stderr.strip()[-4000:]}")
    return done.stdout


def main() -> int:
    """Builds, or says what is wrong."""
    try:
        if len(sys.argv) < 2:
            raise HarnessError("give the folder to build in: newest.py OUT [MAKE_ARGUMENT...]")
        if os.geteuid() != 0:
            raise HarnessError("root is needed, to unpack another Debian's packages and enter them")
        apt.install(PROGRAMS)
        build(newest(), pathlib.Path(sys.argv[1]).absolute(), sys.argv[2:])
    except HarnessError as error:
        print(f"newest.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
