# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=600
# The connection between kernel and store dies under live swap, again and again: the store
# gives the kernel a new one each time, what was in flight is sent again, no page is lost.
configure("""
[swap]
size = "256M"
devices = 2
[tier]
kind = "ram"
""")
start_store()
pid = machine.succeed("pgrep -x sluice-store").strip()
hold_pages(size="128M", resident="48M")
machine.succeed(
    "systemd-run --quiet --unit=busy -p MemoryMax=32M -p OOMPolicy=continue "
    "-p StandardOutput=file:/run/busy.json -p StandardError=journal "
    "pressure --bytes 64M --seconds 40 --random --write 30"
)
for turn in range(4):
    with subtest(f"cut {turn}"):
        machine.wait_until_succeeds("systemctl is-active busy && grep -q nbd /proc/swaps")
        machine.succeed(f"cut-sockets {pid}")
        machine.wait_until_succeeds(
            f"[ $(journalctl -u {STORE} -o cat | grep -c 'is served again') -ge {2 * turn + 2} ]"
        )
        assert status()["connections"] == 2, status()

with subtest("nothing was lost, nothing is wrong, and the store can be stopped"):
    machine.wait_until_succeeds("test -s /run/busy.json")
    busy = json.loads(machine.succeed("cat /run/busy.json"))
    assert busy["wrong"] == 0 and busy["major_faults"] > 100, busy
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"pgrep -x sluice-store | grep -qx {pid}")
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
