# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
"""What Sluice does, to watch: memory fills, the Sluice device fills first, then the next
swap; every page comes back right; the pages that died are trimmed; swap goes off."""

import json

CONFIG = """
[swap]
size = "192M"
priority = 1500
[tier]
kind = "ram"
"""
DISK = "/dev/disk/by-id/virtio-swap"
MIB = 1 << 20


def bar(used, size, width=24):
    full = round(width * used / size) if size else 0
    return f"[{'#' * full}{'.' * (width - full)}] {used:4d} of {size:4d} MiB"


def meminfo():
    lines = machine.succeed("cat /proc/meminfo").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines}


def swaps():
    """Used and size in MiB, and priority, by the kind of device."""
    found = {}
    for line in machine.succeed("cat /proc/swaps").splitlines()[1:]:
        name, _, size, used, priority = line.split()
        kind = "sluice" if "nbd" in name else "disk"
        found[kind] = (int(used) // 1024, int(size) // 1024, int(priority))
    return found


def status():
    return json.loads(machine.succeed("sluice status --json"))


def show(what):
    memory = meminfo()
    areas = swaps()
    ram = bar(memory["MemTotal"] - memory["MemAvailable"], memory["MemTotal"])
    line = f"{what:10} RAM {ram}"
    for kind in ("sluice", "disk"):
        if kind in areas:
            line += f"   {kind} {bar(*areas[kind][:2], 16)}"
    print(line)
    return areas


machine.start()
print("A machine with 1 GiB of RAM, a disk swap of priority 10, and Sluice at 1500.")
machine.succeed(f"mkdir -p /etc/sluice && cat > /etc/sluice/sluice.toml <<'END'\n{CONFIG}\nEND")
machine.succeed(f"mkswap -q {DISK} && swapon -p 10 {DISK}")
machine.succeed("systemctl start sluice-store.service")
before = show("armed")

# More than RAM and Sluice hold together, so that the disk gets some too.
amount = meminfo()["MemAvailable"] + before["sluice"][1] + 48
print(f"A program fills {amount} MiB, each page with contents it can verify.")
machine.succeed(
    "systemd-run -q --unit=hog -p OOMPolicy=continue -p StandardOutput=file:/run/hog.json "
    f"pressure --bytes {amount}M --passes 1 --write 10 --hold --ready /run/full"
)
order = []
while machine.execute("test -e /run/full")[0] != 0:
    machine.succeed("systemctl is-active -q hog || test -e /run/full")
    for kind, (used, _, _) in show("filling").items():
        if used > 1 and kind not in order:
            order.append(kind)
full = show("full")
assert order == ["sluice", "disk"], f"filled in the order {order}"
most = status()

print("Every page is read back and verified.")
machine.succeed("systemctl kill -s USR1 hog")
while machine.execute("systemctl is-active -q hog")[0] == 0:
    show("verifying")
report = json.loads(machine.succeed("cat /run/hog.json"))
assert report["wrong"] == 0, report

print("The program has ended: its pages are dead, and the kernel trims their clusters.")
machine.wait_until_succeeds(
    "sluice status --json | python3 -c 'import json,sys; s=json.load(sys.stdin); "
    f"sys.exit(s[\"written_pages\"] > {most['written_pages'] // 2})' 2>/dev/null || "
    f"[ $(sluice status --json | sed 's/.*\"written_pages\":\\([0-9]*\\).*/\\1/') "
    f"-lt {most['written_pages'] // 2} ]",
    timeout=120,
)
after = status()
show("trimmed")

machine.succeed("systemctl stop sluice-store.service", timeout=300)
machine.fail("grep -q nbd /proc/swaps")
show("off")


def extents(state):
    return sum(tier["extents_used"] for tier in state["tiers"])


rows = [
    ("pages verified, wrong", f"{report['verified']}, {report['wrong']}"),
    ("major faults of the program", report["major_faults"]),
    ("page-in latency p50 / p99", f"{report['p50_us']} / {report['p99_us']} us (emulated CPU)"),
    ("requests: reads, writes, trims", ", ".join(str(after["requests"][k]) for k in ("read", "write", "trim"))),
    ("extents in use: full, trimmed", f"{extents(most)}, {extents(after)}"),
    ("pages written: full, trimmed", f"{most['written_pages']}, {after['written_pages']}"),
    ("errors: I/O, checksum", f"{after['errors']['io']}, {after['errors']['checksum']}"),
    ("filled first, then", " then ".join(order)),
]
print("summary")
for name, value in rows:
    print(f"  {name:32} {value}")
assert after["errors"]["io"] == 0 and after["errors"]["checksum"] == 0
