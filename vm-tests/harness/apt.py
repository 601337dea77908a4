# SPDX-License-Identifier: MIT OR Apache-2.0
"""Talks to Debian's archive the way the host does, without changing the host.

The mirror and its proxy settings are those of the host's apt. What is asked of it
goes through an apt state of our own, so that the host needs no further sources.
"""

import os
import pathlib
import re
import shutil
import subprocess

from .errors import HarnessError

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Settings of the host's apt which decide whether its mirror can be used at all.
CARRIED = re.compile(r"^Acquire::(https?::.*|Check-Valid-Until|Check-Date|ForceIPv4) \"(.*)\";$")


def _output(*command: str, cwd: pathlib.Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def carried_options() -> list[str]:
    """Gives the host's apt settings for reaching the mirror, each as `Name "value";`."""
    lines = _output("apt-config", "dump").splitlines()
    return [line for line in lines if (m := CARRIED.match(line)) and m[2]]


def codename() -> str:
    """Gives the name of the host's Debian release."""
    release = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    if not found:
        raise HarnessError("/etc/os-release names no VERSION_CODENAME: a Debian host is needed")
    return found[1]


def mirror() -> str:
    """Gives the address of the archive that the host installs its own packages from."""
    listing = _output(
        "apt-get",
        "indextargets",
        "--format",
        "$(RELEASE) $(COMPONENT) $(REPO_URI)",
        "Created-By: Packages",
    )
    for line in listing.splitlines():
        suite, component, uri = line.split(" ", 2)
        if suite == codename() and component == "main":
            return uri
    raise HarnessError(
        f"the host's apt sources have no suite {codename()} with component main: "
        "the image is built from the mirror named there"
    )


def install(programs: dict[str, str]) -> None:
    """Installs the packages of those programs (program to package) that the host lacks."""
    missing = sorted({pkg for program, pkg in programs.items() if not shutil.which(program)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise HarnessError(f"install these packages first: {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise HarnessError(f"apt-get {' '.join(command)} failed:\n{done.stderr.strip()}")


class Archive:
    """A view of some suites of the mirror, kept in a folder of its own."""

    def __init__(self, folder: pathlib.Path, suites: list[str], component: str = "main") -> None:
        for name in ("lists/partial", "cache/archives/partial", "parts"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        self._folder = folder
        sources = [f"deb [signed-by={KEYRING}] {mirror()} {suite} {component}\n" for suite in suites]
        (folder / "sources.list").write_text("".join(sources), encoding="utf-8")
        settings = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": folder / "parts",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": folder / "parts",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
            "Acquire::Languages": "none",
        }
        self._options = [f"-o{name}={value}" for name, value in settings.items()]
        _output("apt-get", *self._options, "-qq", "update")

    def offers(self, pattern: str) -> list[str]:
        """Gives the names of the packages that match a regular expression."""
        listing = _output("apt-cache", *self._options, "search", "--names-only", pattern)
        return sorted(line.split(" ", 1)[0] for line in listing.splitlines())

    def versions(self, package: str) -> list[str]:
        """Gives the versions of a package that are offered, the newest first."""
        # "name | version | where it is from", by suite and again by version.
        listing = _output("apt-cache", *self._options, "madison", package)
        found = [line.split("|")[1].strip() for line in listing.splitlines()]
        return list(dict.fromkeys(found))

    def needs(self, package: str) -> list[str]:
        """Gives the names of the packages that a package's newest version depends on.

        Of alternatives the first: it is what apt would install.
        """
        listing = _output("apt-cache", *self._options, "show", "--no-all-versions", package)
        for line in listing.splitlines():
            if line.startswith("Depends: "):
                words = line.removeprefix("Depends: ").split(",")
                return [re.split(r"[ (|:]", word.strip(), maxsplit=1)[0] for word in words]
        return []

    def unpack(self, package: str, target: pathlib.Path) -> None:
        """Downloads a package (or `name=version`) and unpacks its files below target."""
        _output("apt-get", *self._options, "-qq", "download", package, cwd=self._folder)
        self._unpack_all(self._folder, target)

    def unpack_closure(self, package: str, suite: str, target: pathlib.Path) -> None:
        """Unpacks a package of a suite and all that it needs, libc included, below target.

        Since this view knows of no installed package, the result does not depend on the host.
        """
        _output(
            "apt-get",
            *self._options,
            "-oAPT::Install-Recommends=false",
            "-qq",
            "-y",
            "--download-only",
            "-t",
            suite,
            "install",
            package,
        )
        self._unpack_all(self._folder / "cache/archives", target)

    @staticmethod
    def _unpack_all(folder: pathlib.Path, target: pathlib.Path) -> None:
        for deb in folder.glob("*.deb"):
            _output("dpkg-deb", "-x", str(deb), str(target))
            deb.unlink()
