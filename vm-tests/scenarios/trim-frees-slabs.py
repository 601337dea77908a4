# SPDX-License-Identifier: MIT OR Apache-2.0
# What a program leaves behind in swap when it ends is dead; the kernel discards it, and
# the store takes the memory back.
configure("""
[swap]
size = "128M"
discard = true
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="128M", resident="32M")
full = status()
assert full["written_pages"] > 16384, full
assert tier("ram")["extents_used"] > 32, full

with subtest("the program is gone, and so are its pages"):
    machine.succeed("systemctl kill -s KILL hold.service")
    # The kernel gives back whole clusters, and later than the end of the program.
    machine.wait_until_succeeds(
        "sluice status --json | grep -Eq '\"written_pages\": ?[0-9]{1,4}[,}]'", timeout=120
    )
    freed = status()
    assert freed["requests"]["trim"] > full["requests"]["trim"], freed
    assert tier("ram")["extents_used"] < 24, freed

with subtest("freed places are used again, with the right content"):
    machine.succeed("rm -f /run/hold.*", "systemctl reset-failed hold.service || true")
    hold_pages(size="128M", resident="32M")
    held_pages_are_right()
    assert not any(status()["errors"].values())
