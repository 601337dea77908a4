# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# A file on ext4 or xfs takes the pages when no memory is free: its filesystem never has
# to look for a block, so nothing waits for memory that only it could free.
def config(path):
    return f"""
[swap]
size = "256M"
[tier]
kind = "ram"
size = "64M"
[spill]
path = "{path}"
"""


for kind, make in [("ext4", "mkfs.ext4 -q -F"), ("xfs", "mkfs.xfs -q -f")]:
    with subtest(f"{kind}: the file is made in full and found good"):
        machine.succeed(
            f"{make} /dev/disk/by-id/virtio-spill",
            "mkdir -p /srv/spill && mount /dev/disk/by-id/virtio-spill /srv/spill",
            "sluice spill create /srv/spill/file --size 256M",
        )
        said = machine.succeed("sluice spill check /srv/spill/file --size 256M")
        assert kind in said and "NO" not in said, said
        assert machine.succeed("stat -c '%a %U' /srv/spill/file").strip() == "600 root"

    with subtest(f"{kind}: with no memory left every page comes back right"):
        configure(config("/srv/spill/file"))
        start_store()
        leave_memory(160)
        report = json.loads(
            machine.succeed("pressure --bytes 288M --seconds 25 --random --tasks 2 --write 30", timeout=400)
        )
        assert report["wrong"] == 0 and report["major_faults"] > 1000, report
        assert tier("spill")["activity"]["writes"] > 100, status()
        gone = order("vram drain --within 120s")
        assert gone["outcome"] == "done", gone
        assert not any(status()["errors"].values()), status()

    with subtest(f"{kind}: the store's lock keeps others away, then all is given back"):
        said = machine.fail("sluice spill check /srv/spill/file")
        assert "holds its lock" in said, said
        machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
        nothing_is_left_behind()
        machine.succeed("umount /srv/spill")
