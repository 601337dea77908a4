#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Puts the tables that the scenario soak/policy-table prints into docs/policies.md."""

import pathlib
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/policies.md"
MARK = "<!-- From here on written by: make -C kernel-module tables -->\n"
TITLES = [
    "Time of the whole workload, percent of native (less is better)",
    "Stalls of each tenant, percent of native (less is better)",
    "Scheduling: the workload `tasks`",
    "What verifying cost, and the size",
]


def tables(lines: list[str]) -> list[str]:
    """Gives the tables among the lines, each as one text."""
    found: list[list[str]] = []
    inside = False
    for line in lines:
        if line.startswith("| "):
            if not inside:
                found.append([])
            found[-1].append(line)
        inside = line.startswith("| ")
    return ["\n".join(rows) for rows in found]


def main() -> int:
    """Reads a run's output, writes the page; fails if the run did, leaving the page as it is."""
    lines = sys.stdin.read().splitlines()
    found = tables(lines)
    if len(found) != len(TITLES) or "1 passed, 0 failed" not in lines:
        print("\n".join(lines[-40:]), file=sys.stderr)
        print(f"tables.py: {len(found)} tables, not {len(TITLES)}, or a failure", file=sys.stderr)
        return 1
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        print(f"tables.py: {PAGE} has not the line {MARK.strip()}", file=sys.stderr)
        return 1
    parts = [f"\n## {title}\n\n{text}\n" for title, text in zip(TITLES, found, strict=True)]
    PAGE.write_text(head + mark + "".join(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
