# SPDX-License-Identifier: MIT OR Apache-2.0
# Space that could make a write fail, wait or land elsewhere is refused by name, with what
# to do, before anything is changed.
SPILL = "/dev/disk/by-id/virtio-spill"
OTHER = "/dev/disk/by-id/virtio-swap"


def refused(path, *words):
    """`sluice spill check` finds each of these words in what is wrong with the space."""
    code, said = machine.execute(f"sluice spill check {path}")
    assert code == 1, said
    wrong = "\n".join(line for line in said.splitlines() if line.startswith(("NO", "  ")))
    for word in words:
        assert word in wrong, (word, said)


with subtest("filesystems in memory, and the overlay that is the root"):
    machine.succeed("dd if=/dev/zero of=/dev/shm/spill bs=1M count=66 status=none")
    refused("/dev/shm/spill", "tmpfs", "memory", "ext4 or xfs")
    machine.succeed("rm /dev/shm/spill; truncate -s 66M /var/spill")
    refused("/var/spill", "overlayfs")
    assert "tmpfs" in machine.fail("sluice spill create /dev/shm/x --size 64M 2>&1")

with subtest("disks that hold or are something else"):
    machine.succeed(f"mkfs.ext4 -q {SPILL}")
    refused(SPILL, "ext4 filesystem", "wipefs")
    machine.succeed(f"mount {SPILL} /mnt")
    refused(SPILL, "mounted on /mnt")
    machine.succeed(f"mkswap {OTHER}")
    refused(OTHER, "another swap area")
    machine.succeed(f"swapon {OTHER}")
    refused(OTHER, "it is swap")

with subtest("files with blocks that are missing, unwritten or shared"):
    machine.succeed("truncate -s 66M /mnt/hole; fallocate -l 66M /mnt/unwritten")
    refused("/mnt/hole", "hole", "sluice spill create")
    refused("/mnt/unwritten", "not written")
    machine.succeed("dd if=/dev/zero of=/mnt/short bs=1M count=65 status=none")
    refused("/mnt/short", "65 MiB is less than 66 MiB")

with subtest("a swap file that is on"):
    machine.succeed(
        "dd if=/dev/zero of=/mnt/swapfile bs=1M count=66 status=none",
        "chmod 600 /mnt/swapfile; mkswap /mnt/swapfile; swapon /mnt/swapfile",
    )
    refused("/mnt/swapfile", "swap file that is on")
    machine.succeed(f"swapoff /mnt/swapfile {OTHER}")

with subtest("devices that need memory or go through a file"):
    machine.succeed("modprobe zram && udevadm settle && zramctl -f -s 128M >/run/zram")
    refused("/dev/zram0", "memory that is to be relieved")
    machine.succeed("modprobe loop; losetup /dev/loop0 /mnt/short")
    refused("/dev/loop0", "page cache")
    machine.succeed("losetup -d /dev/loop0; umount /mnt")

with subtest("a store refuses the same, and leaves nothing behind"):
    configure(f'[swap]\nsize = "64M"\n[tier]\nkind = "ram"\n[spill]\npath = "{SPILL}"')
    said = refuses_to_start()
    assert "ext4 filesystem" in said and "next: " in said, said
    machine.succeed(f"blkid {SPILL} | grep -q ext4")
