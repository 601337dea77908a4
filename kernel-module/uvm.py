#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Builds nvidia-uvm of Debian's open driver, to be loaded where there is no GPU.

Fetches the driver's package into the harness's cache, takes its kernel interface without
the prebuilt core, writes a stub of the core's functions that nvidia-uvm calls (from the
prototypes of the package's own header), and builds both below a folder. Nothing of the
driver is in this tree. nvidia-uvm is the same binary that loads on the real core; on the
stub there is no GPU, but managed memory, the processor's faults and the prefetcher work.

    kernel-module/uvm.py HEADERS OUT RELEASE              as in 550.163.01
    kernel-module/uvm.py --patched HEADERS OUT RELEASE    with the semantic patches (driver.py)
"""

import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "vm-tests"))

import driver as driver_patches  # noqa: E402
from harness import apt, cache  # noqa: E402
from harness.errors import HarnessError  # noqa: E402

PACKAGE = "nvidia-open-kernel-source"
SUITES = ["bookworm", "trixie"]
# Result, name, parameters.
PROTOTYPE = re.compile(r"^(\w[\w ]*?\**) ?\b(nvUvmInterface\w+)\(([^;{]*)\);", re.MULTILINE)
HEADER = "common/inc/nv_uvm_interface.h"
STUB_HEAD = """\
// SPDX-License-Identifier: GPL-2.0-only
/* Written by kernel-module/uvm.py: a core without a GPU. */
#include <linux/module.h>
#include <linux/string.h>
#include "nv_uvm_interface.h"
"""
STUB_END = """
MODULE_DESCRIPTION("Stands in for the driver's core where there is no GPU");
MODULE_LICENSE("Dual MIT/GPL");
"""
# What nvidia-uvm cannot do without; all else fails, as for a GPU that is not there.
BODIES = {
    "nvUvmInterfaceSessionCreate": "memset(platformInfo, 0, sizeof(*platformInfo));\n\treturn NV_OK;",
    "nvUvmInterfaceSessionDestroy": "return NV_OK;",
    "nvUvmInterfaceRegisterUvmCallbacks": "return NV_OK;",
}
KBUILD = "nvidia-uvm/nvidia-uvm.Kbuild"
# The stub is compiled as the driver's own files are.
KBUILD_STUB = """\
obj-m += nvidia-uvm/nvidia_rm_stub.o
$(call ASSIGN_PER_OBJ_CFLAGS, nvidia-uvm/nvidia_rm_stub.o, $(NVIDIA_UVM_CFLAGS))
NV_OBJECTS_DEPEND_ON_CONFTEST += nvidia-uvm/nvidia_rm_stub.o
"""
MODULES = ["nvidia-uvm.ko", "nvidia-uvm/nvidia_rm_stub.ko"]
TESTING = "nvidia-uvm-testing.ko"


def source(release: str) -> pathlib.Path:
    """Gives the folder of a release's kernel interface."""
    inputs = {"package": PACKAGE, "release": release, "layout": 2}
    folder = cache.entry("nvidia-source", inputs, lambda to: _fetch(release, to))
    return folder / "modules/nvidia-open-kernel"


def _fetch(release: str, folder: pathlib.Path) -> None:
    archive = apt.Archive(folder / "apt", SUITES, "contrib")
    offers = archive.versions(PACKAGE)
    # 550.163.01-2 -> 550.163.01
    fitting = [version for version in offers if version.split("-")[0] == release]
    if not fitting:
        raise HarnessError(
            f"the archive has no {PACKAGE} of release {release}; "
            f"give DRIVER= one of these: {', '.join(offers)}"
        )
    archive.unpack(f"{PACKAGE}={fitting[0]}", folder)
    inner = folder / "usr/src/nvidia-open-kernel.tar.xz"
    run("tar", "-xJf", str(inner), "--exclude=*_binary", "-C", str(folder))
    shutil.rmtree(folder / "apt")
    shutil.rmtree(folder / "usr")


