# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# Fast memory is given back and taken again, over and over, while programs fault on the
# very pages that move and no memory is free. Every page is right, and swap stays on.
configure("""
[swap]
size = "256M"
[tier]
kind = "ram"
size = "128M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
leave_memory(160)
start_pressure("--bytes 288M --seconds 50 --random --tasks 2 --write 30")
machine.wait_until_succeeds(
    "awk '$1 == \"/dev/nbd0\" && $4 > 65536 { found = 1 } END { exit !found }' /proc/swaps"
)
moved = 0
for turn in range(4):
    with subtest(f"turn {turn}: all of it, half of it, and back"):
        gone = order("vram drain --within 120s")
        assert (gone["outcome"], gone["held_bytes"], gone["left_bytes"]) == ("done", 0, 0), gone
        moved += gone["extents_moved"]
        order("vram resume")
        half = order("vram target 64M --within 120s")
        assert half["outcome"] == "done" and half["held_bytes"] <= 64 * MIB, half
        order("vram resume")
    assert "/dev/nbd0" in swaps(), swaps()

with subtest("pages moved, and every one is right"):
    assert moved > 0
    report = pressure_ended()
    assert report["major_faults"] > 1000, report

with subtest("no error, and the store goes on"):
    after = status()
    assert after["state"] == "serving", after
    assert not any(after["errors"].values()), after
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
    nothing_is_left_behind()
