#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Applies the semantic patches to the source of NVIDIA's driver, and checks what they did.

spatch says nothing of a rule that matches nowhere, or at one place too many. So what each
rule inserts is counted by file and function, and compared with driver.lock, which says for
each version of the driver what has to come out.

    kernel-module/driver.py check RELEASE...    nvidia-uvm of Debian's packages of these releases
    kernel-module/driver.py matrix DIR          all versions of driver.lock, nvidia-uvm and the
                                                core, from a repository of the public source
    kernel-module/driver.py record DIR TAG...   writes what comes out for these into driver.lock

Look at the difference before you commit what `record` has written.
"""

import collections
import dataclasses
import difflib
import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "vm-tests"))

from harness.errors import HarnessError  # noqa: E402

LOCK = HERE / "driver.lock"
RULES = HERE / "semantic-patches"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the driver: what the lock calls it, and the file of each rule file."""

    key: str
    files: dict[str, str]


KERNEL = "kernel-open"
UVM = f"{KERNEL}/nvidia-uvm"
SIDE = f"{KERNEL}/nvidia"
CORE = "src/nvidia"
# In Debian's packages, too.
UVM_PART = Part(
    "sites",
    {
        "eviction": f"{UVM}/uvm_pmm_gpu.c",
        "module": f"{UVM}/uvm.c",
        "owner": f"{UVM}/uvm_va_space.c",
        "prefetch": f"{UVM}/uvm_perf_prefetch.c",
    },
)
CORE_PART = Part(
    "core",
    {
        "core_channel": f"{CORE}/src/kernel/gpu/fifo/kernel_channel.c",
        "core_end": f"{CORE}/src/kernel/gpu/fifo/kernel_channel_group.c",
        "core_gpu": f"{SIDE}/nv.c",
        "core_tasks": f"{CORE}/src/kernel/gpu/fifo/kernel_channel_group_api.c",
    },
)
PARTS = [UVM_PART, CORE_PART]
# For a scenario only: the lists of chunks where there is no GPU. On top of the others.
TESTING = Part("testing", {"testing/pool": f"{UVM}/uvm_pmm_gpu.c"})
# Where each file of ours goes.
GLUE = {
    "core_glue/sluice_core.c": [f"{CORE}/arch/nvalloc/unix/src"],
    "core_glue/sluice_core.h": [f"{CORE}/arch/nvalloc/unix/include"],
    "core_glue/sluice_task.h": [f"{CORE}/arch/nvalloc/unix/include", SIDE],
    "core_glue/sluice_rm.c": [SIDE],
    "core_glue/sluice_rm.h": [SIDE],
    "uvm_glue/sluice_uvm.c": [UVM],
    "uvm_glue/sluice_uvm.h": [UVM],
}
# What is added to the driver's own lists: of sources, and of what its core gives the kernel.
LISTED = {
    f"{UVM}/nvidia-uvm-sources.Kbuild": "NVIDIA_UVM_SOURCES += nvidia-uvm/sluice_uvm.c",
    f"{SIDE}/nvidia-sources.Kbuild": "NVIDIA_SOURCES += nvidia/sluice_rm.c",
    f"{CORE}/srcs.mk": "SRCS += arch/nvalloc/unix/src/sluice_core.c",
    f"{CORE}/exports_link_command.txt": (
        "--undefined=rm_sluice_number\n--undefined=rm_sluice_preempt"
    ),
}
# How the driver's lists are declared, for sluice_uvm.c: newer ones have an array.
LISTS = f"{UVM}/uvm_pmm_gpu.h"
SHAPE = "/* Written by driver.py: what this version of the driver looks like. */\n"
# The beginning of a function: nothing of a body stands at a line's start.
FUNCTION = re.compile(r"^[A-Za-z_][^;=]*?\b(\w+)\(")
NAME = re.compile(r"^(\w+)$")
OUTSIDE = "(file)"

# Inserted lines by file and function.
Sites = dict[str, dict[str, int]]
# Gives the text of one of the driver's files by its path in the public source.
Read = Callable[[str], str]


