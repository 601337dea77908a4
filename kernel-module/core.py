#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Builds nvidia.ko and nvidia-uvm.ko with the semantic patches, core and all.

Debian's package has the driver's core as an object, so this takes the public source: a
repository of it, and a version of driver.lock. The core alone is 900 files; what is there
from an earlier run is not built again. Installs nothing.

    kernel-module/core.py HEADERS OUT REPOSITORY VERSION

JOBS (1) says how many compilers may run.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "vm-tests"))

import driver  # noqa: E402
import uvm  # noqa: E402
from harness.errors import HarnessError  # noqa: E402

MODULES = ["nvidia.ko", "nvidia-uvm.ko"]
# The core as an object, and where the kernel's build looks for it.
OBJECT = "_out/Linux_x86_64/nv-kernel.o"
BINARY = f"{driver.SIDE}/nv-kernel.o_binary"
# What a part of the linked driver has to have, so that a hook that was dropped is seen.
EXPECTED = {
    "nvidia.ko": [
        "nv_sluice_add_gpu",
        "nv_sluice_bind",
        "rm_sluice_preempt",
        "sluice_core_bind",
        "sluice_core_task_destroy",
        "sluice_core_task_init",
        "sluice_core_timeslice",
    ],
    "nvidia-uvm.ko": ["sluice_uvm_do_prefetch", "sluice_uvm_do_victim"],
}


def source(repository: pathlib.Path, version: str, copy: pathlib.Path) -> None:
    """Puts a version's source into a folder, unless it is there."""
    if copy.is_dir():
        return
    unfinished = copy.with_name(f".{copy.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with subprocess.Popen(
        ["git", "-C", str(repository), "archive", version], stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "-x", "-C", str(unfinished)], stdin=archive.stdout, check=True)
    if archive.returncode != 0:
        raise HarnessError(f"{repository} has no version {version}; see git -C {repository} tag")
    unfinished.rename(copy)


def build(headers: pathlib.Path, out: pathlib.Path, repository: pathlib.Path, version: str) -> None:
    """Builds both modules in a copy of the source below a folder, and puts them there."""
    copy = out / version
    source(repository, version, copy)
    read = driver.of_tag(repository, version)
    driver.write(driver.patched(driver.PARTS, read, version), copy)
    jobs = f"-j{os.environ.get('JOBS', '1')}"
    print(f"building the core of {version}: a quarter of an hour the first time", flush=True)
    uvm.run("make", "-C", str(copy / driver.CORE), jobs)
    (copy / BINARY).unlink(missing_ok=True)
    (copy / BINARY).symlink_to(copy / driver.CORE / OBJECT)
    kernel = headers.name.removeprefix("linux-headers-")
    print(f"building its modules for {kernel}: as long again", flush=True)
    uvm.run(
        "make", "-C", str(copy / driver.KERNEL), jobs, "modules",
        *uvm.kernel_of(headers), "NV_KERNEL_MODULES=nvidia nvidia-uvm",
    )  # fmt: skip
    for module in MODULES:
        path = copy / driver.KERNEL / module
        check(module, subprocess.check_output(["nm", str(path)], text=True))
        shutil.copy(path, out)


def check(module: str, symbols: str) -> None:
    """Refuses a module that lacks a hook, or that cannot be loaded without sluice_gpu."""
    defined = set(re.findall(r"^[0-9a-f]+ [tT] (\w+)$", symbols, re.MULTILINE))
    missing = [name for name in EXPECTED[module] if name not in defined]
    if missing:
        raise HarnessError(f"{module} was linked without {', '.join(missing)}")
    wanted = re.findall(r"^ +U (\w*sluice\w*)$", symbols, re.MULTILINE)
    if wanted:
        raise HarnessError(f"{module} needs symbols that nothing gives: {', '.join(wanted)}")


def main() -> int:
    """Builds what the arguments say."""
    if len(sys.argv) != 5:
        print(__doc__, file=sys.stderr)
        return 2
    headers, out, repository = (pathlib.Path(name).resolve() for name in sys.argv[1:4])
    try:
        build(headers, out, repository, sys.argv[4])
    except HarnessError as error:
        print(f"core.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
