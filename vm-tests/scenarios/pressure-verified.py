# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# With no free memory left, for a minute and more, every page that comes back is the
# page that left, and nothing hangs.
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

with subtest("all but 160 MiB of memory is taken, in pages that cannot be swapped"):
    leave_memory(160)

with subtest("nearly twice what is left is filled, walked over and verified"):
    report = json.loads(
        machine.succeed(
            "pressure --bytes 288M --seconds 60 --random --tasks 2 --write 30", timeout=800
        )
    )
    machine.log(str(report))
    assert report["wrong"] == 0, report
    assert report["major_faults"] > 10000, report

with subtest("memory had really run out: programs had to free some themselves"):
    machine.succeed(
        "awk '$1 == \"pgsteal_direct\" && $2 > 1000 { found = 1 } END { exit !found }' /proc/vmstat"
    )

with subtest("both tiers were used, without an error, and the store goes on"):
    after = status()
    assert after["state"] == "serving", after
    assert not any(after["errors"].values()), after
    assert all(t["extents_used"] > 0 for t in after["tiers"]), after
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
    nothing_is_left_behind()
