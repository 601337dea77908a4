# SPDX-License-Identifier: MIT OR Apache-2.0
# Sluice at 1500 fills before zram at 100, and zram before a disk without priority.
configure("""
[swap]
size = "64M"
priority = 1500
[tier]
kind = "ram"
""")
start_store()
machine.succeed(
    "modprobe zram num_devices=1; udevadm settle; echo 64M >/sys/block/zram0/disksize",
    "mkswap /dev/zram0; swapon -p 100 /dev/zram0",
    "mkswap /dev/disk/by-id/virtio-swap; swapon /dev/disk/by-id/virtio-swap",
)
disk = machine.succeed("realpath /dev/disk/by-id/virtio-swap").strip()
assert swaps()["/dev/nbd0"]["priority"] == 1500
assert swaps()["/dev/zram0"]["priority"] == 100
assert swaps()[disk]["priority"] < 0


def used_while_holding(size):
    """MiB in each area while a program of that size may keep 32M in memory."""
    hold_pages(size=size, resident="32M")
    used = {device: area["used"] / MIB for device, area in swaps().items()}
    held_pages_are_right()
    machine.wait_until_fails("systemctl is-active hold.service")
    return used


with subtest("a little goes to sluice alone"):
    used = used_while_holding("72M")
    assert used["/dev/nbd0"] > 32 and used["/dev/zram0"] < 1 and used[disk] < 1, used

with subtest("what sluice cannot take goes to zram"):
    used = used_while_holding("136M")
    assert used["/dev/nbd0"] > 56 and used["/dev/zram0"] > 24 and used[disk] < 1, used

with subtest("what zram cannot take goes to the disk"):
    used = used_while_holding("208M")
    assert used["/dev/nbd0"] > 56 and used["/dev/zram0"] > 56 and used[disk] > 24, used