def run(*command: str) -> None:
    """Runs a command; says the end of its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip().splitlines()[-40:]
        raise HarnessError(f"{' '.join(command)} failed:\n" + "\n".join(output))


def stub(header: str) -> str:
    """Gives the stub's source for the prototypes of a header."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    parts = [STUB_HEAD]
    for result, name, parameters in PROTOTYPE.findall(header):
        body = BODIES.get(name) or _failure(result)
        parts.append(f"\n{result} {name}({parameters})\n{{\n\t{body}\n}}\nEXPORT_SYMBOL({name});\n")
    return "".join([*parts, STUB_END])


def _failure(result: str) -> str:
    if result == "void":
        return ""
    return "return NV_ERR_NOT_SUPPORTED;" if result == "NV_STATUS" else "return 0;"


def kernel_of(headers: pathlib.Path) -> list[str]:
    """Gives what the driver's makefiles are to be told of a kernel."""
    common = re.sub(r"(-cloud|-rt)?-amd64$", "-common", str(headers))
    kernel = headers.name.removeprefix("linux-headers-")
    return [f"SYSSRC={common}", f"SYSOUT={headers}", f"KERNEL_UNAME={kernel}"]


def build(headers: pathlib.Path, out: pathlib.Path, release: str, patched: bool = False) -> None:
    """Builds both modules in a copy of the driver below a folder, and puts them there."""
    driver = source(release)
    kernel = headers.name.removeprefix("linux-headers-")
    # What the driver has found out about a kernel is in its folder, so each kernel has one.
    copy = out / f"{release}-{kernel}{'-patched' if patched else ''}"
    if not copy.is_dir():
        unfinished = copy.with_name(f".{copy.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(driver, unfinished, symlinks=True)
        unfinished.rename(copy)
    # UVM relies on probes of the kernel that only the core's list asks for.
    core = (driver / "nvidia/nvidia.Kbuild").read_text(encoding="utf-8")
    own = (driver / KBUILD).read_text(encoding="utf-8")
    probes = re.findall(r"^NV_CONFTEST_\w+ \+= .*$", core, re.MULTILINE)
    files = {
        KBUILD: "\n".join([own, *probes, KBUILD_STUB]),
        "nvidia-uvm/nvidia_rm_stub.c": stub((driver / HEADER).read_text(encoding="utf-8")),
    }
    print(f"building nvidia-uvm {release} for {kernel}: some minutes the first time", flush=True)
    if patched:
        read = driver_patches.of_package(driver)
        ours = driver_patches.patched([driver_patches.UVM_PART], read, release)
        # Another binary, which does what a scenario needs where there is no GPU.
        _make(copy, headers, {**files, **_inner(driver_patches.with_testing(ours))})
        shutil.copy(copy / MODULES[0], out / TESTING)
        files.update(_inner(ours))
    _make(copy, headers, files)
    for module in MODULES:
        shutil.copy(copy / module, out)


def _inner(files: dict[str, str]) -> dict[str, str]:
    """Names files as Debian's package has them, which is the kernel's side only."""
    return {path.removeprefix(f"{driver_patches.KERNEL}/"): text for path, text in files.items()}


def _make(copy: pathlib.Path, headers: pathlib.Path, files: dict[str, str]) -> None:
    driver_patches.write(files, copy)
    run(
        "make", "-C", str(copy), "-j2", "modules",
        *kernel_of(headers), "NV_KERNEL_MODULES=nvidia-uvm",
    )  # fmt: skip


def main() -> int:
    """Builds what the arguments say."""
    patched = sys.argv[1:2] == ["--patched"]
    arguments = sys.argv[2 if patched else 1 :]
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    headers, out = (pathlib.Path(name).resolve() for name in arguments[:2])
    try:
        build(headers, out, arguments[2], patched)
    except HarnessError as error:
        print(f"uvm.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
