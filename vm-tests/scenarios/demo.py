# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# What Sluice does, to watch: memory fills, the Sluice device fills first, then the next
# swap; every page comes back right; dead pages are trimmed; swap goes off.
DISK = "/dev/disk/by-id/virtio-swap"


def bar(used, size, width):
    full = round(width * used / size)
    return f"[{'#' * full}{'.' * (width - full)}] {used // MIB:4d}/{size // MIB} MiB"


def memory():
    lines = machine.succeed("cat /proc/meminfo").splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return fields["MemTotal"], fields["MemAvailable"]


def show(what):
    """One line of the picture; gives the swap areas by kind."""
    total, available = memory()
    areas = {("sluice" if "nbd" in name else "disk"): area for name, area in swaps().items()}
    line = f"{what:10} RAM {bar(total - available, total, 20)}"
    for kind in ("sluice", "disk"):
        if kind in areas:
            line += f"  {kind} {bar(areas[kind]['used'], areas[kind]['size'], 16)}"
    print(line)
    return areas


def hog_runs():
    return machine.execute("systemctl is-active -q hog")[0] == 0


print("A machine with 1 GiB of RAM, a disk swap of priority 10, and Sluice at 1500 (its own memory")
print("is part of this machine's RAM here, where there is no GPU).")
configure("""
[swap]
size = "192M"
priority = 1500
[tier]
kind = "ram"
""")
machine.succeed(f"mkswap -q {DISK} && swapon -p 10 {DISK}")
start_store()
sizes = show("armed")

# More than free RAM and Sluice hold together: the disk gets the rest.
amount = (memory()[1] + sizes["sluice"]["size"]) // MIB + 64
print(f"A program fills {amount} MiB, each page with contents it can verify.")
machine.succeed(
    "systemd-run -q --unit=hog -p OOMPolicy=continue "
    "-p StandardOutput=file:/run/hog.json -p StandardError=journal "
    f"pressure --bytes {amount}M --hold --ready /run/full"
)
order = []
while machine.execute("test -e /run/full")[0] != 0:
    assert hog_runs(), machine.succeed("journalctl --no-pager -u hog")
    for kind, area in show("filling").items():
        if area["used"] > MIB and kind not in order:
            order.append(kind)
show("full")
full = status()
assert order == ["sluice", "disk"], f"filled in the order {order}"

print("Every page is read back and verified.")
machine.succeed("systemctl kill --kill-whom=main -s USR1 hog")
while machine.execute("test -s /run/hog.json")[0] != 0:
    assert hog_runs(), machine.succeed("journalctl --no-pager -u hog")
    show("verifying")
    machine.sleep(4)
report = json.loads(machine.succeed("cat /run/hog.json"))
assert report["wrong"] == 0 and report["verified"] == amount * 256, report

print("The program has ended: its pages are dead, and the kernel trims their clusters.")
while True:
    show("trimming")
    trimmed = status()
    if trimmed["written_pages"] < full["written_pages"] // 4:
        break

machine.succeed(f"systemctl stop {STORE}")
assert "sluice" not in show("off")


def extents(state):
    return sum(tier["extents_used"] for tier in state["tiers"])


requests = trimmed["requests"]
errors = trimmed["errors"]
print("summary")
for name, value in [
    ("pages verified, pages wrong", f"{report['verified']}, {report['wrong']}"),
    ("filled first, then", ", ".join(order)),
    ("major faults of the program", report["major_faults"]),
    ("page-in p50, p99", f"{report['p50_us']}, {report['p99_us']} us"),
    ("reads, writes, trims served", f"{requests['read']}, {requests['write']}, {requests['trim']}"),
    ("places of 2 MiB in use when full, after trim", f"{extents(full)}, {extents(trimmed)}"),
    ("pages held when full, after trim", f"{full['written_pages']}, {trimmed['written_pages']}"),
    ("errors: I/O, checksum, timeout", ", ".join(str(n) for n in errors.values())),
]:
    print(f"  {name:44} {value}")
assert not any(errors.values()), errors
