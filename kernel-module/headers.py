#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Prints the folder of the kernel headers to build the modules against.

The version is the one that the scenarios boot (vm-tests/harness/image.py), or the first
argument: the part of a headers package's name after `linux-headers-`. What is missing is
downloaded into the harness's cache; neither the tree nor the host's packages change. The
package brings a `vmlinux` that holds only type information, which is what gives the
modules theirs.
"""

import pathlib
import re
import shutil
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "vm-tests"))

from harness import apt, cache, image  # noqa: E402
from harness.errors import HarnessError  # noqa: E402

# The host's tools must be able to run the package's: a backport where there is one.
SUITES = ["bookworm-backports", "trixie", "trixie-backports"]
PROGRAMS = {"pahole": "pahole", "gcc": "gcc", "make": "make"}


def headers(version: str) -> pathlib.Path:
    """Gives the folder to hand to `make -C`."""
    folder = cache.entry("headers", {"version": version, "layout": 1}, lambda to: _make(version, to))
    return folder / f"usr/src/linux-headers-{version}"


def _make(version: str, folder: pathlib.Path) -> None:
    archive = apt.Archive(folder / "apt", SUITES)
    package = f"linux-headers-{version}"
    offers = archive.offers(r"^linux-headers-[67]\..*-amd64$")
    if package not in offers:
        listing = "\n  ".join(name.removeprefix("linux-headers-") for name in offers)
        raise HarnessError(f"the archive has no {package}; give one of these:\n  {listing}")
    # 6.12.95+deb12-cloud-amd64 -> 6.12.95+deb12
    release = re.sub(r"(-cloud|-rt)?-amd64$", "", version)
    for name in (package, f"linux-headers-{release}-common", f"linux-kbuild-{release}"):
        archive.unpack(name, folder)
    shutil.rmtree(folder / "apt")
    _relocate(folder, f"usr/src/linux-headers-{version}")


def _relocate(folder: pathlib.Path, top: str) -> None:
    """Makes the package's absolute paths and links point into the folder, by its final name."""
    place = cache.root() / f"headers-{cache.key({'version': top.split('headers-')[1], 'layout': 1})}"
    makefile = folder / top / "Makefile"
    text = makefile.read_text(encoding="utf-8")
    moved = re.sub(r"(?<![\w.])/usr/", f"{place}/usr/", text)
    if moved == text:
        raise HarnessError(f"{makefile} names no /usr/src: the package's layout has changed")
    makefile.write_text(moved, encoding="utf-8")
    for link in (p for p in (folder / top).iterdir() if p.is_symlink()):
        target = str(link.readlink())
        if target.startswith("/usr/"):
            link.unlink()
            link.symlink_to(f"{place}{target}")


def main() -> int:
    """Prints the folder, or says what is wrong."""
    try:
        apt.install(PROGRAMS)
        print(headers(sys.argv[1] if len(sys.argv) > 1 else image.kernel_version()))
    except HarnessError as error:
        print(f"headers.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
