#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Writes bpf/verifier-cost.txt from what the scenario soak/verifier-cost prints."""

import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "bpf/verifier-cost.txt"
LINE = re.compile(r"(\w+) (\w+): (\d+) instructions verified")
HEAD = """\
# SPDX-License-Identifier: GPL-2.0-only
# Instructions that the verifier looks at before it agrees to each program, on the kernel
# that the scenarios boot. Compared by `sluice policy check --baseline`; written by
# `make -C kernel-module verifier-cost`.
"""


def main() -> int:
    """Reads standard input, shows it, writes the file."""
    text = sys.stdin.read()
    sys.stdout.write(text)
    found = sorted(LINE.findall(text))
    if not found:
        print("no line of a program was found; the file stays", file=sys.stderr)
        return 1
    PAGE.write_text(HEAD + "".join(f"{' '.join(line)}\n" for line in found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
