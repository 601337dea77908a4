# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns what is put into the machine: programs under test, their units, the test programs.

A payload is a tar of files from / on, padded to the fixed size of the drive that carries
it, since a saved state fits only drives of unchanged size.
"""

import hashlib
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from . import cache
from .errors import HarnessError
from .qemu import PAYLOAD_BYTES

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ["sluice", "sluice-store", "sluiced"]
UNITS = TREE / "nixos-module/units"
PRESSURE = TREE / "vm-tests/pressure"


def find_programs(given: str | None) -> dict[str, pathlib.Path]:
    """Gives the programs under test: in the given folder, else the newest cargo build."""
    folders = [pathlib.Path(given)] if given else [TREE / "target/release", TREE / "target/debug"]
    if given and not folders[0].is_dir():
        raise HarnessError(f"--bin-dir {given}: no such folder")
    found = [{p: f / p for p in PROGRAMS if (f / p).is_file()} for f in folders]
    newest = max(
        found,
        key=lambda programs: max((path.stat().st_mtime for path in programs.values()), default=0.0),
    )
    if given and not newest:
        raise HarnessError(f"--bin-dir {given}: none of {', '.join(PROGRAMS)} is in it")
    return newest


def assemble(programs: dict[str, pathlib.Path], folder: pathlib.Path) -> None:
    """Fills a folder with the tree that a machine gets by default."""
    binaries = folder / "usr/bin"
    binaries.mkdir(parents=True)
    for name, path in programs.items():
        # Debug information would only fill the machine's memory.
        _run("strip", "--strip-debug", "-o", str(binaries / name), str(path))
    flags = ["-std=c17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    for source in PRESSURE.glob("*.c"):
        _run("cc", *flags, "-o", str(binaries / source.stem), str(source))
    if UNITS.is_dir():
        shutil.copytree(UNITS, folder / "usr/lib/systemd/system")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise HarnessError(f"{command[0]} is missing: apt-get install gcc libc6-dev") from error
    if done.returncode != 0:
        raise HarnessError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def pack(folder: pathlib.Path) -> pathlib.Path:
    """Gives the drive image that carries a folder's content."""
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        # The same content gives the same bytes, and with them the same saved state.
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted(folder.rglob("*")):
                tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_normal)
        size = file.tell()
        if size > PAYLOAD_BYTES:
            raise HarnessError(
                f"the payload has {size >> 20} MiB, its drive {PAYLOAD_BYTES >> 20} MiB: "
                "pack less, or raise PAYLOAD_BYTES in vm-tests/harness/qemu.py"
            )
        file.seek(0)
        while block := file.read(1 << 20):
            digest.update(block)

        def make(place: pathlib.Path) -> None:
            file.seek(0)
            with open(place / "payload.img", "wb") as image:
                shutil.copyfileobj(file, image)
                image.truncate(PAYLOAD_BYTES)

        return cache.entry("payload", digest.hexdigest(), make) / "payload.img"


def _normal(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = "root"
    item.mtime = 0
    return item
