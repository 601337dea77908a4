# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gets what evaluation needs on a machine that has no Nix.

Nix is Debian's, unpacked with its libraries and run through its own loader. The module
system is what two crates carry of nixpkgs as their test data: `nixdoc` the library,
`nixel` what NixOS adds to it for units.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "vm-tests"))

from harness import apt, cache  # noqa: E402

SUITE = "trixie"


@dataclasses.dataclass(frozen=True)
class Crate:
    """A crate of the registry, and the digest of its archive."""

    name: str
    version: str
    sha256: str
    folder: str


LIBRARY = Crate(
    "nixdoc",
    "0.3.0",
    "737ae00607e3b64b54cd08a329db492729ac42d664732219ed83e5fd1cbe5667",
    "src/tests/fixtures",
)
NIXOS = Crate(
    "nixel",
    "5.2.0",
    "9d75d3203063d3a8d7d050b324fb3f7433ae8eac57e79031a53b1328e2db5a54",
    "tests/inputs/nixpkgs/nixos",
)


class ToolError(Exception):
    """Something that the tests need is not to be had; says what to do."""


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command and gives its output, whatever its status."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@functools.cache
def _nix() -> pathlib.Path:
    def fetch(folder: pathlib.Path) -> None:
        print(f"unpacking nix from {SUITE}", flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            archive = apt.Archive(pathlib.Path(scratch) / "apt", [SUITE])
            archive.unpack_closure("nix-bin", SUITE, folder)

    return cache.entry("nix", {"suite": SUITE, "recipe": 1}, fetch)


def nix(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one of nix's programs, which are one program under several names."""
    given = shutil.which(tool)
    if given:
        return run(given, *arguments)
    libraries = _nix() / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    loader = next(libraries.glob("ld-linux-*.so.*"))
    program = str(_nix() / "usr/bin/nix")
    words = ["--library-path", str(libraries), "--argv0", tool, program]
    return run(str(loader), *words, *arguments)


@functools.cache
def crate(wanted: Crate) -> pathlib.Path:
    """Gives the folder that a crate is wanted for, fetched by cargo and its digest compared."""
    home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
    stem = f"{wanted.name}-{wanted.version}"

    def found() -> list[pathlib.Path]:
        return [
            path
            for path in home.glob(f"registry/src/*/{stem}/{wanted.folder}")
            if list(home.glob(f"registry/cache/{path.parts[path.parts.index(stem) - 1]}/{stem}.crate"))
        ]

    if not found():
        # From elsewhere: in the workspace it would look for a dependency of that name.
        said = run("cargo", "info", "--quiet", f"{wanted.name}@{wanted.version}", cwd="/")
        if not found():
            raise ToolError(f"cargo info {stem} brought no sources:\n{said.stderr.strip()}")
    folder = found()[0]
    index = folder.parts[folder.parts.index(stem) - 1]
    archive = home / "registry/cache" / index / f"{stem}.crate"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != wanted.sha256:
        raise ToolError(f"{archive} has the digest {digest}, not {wanted.sha256}: remove it")
    return folder


@functools.cache
def evaluation() -> dict[str, object]:
    """What evaluate.nix says of all cases."""
    here = pathlib.Path(__file__).resolve().parent
    words = {"library": crate(LIBRARY), "nixos": crate(NIXOS), "cases": here}
    arguments = [word for name, value in words.items() for word in ("--arg", name, str(value))]
    # No store is written; nothing is built.
    flags = ["--store", "dummy://", "--eval", "--strict", "--json"]
    done = nix("nix-instantiate", *flags, *arguments, str(here / "evaluate.nix"))
    if done.returncode != 0:
        raise ToolError(f"the module does not evaluate:\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program under test: SLUICE_BIN_DIR's, else the build's."""
    folder = os.environ.get("SLUICE_BIN_DIR") or TREE / "target/debug"
    path = pathlib.Path(folder) / name
    if not path.is_file():
        raise ToolError(f"there is no {path}: cargo build, or set SLUICE_BIN_DIR")
    return run(str(path), *arguments)


def sluice(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `sluice`."""
    return program("sluice", *arguments)


def files(suffix: str) -> list[pathlib.Path]:
    """The files of the tree with that ending, as git knows them or will, or as unpacked."""
    words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", f"*{suffix}"]
    if (TREE / ".git").exists():
        listed = run("git", "-C", str(TREE), *words)
        if listed.returncode != 0:
            raise ToolError(f"git ls-files: {listed.stderr.strip()}")
        paths = [TREE / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [p for p in TREE.rglob(f"*{suffix}") if p.relative_to(TREE).parts[0] != "target"]
    return [path for path in paths if path.exists()]
