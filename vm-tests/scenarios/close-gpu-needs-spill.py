# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# Without a spill there is no other place for the pages: closing and yielding are refused
# with the figures, and nothing changes. With one, the same orders are carried out, and a
# GPU is let go of entirely: the store hands over to one that does not load the driver.


def nodes(pid):
    """The driver's device nodes that a process has open."""
    found = machine.succeed(f"readlink /proc/{pid}/fd/* | grep '^/dev/nvidia' | sort -u || true")
    return found.split()


def is_closed(when):
    """The store serves, and nothing of the driver is in its process."""
    machine.wait_until_succeeds("sluice status --json | grep -q '\"state\": *\"serving\"'")
    pid = store_pid()
    assert nodes(pid) == [], (when, nodes(pid))
    machine.fail(f"grep -q cuda /proc/{pid}/maps")
    now = tier("cuda:0")
    assert not now["open"] and now["held_bytes"] == now["target_bytes"] == 0, (when, now)


SWAP = '[swap]\nsize = "128M"\n[tier]\nkind = "ram"\n'
configure(SWAP)
start_store()
hold_pages(size="72M", resident="32M")
before = tier("ram")
for words in ["gpu close", "vram drain", "vram target 64M", "vram target 64M --tier ram"]:
    with subtest(f"without a spill: sluice {words}"):
        code, said = machine.execute(f"sluice {words} 2>&1")
        assert code == 1 and "no spill" in said and "128 MiB" in said, (code, said)
        now = tier("ram")
        assert now["held_bytes"] == before["held_bytes"] == 128 * MIB, now
        assert now["target_bytes"] == before["target_bytes"], now

with subtest("more than there could ever be, and a tier that is not there"):
    for words, why in [("target 192M", "at most"), ("target 0 --tier cuda:7", "no fast tier")]:
        code, said = machine.execute(f"sluice vram {words} 2>&1")
        assert code in (1, 2) and why in said, (code, said)
held_pages_are_right()
machine.succeed(f"systemctl stop {STORE}")
nothing_is_left_behind()

with subtest("with a spill it is closed, and every page is still there"):
    configure(SWAP + '[spill]\npath = "/dev/disk/by-id/virtio-spill"')
    start_store()
    hold_pages(size="72M", resident="32M")
    closed = order("gpu close --within 120s")
    assert closed["outcome"] == "done" and closed["held_bytes"] == 0, closed
    assert tier("ram")["held_bytes"] == 0 and tier("spill")["extents_used"] > 12, status()
    held_pages_are_right()

with subtest("what is written now goes to the spill; with a target the tier is used again"):
    machine.wait_until_fails("systemctl is-active hold.service")
    hold_pages(size="72M", resident="32M")
    assert tier("ram")["extents_used"] == 0, status()
    back = order("vram resume")
    assert back["target_bytes"] == 128 * MIB, back
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()

with subtest("a GPU is closed for real: the next store never loads the driver"):
    # libcuda keeps its nodes open to the end of the process that loaded it; so does the fake.
    machine.succeed("touch /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia0")
    fake_cards("device-bytes=512M", "keeps-nodes=1")
    configure(f"""
[swap]
size = "192M"
[tier]
kind = "cuda"
size = "128M"
[cuda]
library = "{FAKE_DRIVER}"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
    start_store()
    hold_pages(size="72M", resident="32M")
    first = store_pid()
    assert nodes(first) == ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"], nodes(first)
    closed = order("gpu close --within 120s")
    assert closed["outcome"] == "done" and closed["held_bytes"] == 0, closed
    machine.wait_until_succeeds(f"pgrep -x sluice-store && ! pgrep -x sluice-store | grep -qx {first}")
    is_closed("after the hand-over")
    assert tier("spill")["extents_used"] > 12, status()

with subtest("a closed store that is killed is closed again"):
    kill_store_and_wait()
    is_closed("after the kill")

with subtest("pages are written and read meanwhile; a GPU that does not open is tried again"):
    keep_busy(25)
    fake_set("init-failures=1")
    pid = store_pid()
    order("vram resume --within 1s", codes=(0, 3))
    machine.wait_until_succeeds("sluice status --json | grep -q '\"promoted\": [1-9]'", timeout=120)
    assert "tier cuda:0 is not opened" in journal()
    now = tier("cuda:0")
    assert now["open"] and now["extents_used"] > 0 and now["activity"]["errors"] == 1, now
    assert store_pid() == pid and nodes(pid), "it is opened without another hand-over"

with subtest("the store that opened it can be killed, and every page is right"):
    kill_store_and_wait()
    busy_pages_are_right()
    held_pages_are_right()
    assert tier("cuda:0")["open"] and not status()["errors"]["checksum"], status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