# Many versions have the same text.
@functools.cache
def apply(rule: str, text: str) -> str:
    """Gives a file as a rule file leaves it."""
    (place,) = (part.files[rule] for part in (*PARTS, TESTING) if rule in part.files)
    with tempfile.TemporaryDirectory(prefix="sluice-driver-") as folder:
        path = pathlib.Path(folder, pathlib.Path(place).name)
        path.write_text(text, encoding="utf-8")
        command = ["spatch", "--very-quiet", "--no-includes", "--in-place"]
        done = subprocess.run(
            [*command, "--sp-file", str(RULES / f"{rule}.cocci"), str(path)],
            capture_output=True, text=True, check=False, cwd=folder,
        )  # fmt: skip
        if done.returncode != 0:
            raise HarnessError(f"spatch with {rule}.cocci failed: {done.stderr.strip()[-2000:]}")
        return path.read_text(encoding="utf-8")


@functools.cache
def sites(before: str, after: str) -> dict[str, int]:
    """Counts a file's new, changed and removed lines by the function they are in."""
    old, new = before.splitlines(), after.splitlines()
    count: collections.Counter[str] = collections.Counter()
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for what, old_from, old_to, new_from, new_to in steps:
        if what == "delete":
            count[function_at(old, old_from)] += old_to - old_from
        elif what != "equal":
            for line in range(new_from, new_to):
                count[function_at(new, line)] += 1
    return dict(sorted(count.items()))


def function_at(lines: list[str], at: int) -> str:
    """Gives the name of the function that a line is in."""
    for line in range(at, -1, -1):
        if line != at and lines[line].startswith("}"):
            break
        # In the core the name is alone on its line.
        alone = lines[line] == "(" and line > 0 and NAME.match(lines[line - 1])
        found = alone or FUNCTION.match(lines[line])
        if found:
            return found.group(1)
    return OUTSIDE


def outcome(part: Part, read: Read) -> tuple[Sites, dict[str, str]]:
    """Applies all rules of a part; gives what changed where, and the texts by path."""
    changed: Sites = {}
    texts = {}
    for rule, path in part.files.items():
        before = read(path)
        texts[path] = apply(rule, before)
        changed[pathlib.Path(path).name] = sites(before, texts[path])
    return changed, texts


def differences(expected: Sites, found: Sites) -> list[str]:
    """Says what a rule did that the lock does not, and the other way round."""
    said = []
    for name in sorted(expected.keys() | found.keys()):
        want, have = expected.get(name, {}), found.get(name, {})
        for function in sorted(want.keys() | have.keys()):
            if want.get(function, 0) != have.get(function, 0):
                said.append(
                    f"{name}, {function}: {have.get(function, 0)} lines, "
                    f"not {want.get(function, 0)}"
                )
    return said


def load(path: pathlib.Path = LOCK) -> dict:
    """Gives the lock; a version without known sites is an error."""
    lock = json.loads(path.read_text(encoding="utf-8"))
    for version, entry in lock["versions"].items():
        for part in PARTS:
            name = entry.get(part.key)
            if name not in lock["sites"]:
                raise HarnessError(f"{path.name}: {version} names {part.key} {name!r}, not there")
    return lock


def check(part: Part, read: Read, version: str, lock: dict) -> dict[str, str]:
    """Gives the patched texts of a version's part, or says what is not as locked."""
    entry = lock["versions"].get(version)
    if entry is None:
        known = ", ".join(lock["versions"])
        raise HarnessError(f"driver.lock does not know version {version}; it knows {known}")
    found, texts = outcome(part, read)
    wrong = differences(lock["sites"][entry[part.key]], found)
    if wrong:
        raise HarnessError(
            f"the rules do not fit version {version}:\n  " + "\n  ".join(wrong)
            + "\nlook at what spatch makes of it, and at driver.py record"
        )  # fmt: skip
    return texts


def patched(parts: list[Part], read: Read, version: str) -> dict[str, str]:
    """Gives all files that the patched driver has other than the stock one, by path."""
    lock = load()
    files = {}
    for part in parts:
        files.update(check(part, read, version, lock))
    tops = (UVM,) if parts == [UVM_PART] else (UVM, SIDE, CORE)
    for name, folders in GLUE.items():
        for folder in (folder for folder in folders if folder.startswith(tops)):
            files[f"{folder}/{pathlib.Path(name).name}"] = (HERE / name).read_text(encoding="utf-8")
    for path, line in LISTED.items():
        if path.startswith(tops):
            files[path] = f"{read(path).rstrip()}\n{line}\n"
    interface = (HERE / "include/sluice_gpu.h").read_text(encoding="utf-8")
    for folder in (folder for folder in (UVM, SIDE) if folder in tops):
        files[f"{folder}/sluice/sluice_gpu.h"] = interface
    files[f"{KERNEL}/bpf/intf.h"] = (HERE.parent / "bpf/intf.h").read_text(encoding="utf-8")
    has_array = re.search(r"\balloc_list\[", read(LISTS))
    files[f"{UVM}/sluice/shape.h"] = SHAPE + ("#define SLUICE_UVM_ALLOC_LIST\n" if has_array else "")
    return files


