# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# One 4 KiB read a second, as of a desktop that wakes up: the kernel's path to the store
# beside zram and a disk, in turns in one machine. A measurement: it prints, and only
# fails if a page is wrong. Emulated processors are many times slower than real ones.
configure("""
[swap]
size = "128M"
swapon = false
[tier]
kind = "ram"
""")
start_store()
machine.succeed("modprobe zram && udevadm settle && zramctl -f -s 128M")
targets = {"sluice": "/dev/nbd0", "zram": "/dev/zram0", "disk": "/dev/disk/by-id/virtio-swap"}
for turn in range(2):
    for name, path in targets.items():
        text = machine.succeed(
            f"sluice bench {path} --sporadic --seconds 30 --span 16M --destroy-contents --json", timeout=300
        )
        print(f"turn {turn} {name}: {text}")
print(machine.succeed("sluice status"))
print(json.dumps(status()["memory"]))
print(machine.succeed("grep -E 'Vm(RSS|Lck)|RssAnon' /proc/$(pgrep -x sluice-store)/status"))
machine.succeed(f"systemctl stop {STORE}")
