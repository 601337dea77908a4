# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the QEMU that runs the machines, and whether KVM can be used with it."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from . import apt, cache
from .errors import HarnessError

# QEMU 7.2 corrupts Linux 6.12 within seconds when it emulates two processors.
OLDEST_MAJOR = 10
PROGRAM = "qemu-system-x86_64"


@dataclasses.dataclass(frozen=True)
class Emulator:
    """How to call QEMU, and what tells it from another one in a cache key."""

    command: tuple[str, ...]
    version: str


def _version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"{command[0]} does not run:\n{done.stderr.strip()}")
    return done.stdout.splitlines()[0]


def _major(version: str) -> int:
    found = re.search(r"version (\d+)\.", version)
    if not found:
        raise HarnessError(f"this QEMU states no version: {version!r}")
    return int(found[1])


def get() -> Emulator:
    """Gives SLUICE_VM_QEMU, else the host's QEMU, else one from the release's backports."""
    given = os.environ.get("SLUICE_VM_QEMU")
    if given:
        return Emulator((given,), _version((given,)))
    found = shutil.which(PROGRAM)
    if found and _major(_version((found,))) >= OLDEST_MAJOR:
        return Emulator((found,), _version((found,)))
    suite = f"{apt.codename()}-backports"
    folder = cache.entry("qemu", {"suite": suite, "recipe": 1}, lambda path: _fetch(suite, path))
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    command = (
        "env",
        f"QEMU_MODULE_DIR={libraries}/qemu",
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(folder / "usr/bin" / PROGRAM),
        "-L",
        str(folder / "usr/share/qemu"),
        "-L",
        str(folder / "usr/share/seabios"),
    )
    return Emulator(command, _version(command))


def _fetch(suite: str, folder: pathlib.Path) -> None:
    print(f"unpacking QEMU from {suite} (the host's is missing or too old)", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        state = apt.Archive(pathlib.Path(scratch) / "apt", [suite, apt.codename()])
        state.unpack_closure("qemu-system-x86", suite, folder)
    # Bookworm's libc has its loader below /lib, later ones below /usr/lib.
    loader = folder / "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    if loader.exists():
        shutil.copytree(
            folder / "lib/x86_64-linux-gnu",
            folder / "usr/lib/x86_64-linux-gnu",
            symlinks=True,
            dirs_exist_ok=True,
        )
