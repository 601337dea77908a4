# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# Swap on two cards: with no free memory left every page that comes back is the page that
# left, and the cards get all their memory back. The cards are a driver library that
# performs a copy only when it is asked about, and counts each wrong use of it.
fake_cards("devices=2", "device-bytes=512M", "not-ready-answers=2")
configure(f"""
[swap]
size = "256M"
[tier]
kind = "cuda"
size = "128M"
[cuda]
library = "{FAKE_DRIVER}"
devices = ["1", "GPU-fa4ecada-0000-4000-8000-000000000000"]
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
names = [tier["name"] for tier in status()["tiers"]]
assert names == ["cuda:0", "cuda:1", "spill"], names

with subtest("all but 160 MiB of memory is taken, in pages that cannot be swapped"):
    leave_memory(160)

with subtest("more than what is left is filled, walked over and verified"):
    report = json.loads(
        machine.succeed(
            "pressure --bytes 256M --seconds 20 --random --tasks 2 --write 30", timeout=1000
        )
    )
    machine.log(str(report))
    assert report["wrong"] == 0, report
    assert report["major_faults"] > 1000, report

with subtest("the card was used, rightly and without an error"):
    after = status()
    assert not any(after["errors"].values()), after
    assert after["tiers"][0]["extents_used"] > 0, after
    used = fake("misuses", "copies-done")
    assert used["misuses"] == 0 and used["copies-done"] > 10000, used

with subtest("swap goes off, and nothing is left on the cards"):
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
    nothing_is_left_behind()
    the_cards_are_given_back()
