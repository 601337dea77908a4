# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=300
"""The store arms a swap device and gives it back, twice, leaving nothing behind."""

CONFIG = """
[swap]
size = "256M"
[tier]
kind = "ram"
size = "64M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
"""

machine.start()
machine.succeed(f"mkdir -p /etc/sluice && cat > /etc/sluice/sluice.toml <<'END'\n{CONFIG}\nEND")
for turn in range(2):
    with subtest(f"on, turn {turn}"):
        machine.succeed("systemctl start sluice-store.service")
        machine.succeed("grep -q '^/dev/nbd0 .*1500$' /proc/swaps")
        machine.succeed("sluice status --json")
    with subtest(f"off, turn {turn}"):
        machine.succeed("systemctl stop sluice-store.service")
        machine.fail("grep -q nbd0 /proc/swaps")
        machine.fail("test -e /sys/block/nbd0/pid")
        machine.fail("pgrep sluice-store")