def with_testing(files: dict[str, str]) -> dict[str, str]:
    """Gives the files of a patched nvidia-uvm with the entry for scenarios in it."""
    found, texts = outcome(TESTING, files.__getitem__)
    wrong = differences(load()["sites"][TESTING.key], found)
    if wrong:
        raise HarnessError("the rule for scenarios does not fit:\n  " + "\n  ".join(wrong))
    sources = f"{UVM}/nvidia-uvm-sources.Kbuild"
    texts[sources] = f"{files[sources]}NVIDIA_UVM_SOURCES += nvidia-uvm/sluice_uvm_testing.c\n"
    for path in (HERE / "uvm_testing").iterdir():
        texts[f"{UVM}/{path.name}"] = path.read_text(encoding="utf-8")
    return {**files, **texts}


def write(files: dict[str, str], top: pathlib.Path) -> None:
    """Puts files below a folder; leaves one alone that has this text, so that no more than
    what has changed is built again."""
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def of_package(folder: pathlib.Path) -> Read:
    """Reads from a folder that has the kernel's side only, as Debian's packages do."""
    return lambda path: (folder / path.removeprefix(f"{KERNEL}/")).read_text(encoding="utf-8")


def of_tag(repository: pathlib.Path, tag: str) -> Read:
    """Reads a tag of the public source's repository."""
    return lambda path: git(repository, "show", f"{tag}:{path}")


def tree_of(repository: pathlib.Path, tag: str) -> str:
    """Gives the id of a tag's tree."""
    return git(repository, "rev-parse", "--verify", f"{tag}^{{tree}}").strip()


def git(repository: pathlib.Path, *words: str) -> str:
    """Gives what a git command says."""
    done = subprocess.run(
        ["git", "-C", str(repository), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise HarnessError(f"git {' '.join(words)} in {repository}: {done.stderr.strip()}")
    return done.stdout


def check_debian(releases: list[str]) -> None:
    """Checks Debian's packages of releases."""
    import uvm  # imports this module

    lock = load()
    for release in releases:
        check(UVM_PART, of_package(uvm.source(release)), release, lock)
        print(f"{release}: as in driver.lock")


def matrix(repository: pathlib.Path) -> None:
    """Checks every version of the lock; fails after all were tried."""
    lock = load()
    wrong = []
    for version, entry in lock["versions"].items():
        try:
            if tree_of(repository, version) != entry["source"]:
                raise HarnessError(f"{version}: its source is not that of driver.lock")
            for part in PARTS:
                check(part, of_tag(repository, version), version, lock)
            print(f"{version}: as in driver.lock", flush=True)
        except HarnessError as error:
            wrong.append(str(error))
    if wrong:
        raise HarnessError("\n".join(wrong))


def record(repository: pathlib.Path, tags: list[str]) -> None:
    """Writes what comes out for tags into the lock."""
    lock = json.loads(LOCK.read_text(encoding="utf-8"))
    for tag in tags:
        entry = lock["versions"].setdefault(tag, {})
        entry["source"] = tree_of(repository, tag)
        for part in PARTS:
            found, _ = outcome(part, of_tag(repository, tag))
            entry[part.key] = _name_of(lock["sites"], found, f"{part.key}-as-{tag}")
        print(f"{tag}: {', '.join(entry[part.key] for part in PARTS)}", flush=True)
        save(lock)


def _name_of(known: dict[str, Sites], found: Sites, new: str) -> str:
    """Gives the name of equal sites, or a new one."""
    for name, sites_there in known.items():
        if sites_there == found:
            return name
    known[new] = found
    return new


def save(lock: dict, path: pathlib.Path = LOCK) -> None:
    """Writes the lock, oldest version first."""
    order = sorted(lock["versions"], key=lambda version: [int(n) for n in version.split(".")])
    lock["versions"] = {version: lock["versions"][version] for version in order}
    path.write_text(json.dumps(lock, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Does what the arguments say."""
    what, *words = sys.argv[1:] or [""]
    try:
        if what == "check" and words:
            check_debian(words)
        elif what == "matrix" and len(words) == 1:
            matrix(pathlib.Path(words[0]))
        elif what == "record" and len(words) > 1:
            record(pathlib.Path(words[0]), words[1:])
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except HarnessError as error:
        print(f"driver.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
