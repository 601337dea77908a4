#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Writes docs/reference/policy-interface.md from bpf/intf.h; with --check, only compares.

The header is the one place where the interface is described. Its first comment becomes
the introduction, each further one the text of what stands below it.
"""

import pathlib
import re
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
HEADER = TREE / "bpf/intf.h"
PAGE = TREE / "docs/reference/policy-interface.md"
HEAD = """# Policy interface

Written by `kernel-module/reference.py` from `bpf/intf.h`, which is the interface itself: what a policy includes. How to
write one: [Write a policy](../how-to/write-a-policy.md). Why it is so: [Policies](../explanation/policies.md).

"""


def prose(comment: str) -> str:
    """Gives a comment's words."""
    lines = comment.removeprefix("/*").removesuffix("*/").splitlines()
    return "\n".join(re.sub(r"^\s*\* ?", "", line).strip() for line in lines).strip()


def blocks(text: str) -> list[tuple[str, str]]:
    """Gives each top-level comment with the code up to the next one."""
    found = []
    parts = re.split(r"^(/\*.*?\*/)\n", text, flags=re.MULTILINE | re.DOTALL)
    for comment, code in zip(parts[1::2], parts[2::2], strict=True):
        kept = [
            line
            for line in code.strip().splitlines()
            if not re.match(r"#(if|else|endif)|struct \w+;", line)
        ]
        found.append((prose(comment), "\n".join(kept).strip()))
    return found


def title(code: str) -> str:
    """Names what code declares."""
    function = re.search(r"\b(sluice_bpf_\w+)\(", code)
    if function:
        return f"`{function[1]}`"
    names = re.findall(r"^(?:struct|enum) (\w+) \{", code, re.MULTILINE)
    names = names or re.findall(r"^#define (\w+)", code, re.MULTILINE)[:1]
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """Gives the page's text."""
    body = re.sub(r"^/\* SPDX.*?\*/\n", "", HEADER.read_text(encoding="utf-8"))
    body = body.replace(" SLUICE_CORE;", ";").replace(" __ksym;", ";")
    introduction, *rest = blocks(body)
    parts = [HEAD + introduction[0] + "\n"]
    for text, code in rest:
        if code:
            parts.append(f"\n## {title(code)}\n\n{text}\n\n```c\n{code}\n```\n")
    return "".join(parts)


def main() -> int:
    """Writes or compares."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is not what bpf/intf.h says: run kernel-module/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
