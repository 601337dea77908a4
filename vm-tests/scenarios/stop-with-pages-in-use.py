# SPDX-License-Identifier: MIT OR Apache-2.0
# Stopping a store that holds pages brings them all back first; none is lost.
import re

configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="128M", resident="48M")
used = swaps()["/dev/nbd0"]["used"]
assert used > 64 * MIB, used

with subtest("the stop drains, says how far it is, and the unit ends well"):
    machine.succeed(
        f"systemctl stop {STORE} & while kill -0 $! 2>/dev/null; do"
        f" systemctl show -p StatusText {STORE}; done >/run/said; wait $!"
    )
    said = machine.succeed("sort -u /run/said")
    assert re.search(r"switching /dev/nbd0 off: [0-9.]+ .iB of [0-9.]+ .iB left", said), said
    machine.fail(f"systemctl is-failed {STORE}")
    nothing_is_left_behind()

with subtest("the program never noticed"):
    held_pages_are_right()
