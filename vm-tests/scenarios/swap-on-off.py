# SPDX-License-Identifier: MIT OR Apache-2.0
# The store arms a swap device and gives it back, twice, leaving nothing behind.
configure("""
[swap]
size = "256M"
devices = 2
[tier]
kind = "ram"
size = "64M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
for turn in range(2):
    with subtest(f"on, turn {turn}"):
        start_store()
        areas = swaps()
        assert sorted(areas) == ["/dev/nbd0", "/dev/nbd1"], areas
        for area in areas.values():
            assert area["priority"] == 1500, areas
            # The signature takes the first page.
            assert area["size"] == 128 * MIB - 4096, areas
        report = status()
        assert report["state"] == "serving", report
        assert [d["path"] for d in report["devices"]] == sorted(areas), report
        assert all(t["slabs_quarantined"] == 0 for t in report["tiers"]), report
    with subtest(f"off, turn {turn}"):
        machine.succeed(f"systemctl stop {STORE}")
        machine.fail(f"systemctl is-failed {STORE}")
        nothing_is_left_behind()
