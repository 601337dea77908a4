# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# The store is killed while the kernel discards clusters: what was trimmed may come back as
# zeros or not at all, what was not stays as it was, and no place is lost or given twice.
configure("""
[swap]
size = "192M"
discard = true
[tier]
kind = "ram"
size = "128M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="64M", resident="24M")
machine.succeed(
    "systemd-run --quiet --unit=brief -p MemoryMax=24M -p OOMPolicy=continue "
    "-p StandardOutput=null -p StandardError=journal "
    "pressure --bytes 64M --hold --ready /run/brief.ready"
)
machine.wait_for_file("/run/brief.ready")
TRIMS = "sluice status --json | tr -d ' \\n' | grep -o '\"trim\":[0-9]*'"

with subtest("a program's swap is discarded, and the store killed in the middle of it"):
    kill_store_and_wait(
        f"before=$({TRIMS}); systemctl kill -s KILL brief.service;"
        f'until [ "$({TRIMS})" != "$before" ]; do :; done; kill -KILL'
    )

with subtest("what the other program has is right, and all else can be filled again"):
    keep_busy(20)
    busy_pages_are_right()
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
