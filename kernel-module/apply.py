#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Applies the semantic patches for nvidia-uvm to an unpacked source of NVIDIA's open driver, in place.

    kernel-module/apply.py KERNEL-OPEN VERSION     as in kernel-open 595.45.04

KERNEL-OPEN is the folder `kernel-open` of the public source, or what Debian's package has
in its place. Nothing is written unless driver.lock knows the version and every rule did
what the lock says.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import driver  # noqa: E402
from harness.errors import HarnessError  # noqa: E402


def main() -> int:
    """Does what the arguments say."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    try:
        # Nothing of the core: its hooks have not run on any GPU.
        files = driver.patched([driver.UVM_PART], driver.of_package(folder), version)
    except (HarnessError, OSError) as error:
        print(f"apply.py: {error}", file=sys.stderr)
        return 1
    kernel = f"{driver.KERNEL}/"
    driver.write({path.removeprefix(kernel): text for path, text in files.items()}, folder)
    print(f"{folder}: {len(files)} files patched or added for {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
