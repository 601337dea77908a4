# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
"""Every page survives minutes of real memory pressure at zero free RAM."""

CONFIG = """
[swap]
size = "512M"
[tier]
kind = "ram"
size = "128M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
"""

machine.start()
machine.succeed(f"mkdir -p /etc/sluice && cat > /etc/sluice/sluice.toml <<'END'\n{CONFIG}\nEND")
machine.succeed("systemctl start sluice-store.service")
available = int(machine.succeed("awk '/MemAvailable/ {print int($2/1024)}' /proc/meminfo"))
with subtest("pressure on the whole machine"):
    machine.succeed(
        f"pressure --bytes {available + 256}M --seconds 120 --random --write 30 --tasks 4 >&2",
        timeout=600,
    )
with subtest("the store saw it and is well"):
    print(machine.succeed("sluice status"))
    machine.succeed("sluice status --json | grep -q '\"checksum\":0'")
    machine.succeed("systemctl stop sluice-store.service")
    machine.fail("grep -q nbd0 /proc/swaps")
    print(machine.succeed("dmesg | tail -20; journalctl -u sluice-store --no-pager | tail -30"))
