# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# The unit has no capability that it could do without: with one taken away it does not arm,
# and says which one it wants.
configure("""
[swap]
size = "64M"
[tier]
kind = "ram"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
DROP_IN = "/run/systemd/system/sluice-store.service.d/less.conf"
given = machine.succeed(
    "grep -h ^CapabilityBoundingSet= /usr/lib/systemd/system/sluice-store.service"
).strip().partition("=")[2].split()
assert len(given) >= 4, given
unneeded = []
for capability in given:
    with subtest(capability):
        # Loading the module is asked of the store, not of the scenario before it.
        machine.succeed("modprobe -r nbd")
        write_file(DROP_IN, f"[Service]\nCapabilityBoundingSet=~{capability}")
        machine.succeed("systemctl daemon-reload")
        started, _ = machine.execute(f"systemctl start {STORE}")
        if started == 0:
            unneeded.append(capability)
            machine.succeed(f"systemctl stop {STORE}")
            continue
        said = machine.succeed(f"journalctl -o cat -u {STORE} -n 8")
        print(said)
        assert capability in said, said
        nothing_is_left_behind()
        machine.succeed(f"systemctl reset-failed {STORE}")
assert not unneeded, unneeded

with subtest("with all of them it arms"):
    machine.succeed(f"rm {DROP_IN}", "systemctl daemon-reload")
    start_store()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
