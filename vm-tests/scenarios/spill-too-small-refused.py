# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# No more swap is offered than the spill can hold, whatever the fast tier has: one that is
# too small is refused with the figures, and the last size that fits is served.
SPILL = "/dev/disk/by-id/virtio-spill"


def config(size):
    return f"""
[swap]
size = "{size}"
[tier]
kind = "ram"
size = "64M"
[spill]
path = "{SPILL}"
"""


with subtest("a disk of 1 GiB cannot hold 1 GiB of swap and the header"):
    configure(config("1G"))
    said = refuses_to_start()
    assert "1 GiB" in said and "960 MiB" in said and "next: " in said, said
    code, said = machine.execute(f"sluice spill check {SPILL} --size 1G")
    assert code == 1 and "2 MiB too few" in said, said

with subtest("it holds 960 MiB"):
    said = machine.succeed(f"sluice spill check {SPILL} --size 960M")
    assert "room for 960 MiB" in said, said
    configure(config("960M"))
    start_store()
    now = status()
    assert now["size_bytes"] == 960 * MIB <= now["economy"]["spill_bytes"], now
    assert "960 MiB offered <= 960 MiB of spill" in machine.succeed("sluice status")

with subtest("pages far beyond the fast tier find their place"):
    hold_pages(size="128M", resident="32M")
    # 96 MiB are in swap at least, and 64 of them fit into the fast tier.
    assert tier("spill")["extents_used"] > 12, status()
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
