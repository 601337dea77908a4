# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns what is put into the machine: what `make install` installs, and the test programs.

A payload is a tar of files from / on, padded to the fixed size of the drive that carries
it, since a saved state fits only drives of unchanged size.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

from . import cache
from .errors import HarnessError
from .qemu import PAYLOAD_BYTES

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ["sluice", "sluice-store", "sluiced"]
# Test programs of the workspace: in the machine where the build has them.
FAKE_DRIVER = "libfake_cuda.so"
FAKE_DRIVER_PLACE = "usr/lib/sluice-fake/libcuda.so.1"
TEST_PROGRAMS = ["fake-cuda-ctl"]
POLICY_UNIT = TREE / "nixos-module/units/sluice-policy.service"
# What the NixOS module renders of its examples: `make nix` holds it to be that.
RENDERED = TREE / "nixos-module/tests/expected"
RENDERED_PLACE = "usr/lib/sluice-nixos"
PRESSURE = TREE / "vm-tests/pressure"
# What `make kernel` builds: the modules and policies, and the programs that use them.
# SLUICE_VM_MODULES: the same of another kernel, as `make -C kernel-module newest` does it.
KERNEL = pathlib.Path(os.environ.get("SLUICE_VM_MODULES") or TREE / "target/kernel").absolute()
VERIFIER_COST = TREE / "bpf/verifier-cost.txt"
POLICY_PROGRAMS = ["sluice-policy", "sluice-sim"]
MODULES = ["sluice_gpu.ko", "sluice_sim.ko", "without_btf.ko"]
SUPPLY = KERNEL / "supply/sluice_supply.ko"


def find_programs(given: str | None) -> dict[str, pathlib.Path]:
    """Gives the programs under test: in the given folder, else the newest cargo build."""
    folders = [pathlib.Path(given)] if given else [TREE / "target/release", TREE / "target/debug"]
    if given and not folders[0].is_dir():
        raise HarnessError(f"--bin-dir {given}: no such folder")
    names = [*PROGRAMS, *TEST_PROGRAMS, FAKE_DRIVER]
    found = [{p: f / p for p in names if (f / p).is_file()} for f in folders]
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
    if set(PROGRAMS) <= set(programs):
        # As on any other Debian, so that each scenario tries what it installs.
        built = programs[PROGRAMS[0]].parent.resolve()
        words = [f"DESTDIR={folder}", f"PROGRAMS={built}", "PREFIX=/usr"]
        _run("make", "--no-print-directory", "-C", str(TREE), "install", *words)
        # The tree lies in the machine's memory, and there is no desktop.
        (binaries / "sluice-tray").unlink()
    for name, path in programs.items():
        place = folder / FAKE_DRIVER_PLACE if name == FAKE_DRIVER else binaries / name
        place.parent.mkdir(parents=True, exist_ok=True)
        # Debug information would only fill the machine's memory.
        _run("strip", "--strip-debug", "-o", str(place), str(path))
    flags = ["-std=c17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    for source in PRESSURE.glob("*.c"):
        _run("cc", *flags, "-o", str(binaries / source.stem), str(source))
    if RENDERED.is_dir():
        shutil.copytree(RENDERED, folder / RENDERED_PLACE, symlinks=True)
    if has_policies():
        _add_policies(folder)


def has_policies() -> bool:
    """Whether `make kernel` has built what scenarios with binaries=policies need."""
    modules = [KERNEL / "kernel-module" / name for name in MODULES]
    return all(path.is_file() for path in [*modules, SUPPLY, *_policy_programs()])


def modules_release() -> str:
    """Gives the kernel that the modules of has_policies() are for."""
    module = KERNEL / "kernel-module" / MODULES[0]
    found = re.search(rb"\0vermagic=(\S+) ", module.read_bytes())
    if not found:
        raise HarnessError(f"{module} says of no kernel that it is for it: build it again")
    return found[1].decode()


def _policy_programs() -> list[pathlib.Path]:
    return [TREE / "target/debug" / name for name in POLICY_PROGRAMS]


def _add_policies(folder: pathlib.Path) -> None:
    library = folder / "usr/lib/sluice"
    (library / "modules").mkdir(parents=True)
    modules = [*(KERNEL / "kernel-module" / name for name in MODULES), SUPPLY]
    # Where `make -C kernel-module uvm` was asked for; one scenario of the soak needs it.
    for module in [*modules, *(KERNEL / "uvm").glob("*.ko")]:
        # The types stay: they are not debug information to strip.
        _run("strip", "--strip-debug", "-o", str(library / "modules" / module.name), str(module))
    # And where `make -C kernel-module driver` was.
    for module in (KERNEL / "driver").glob("*.ko"):
        (library / "modules/patched").mkdir(exist_ok=True)
        _run("strip", "--strip-debug", "-o", str(library / "modules/patched" / module.name), str(module))
    for path in _policy_programs():
        _run("strip", "--strip-debug", "-o", str(folder / "usr/bin" / path.name), str(path))
    for kind in ("policies", "misuse", "examples", "probes"):
        shutil.copytree(KERNEL / kind, library / kind)
    shutil.copy(VERIFIER_COST, library)
    units = folder / "usr/lib/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    shutil.copy(POLICY_UNIT, units)


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
