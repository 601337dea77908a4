#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Applies the semantic patches to the source of NVIDIA's driver, and checks what they did.

spatch says nothing of a rule that matches nowhere, or at one place too many. So what each
rule inserts is counted by file and function, and compared with driver.lock, which says for
each version of the driver what has to come out.

    kernel-module/driver.py check RELEASE...    Debian's packages of these releases
    kernel-module/driver.py matrix DIR          all tagged versions of driver.lock, from a
                                                repository of the public source
    kernel-module/driver.py record DIR TAG...   writes what comes out for these into driver.lock

Look at the difference before you commit what `record` has written.
"""

import collections
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "vm-tests"))

from harness.errors import HarnessError  # noqa: E402

LOCK = HERE / "driver.lock"
RULES = HERE / "semantic-patches"
GLUE = HERE / "uvm_glue"
UVM = "nvidia-uvm"
# The file that each rule file is about.
FILES = {
    "eviction": "uvm_pmm_gpu.c",
    "module": "uvm.c",
    "owner": "uvm_va_space.c",
    "prefetch": "uvm_perf_prefetch.c",
}
SOURCES = f"{UVM}/nvidia-uvm-sources.Kbuild"
# How the driver's lists are declared, for sluice_uvm.c: newer ones have an array.
LISTS = "uvm_pmm_gpu.h"
SHAPE = "/* Written by driver.py: what this version of the driver looks like. */\n"
# The beginning of a function: nothing of a body stands at a line's start.
FUNCTION = re.compile(r"^[A-Za-z_][^;=]*?\b(\w+)\(")
OUTSIDE = "(file)"

# Inserted lines by file and function.
Sites = dict[str, dict[str, int]]


def apply(rule: str, text: str) -> str:
    """Gives a file as a rule file leaves it."""
    with tempfile.TemporaryDirectory(prefix="sluice-driver-") as folder:
        path = pathlib.Path(folder) / FILES[rule]
        path.write_text(text, encoding="utf-8")
        command = ["spatch", "--very-quiet", "--no-includes", "--in-place"]
        done = subprocess.run(
            [*command, "--sp-file", str(RULES / f"{rule}.cocci"), str(path)],
            capture_output=True, text=True, check=False, cwd=folder,
        )  # fmt: skip
        if done.returncode != 0:
            raise HarnessError(f"spatch with {rule}.cocci failed: {done.stderr.strip()[-2000:]}")
        return path.read_text(encoding="utf-8")


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
        found = FUNCTION.match(lines[line])
        if found:
            return found.group(1)
    return OUTSIDE


def outcome(folder: pathlib.Path) -> tuple[Sites, dict[str, str]]:
    """Applies all rules to a folder of nvidia-uvm; gives what changed where, and the texts."""
    changed: Sites = {}
    texts = {}
    for rule, name in FILES.items():
        before = (folder / name).read_text(encoding="utf-8")
        texts[name] = apply(rule, before)
        changed[name] = sites(before, texts[name])
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
        if entry["sites"] not in lock["sites"]:
            raise HarnessError(f"{path.name}: {version} names sites {entry['sites']!r}, not there")
    return lock


def check(folder: pathlib.Path, version: str, lock: dict) -> dict[str, str]:
    """Gives the patched texts of a version's nvidia-uvm, or says what is not as locked."""
    entry = lock["versions"].get(version)
    if entry is None:
        known = ", ".join(lock["versions"])
        raise HarnessError(f"driver.lock does not know version {version}; it knows {known}")
    found, texts = outcome(folder)
    wrong = differences(lock["sites"][entry["sites"]], found)
    if wrong:
        raise HarnessError(
            f"the rules do not fit version {version}:\n  " + "\n  ".join(wrong)
            + "\nlook at what spatch makes of it, and at driver.py record"
        )  # fmt: skip
    return texts


def patched(driver: pathlib.Path, version: str) -> dict[str, str]:
    """Gives all files that the patched driver has other than the stock one, by path."""
    folder = driver / UVM
    files = {f"{UVM}/{name}": text for name, text in check(folder, version, load()).items()}
    for source in GLUE.iterdir():
        files[f"{UVM}/{source.name}"] = source.read_text(encoding="utf-8")
    for name in ("kernel-module/include/sluice_gpu.h", "bpf/intf.h"):
        path = HERE.parent / name
        place = "bpf/intf.h" if path.name == "intf.h" else f"{UVM}/sluice/{path.name}"
        files[place] = path.read_text(encoding="utf-8")
    lists = (folder / LISTS).read_text(encoding="utf-8")
    has_array = re.search(r"\balloc_list\[", lists)
    files[f"{UVM}/sluice/shape.h"] = SHAPE + ("#define SLUICE_UVM_ALLOC_LIST\n" if has_array else "")
    sources = (driver / SOURCES).read_text(encoding="utf-8")
    files[SOURCES] = f"{sources}\nNVIDIA_UVM_SOURCES += {UVM}/sluice_uvm.c\n"
    return files


def tree_of(repository: pathlib.Path, tag: str) -> str:
    """Gives the tree id of a tag's kernel interface."""
    return _git(repository, "rev-parse", "--verify", f"{tag}:kernel-open/{UVM}").strip()


def unpack(repository: pathlib.Path, tag: str, folder: pathlib.Path) -> pathlib.Path:
    """Puts what the rules look at into a folder."""
    for name in FILES.values():
        text = _git(repository, "show", f"{tag}:kernel-open/{UVM}/{name}")
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _git(repository: pathlib.Path, *words: str) -> str:
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
        check(uvm.source(release) / UVM, release, lock)
        print(f"{release}: as in driver.lock")


def matrix(repository: pathlib.Path) -> None:
    """Checks every version of the lock that the repository has; fails after all were tried."""
    lock = load()
    wrong = []
    for version, entry in lock["versions"].items():
        if "tree" not in entry:
            continue
        if tree_of(repository, version) != entry["tree"]:
            wrong.append(f"{version}: its source is not that of driver.lock")
            continue
        with tempfile.TemporaryDirectory(prefix="sluice-driver-") as folder:
            try:
                check(unpack(repository, version, pathlib.Path(folder)), version, lock)
                print(f"{version}: as in driver.lock", flush=True)
            except HarnessError as error:
                wrong.append(str(error))
    if wrong:
        raise HarnessError("\n".join(wrong))


def record(repository: pathlib.Path, tags: list[str]) -> None:
    """Writes what comes out for tags into the lock."""
    lock = load()
    for tag in tags:
        with tempfile.TemporaryDirectory(prefix="sluice-driver-") as folder:
            found, _ = outcome(unpack(repository, tag, pathlib.Path(folder)))
        entry = lock["versions"].setdefault(tag, {})
        entry.update(tree=tree_of(repository, tag), sites=_name_of(lock["sites"], found, tag))
        print(f"{tag}: sites {entry['sites']}", flush=True)
    save(lock)


def _name_of(known: dict[str, Sites], found: Sites, version: str) -> str:
    """Gives the name of equal sites; new ones are named after the version."""
    for name, sites_there in known.items():
        if sites_there == found:
            return name
    known[f"as-{version}"] = found
    return f"as-{version}"


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
