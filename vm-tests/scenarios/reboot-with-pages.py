# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: boot=restored timeout=900
# The machine goes down with swap that is full of pages which do not fit into memory, half
# full, and empty: each time it gets there, nobody is killed and no request fails.
for pages, leave in [("all", machine.reboot), ("some", machine.reboot), ("no", machine.shutdown)]:
    with subtest(f"with {pages} pages in swap"):
        leave_with(pages, leave)
