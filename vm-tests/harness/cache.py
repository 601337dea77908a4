# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns the folder of things that are kept between runs.

An entry is a folder named by what it holds and a hash of what it was made from.
It appears whole or not at all: it is made beside its place and renamed into it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

# Of each kind the newest are kept for a week, further ones as long as a run may need them.
KEPT = 4
KEPT_SECONDS = 7 * 86400
RUN_SECONDS = 3 * 3600


def root() -> pathlib.Path:
    """Gives the cache folder: SLUICE_VM_CACHE, else sluice-vm in the user's cache."""
    given = os.environ.get("SLUICE_VM_CACHE")
    if given:
        return pathlib.Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "sluice-vm"


def key(inputs: object) -> str:
    """Hashes inputs (anything JSON can hold) to the name of an entry."""
    text = json.dumps(inputs, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:16]


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    root().mkdir(parents=True, exist_ok=True)
    with open(root() / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def entry(kind: str, inputs: object, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Gives the folder of this kind and inputs, calling make(folder) where it is missing.

    Two runs that want the same entry wait for each other.
    """
    place = root() / f"{kind}-{key(inputs)}"
    with _locked(kind):
        if not place.is_dir():
            building = pathlib.Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root()))
            try:
                make(building)
                building.chmod(0o755)
                building.rename(place)
            finally:
                shutil.rmtree(building, ignore_errors=True)
        os.utime(place)
        _drop_unused(kind, place)
    return place


def _drop_unused(kind: str, keep: pathlib.Path) -> None:
    ages = {path: time.time() - path.stat().st_mtime for path in root().glob(f"{kind}-*")}
    for place, path in enumerate(sorted(ages, key=ages.__getitem__)):
        limit = KEPT_SECONDS if place < KEPT else RUN_SECONDS
        if path != keep and ages[path] > limit:
            shutil.rmtree(path, ignore_errors=True)
