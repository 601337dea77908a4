# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=none
# The pressure program and the guest's kernel: pages really leave to swap, come back,
# and are the same.
import json


def swapped(direction):
    """Pages swapped in or out since boot."""
    return int(machine.succeed(f"awk '$1 == \"pswp{direction}\" {{ print $2 }}' /proc/vmstat"))


machine.start()
with subtest("zram is swap"):
    machine.succeed("modprobe zram num_devices=1")
    machine.wait_for_file("/sys/block/zram0/disksize")
    machine.succeed(
        "echo 128M >/sys/block/zram0/disksize", "mkswap /dev/zram0", "swapon /dev/zram0"
    )

with subtest("twice as much as a cgroup may have is verified twice"):
    before_out, before_in = swapped("out"), swapped("in")
    report = json.loads(
        machine.succeed(
            "systemd-run --quiet --pipe --wait -p MemoryMax=12M "
            "pressure --bytes 24M --passes 1 --random --tasks 2 --write 25"
        )
    )
    pages = report["bytes"] // 4096
    assert report["wrong"] == 0
    assert report["verified"] == 2 * pages, "a pass and the last look"
    assert report["rewritten"] > pages / 8
    assert report["major_faults"] > pages / 2
    assert swapped("out") - before_out > pages / 2
    assert swapped("in") - before_in > pages / 2

with subtest("nothing stays in swap"):
    machine.succeed("swapoff /dev/zram0")
