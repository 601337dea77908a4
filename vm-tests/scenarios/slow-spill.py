# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# While memory is given back to a disk that takes a megabyte and a half a second, pages that do
# not move are read as ever, and others are answered. Whoever asked is told in time that
# it goes on.
configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="128M", resident="32M")
disk = machine.succeed("realpath /dev/disk/by-id/virtio-spill").strip()
machine.succeed(f"systemctl set-property --runtime {STORE} 'IOWriteBandwidthMax={disk} 1536K'")

with subtest("the answer comes at the deadline, and says that it goes on"):
    late = order("vram drain --within 500ms", codes=(3,))
    assert late["outcome"] == "continues" and late["continues"], late
    assert late["left_bytes"] > 0 and late["target_bytes"] == 0, late

with subtest("the unit's status line says how far it is"):
    machine.wait_until_succeeds(
        f"systemctl show -p StatusText {STORE} | grep -q 'giving .* back, .* still to be moved'"
    )

with subtest("what does not move at the moment is read long before the move ends"):
    machine.succeed(
        "mkdir -p /run/read; for n in $(seq 0 63); do"
        " (dd if=/dev/nbd0 of=/dev/null bs=4096 count=1 skip=$((n * 512)) iflag=direct 2>/dev/null"
        " && touch /run/read/$n) >/dev/null 2>&1 & done"
    )
    machine.wait_until_succeeds("test $(ls /run/read | wc -l) -ge 48")
    now = tier("ram")
    assert now["held_bytes"] > now["target_bytes"] == 0, now
    assert now["activity"]["timed_out"] == 0 and status()["state"] == "serving", status()

with subtest("with a disk of the usual speed it ends by itself"):
    machine.succeed(f"systemctl set-property --runtime {STORE} 'IOWriteBandwidthMax={disk} infinity'")
    machine.wait_until_succeeds("sluice status --json | grep -m1 -q '\"held_bytes\": 0,'", timeout=120)
    machine.wait_until_succeeds("test $(ls /run/read | wc -l) -eq 64")
    assert not any(status()["errors"].values()), status()

with subtest("every page is right"):
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
