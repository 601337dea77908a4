# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# The store is killed while extents leave the fast tier, and while they come back. The next
# one goes on with the order, and every page is right.
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
keep_busy(40)
MOVED = "sluice status --json | tr -d ' \\n' | grep -o '\"{}\":[0-9]*'"


def kill_once_moving(command, what):
    """Kills the store as soon as the first extent has moved by a command."""
    counter = MOVED.format(what)
    kill_store_and_wait(
        f"before=$({counter}); sluice {command} --within 60s >/dev/null 2>&1 & "
        f"before=$({counter}); until [ \"$({counter})\" != \"$before\" ]; do :; done; kill -KILL"
    )


with subtest("killed while its pages leave: the next one lets the rest go"):
    kill_once_moving("vram drain", "evacuated")
    machine.wait_until_succeeds(
        "sluice status --json | tr -d ' \\n' | grep -q '\"slabs_held\":0,'", timeout=120
    )
    assert [t["target_bytes"] for t in status()["tiers"] if t["name"] == "ram"] == [0], status()

with subtest("killed while they come back"):
    kill_once_moving("vram resume", "promoted")

with subtest("every page is right"):
    busy_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
