#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs the kernel's checkpatch.pl, strictly, over the modules and the BPF programs.

    checkpatch.py [CHECKPATCH]

The script is Debian's, out of a package with the kernel's whole source (170 MB, minutes, once
for each machine; kept in the harness's cache), or the given one. Its findings are errors.
"""

import pathlib
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "vm-tests"))

from harness import apt, cache  # noqa: E402
from harness.errors import HarnessError  # noqa: E402

SUITE = "trixie-backports"
# The version whose script is asked: a newer one may have further opinions.
SOURCE = "linux-source-7.3"
PARTS = ["checkpatch.pl", "spelling.txt", "const_structs.checkpatch"]

MODULE_IGNORED = [
    "ALLOC_WITH_SIZEOF",  # kzalloc_obj: 6.12 has none
    "LONG_LINE_STRING",  # a message stays whole, to be found
]
# What is compiled into NVIDIA's driver: one list of symbols, and macros that are its lines.
GLUE_IGNORED = [
    *MODULE_IGNORED,
    "CAMELCASE",  # the names that the driver has
    "COMPLEX_MACRO",
    "DO_WHILE_MACRO_WITH_TRAILING_SEMICOLON",
    "MACRO_ARG_PRECEDENCE",
    "MACRO_ARG_REUSE",
    "MULTISTATEMENT_MACRO_USE_DO_WHILE",
    "SPACING",
    "TRAILING_SEMICOLON",
]
BPF_IGNORED = [
    *MODULE_IGNORED,
    "AVOID_EXTERNS",  # kfuncs and tunables are declared so
    "CAMELCASE",  # CUDA's names, compilers' types
    "COMPLEX_MACRO",  # macros that define a program or its ops
    "PARENTHESIS_ALIGNMENT",  # the same, written as a list of members
    "PREFER_DEFINED_ATTRIBUTE_MACRO",  # the kernel's headers are not there
    "PREFER_KERNEL_TYPES",
    "SPACING",  # takes a pointer in a macro's list for a product
    "VOLATILE",  # what is set before loading is const volatile
]


def script() -> pathlib.Path:
    """Gives checkpatch.pl, with its lists beside it."""

    def make(folder: pathlib.Path) -> None:
        print(f"unpacking checkpatch.pl from {SOURCE}", flush=True)
        archive = apt.Archive(folder / "apt", [SUITE])
        archive.unpack(SOURCE, folder / "apt/source")
        packed = folder / f"apt/source/usr/src/{SOURCE}.tar.xz"
        names = [f"{SOURCE}/scripts/{name}" for name in PARTS]
        done = subprocess.run(
            ["tar", "-xJf", packed, "-C", folder, "--strip-components=2", *names],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"{packed.name}: {done.stderr.strip()}")
        subprocess.run(["rm", "-rf", folder / "apt"], check=True)

    return cache.entry("checkpatch", {"source": SOURCE, "parts": PARTS}, make) / PARTS[0]


def check(checkpatch: pathlib.Path, files: list[pathlib.Path], ignored: list[str]) -> bool:
    """Prints what is found in the files; gives whether nothing was."""
    command = ["perl", checkpatch, "--strict", "--no-tree", "--terse", "--show-types", "--no-summary"]
    command += [f"--ignore={','.join(ignored)}", "-f"]
    if not files:
        raise HarnessError("no files to check: the tree's layout has changed")
    # It leaves a list of names where it runs, and looks for a kernel's names below its root.
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "include").mkdir()
        command[2:2] = [f"--root={scratch}"]
        return subprocess.run([*command, *sorted(files)], cwd=scratch, check=False).returncode == 0


def main() -> int:
    """Gives 0 (clean), 1 (findings) or 2 (could not check)."""
    try:
        checkpatch = pathlib.Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else script()
        if not checkpatch.is_file():
            raise HarnessError(f"{checkpatch}: no such file")
        glue = [*(TREE / "kernel-module").glob("*_glue/*.[ch]")]
        modules = [*{*(TREE / "kernel-module").rglob("*.[ch]")} - {*glue}]
        # The probes' client programs are user space's, in CUDA's own names.
        programs = [*(TREE / "bpf").rglob("*.bpf.[ch]"), TREE / "bpf/intf.h"]
        clean = [
            check(checkpatch, modules, MODULE_IGNORED),
            check(checkpatch, glue, GLUE_IGNORED),
            check(checkpatch, programs, BPF_IGNORED),
        ]
    except HarnessError as error:
        print(f"checkpatch.py: {error}", file=sys.stderr)
        return 2
    if all(clean):
        counts = f"{len(modules)} files of modules, {len(glue)} of glue, {len(programs)} of programs"
        print(f"checkpatch: {counts}, clean")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
