# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# Beside zram, both tiers of a store are used; giving the fast one back moves the pages of
# this store alone, and the kernel goes on filling the areas by their priority.
configure("""
[swap]
size = "128M"
priority = 1500
[tier]
kind = "ram"
size = "64M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
machine.succeed(
    "modprobe zram num_devices=1; udevadm settle; echo 64M >/sys/block/zram0/disksize",
    "mkswap /dev/zram0; swapon -p 100 /dev/zram0",
)
hold_pages(size="176M", resident="32M")

with subtest("both tiers and zram hold pages"):
    used = {device: area["used"] / MIB for device, area in swaps().items()}
    assert used["/dev/nbd0"] > 100 and used["/dev/zram0"] > 4, used
    assert tier("ram")["extents_used"] > 16 and tier("spill")["extents_used"] > 16, status()

with subtest("the fast tier is given back, and zram is left alone"):
    before = swaps()["/dev/zram0"]["used"]
    gone = order("vram drain --within 120s")
    assert gone["outcome"] == "done" and gone["held_bytes"] == 0, gone
    assert gone["extents_moved"] > 16, gone
    assert swaps()["/dev/nbd0"]["used"] > 100 * MIB, swaps()
    assert swaps()["/dev/zram0"]["used"] <= before, swaps()

with subtest("every page is right, and comes back in time"):
    order("vram resume")
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed("swapoff /dev/zram0", f"systemctl stop {STORE}")
    nothing_is_left_behind()
