# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# A store that takes over is killed before it serves, at points spread over its start; the
# next one finds the same index. At the end all pages are there.
configure("""
[swap]
size = "192M"
[tier]
kind = "ram"
size = "128M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="96M", resident="48M")
keep_busy()
# Kills the store, and the one after it once that has made so many system calls: each count
# is another place in the recovery.
for calls in (40, 120, 200, 280, 360, 440):
    with subtest(f"killed again after {calls} system calls"):
        before = store_pid()
        machine.succeed(f"kill-again {before} {calls}")
        machine.wait_until_succeeds("sluice status --json | grep -q '\"state\": *\"serving\"'")
with subtest("nothing was lost"):
    busy_pages_are_right()
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
