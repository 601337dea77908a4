# SPDX-License-Identifier: MIT OR Apache-2.0
# A second store must not get at what the first one holds: neither its socket, nor its
# device, nor its spill.
FIRST = """
[swap]
size = "128M"
[tier]
kind = "ram"
size = "64M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
"""
configure(FIRST)
start_store()
hold_pages(size="96M", resident="48M")
before = swaps()


def second_store_fails(config, *words):
    write_file("/run/second.toml", config)
    said = machine.fail(
        "sluice-store run --config /run/second.toml --socket /run/second.sock 2>&1", timeout=120
    )
    assert all(word in said for word in words), said
    machine.fail("test -e /run/second.sock")
    assert swaps().keys() == before.keys()


with subtest("the same socket"):
    said = machine.fail("sluice-store run 2>&1", timeout=120)
    assert "already answers on /run/sluice/store.sock" in said, said

with subtest("the same spill"):
    second_store_fails(FIRST, "/dev/disk/by-id/virtio-spill")

with subtest("the same nbd device"):
    second_store_fails('[swap]\nsize = "64M"\n[tier]\nkind = "ram"\n[nbd]\nindex = 0', "nbd0")

with subtest("the first store is untouched"):
    assert status()["state"] == "serving"
    held_pages_are_right()
