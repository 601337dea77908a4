# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# The store is killed under live swap, again and again: the next one has index and slabs,
# the kernel sends again what was in flight, no page is lost and none is wrong.
KILLS = 3
configure("""
[swap]
size = "256M"
devices = 2
[tier]
kind = "ram"
size = "192M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="128M", resident="48M")
keep_busy()
for turn in range(KILLS):
    with subtest(f"kill {turn}"):
        kill_store_and_wait()
        assert status()["connections"] == 2, status()

with subtest("nothing was lost, nothing is wrong, and the store can be stopped"):
    busy_pages_are_right()
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
