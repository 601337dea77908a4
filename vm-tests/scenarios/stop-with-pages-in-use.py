# SPDX-License-Identifier: MIT OR Apache-2.0
# Stopping a store that holds pages brings them all back first; none is lost.
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

with subtest("the stop drains, and the unit ends well"):
    machine.succeed(f"systemctl stop {STORE}")
    machine.fail(f"systemctl is-failed {STORE}")
    nothing_is_left_behind()

with subtest("the program never noticed"):
    held_pages_are_right()
