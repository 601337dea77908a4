# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=9000
# As pressure-verified, for an hour: no hang, no wrong page, no memory that grows.
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
leave_memory(160)


def resident():
    return int(machine.succeed("awk '/VmRSS/ { print $2 }' /proc/$(pgrep -x sluice-store)/status"))


before = resident()
report = json.loads(
    machine.succeed("pressure --bytes 288M --seconds 3600 --random --tasks 2 --write 30", timeout=8000)
)
print(report)
print(f"resident before and after: {before} and {resident()} KiB")
assert report["wrong"] == 0, report
assert resident() < before + 140 * 1024, "grew by more than the fast tier's slabs"
assert not any(status()["errors"].values()), status()
machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
nothing_is_left_behind()
