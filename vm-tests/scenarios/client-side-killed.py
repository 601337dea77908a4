# SPDX-License-Identifier: MIT OR Apache-2.0
# Somebody else disconnects the device under live swap (`nbd-client -d`). The kernel lets
# root do that, and what was swapped out cannot be read any more. What must hold: nobody
# ever sees wrong data (a process that needs a lost page is killed), the machine goes on,
# and the store says what happened instead of pretending to serve.
configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="128M", resident="48M")
machine.succeed("nbd-client -d /dev/nbd0")

with subtest("the store says so, and does not end"):
    machine.wait_until_succeeds("sluice status --json | grep -q 'disconnected by somebody else'")
    machine.succeed("pgrep -x sluice-store")
    assert "cannot be read" in journal()

with subtest("the program that needs a lost page is killed, not lied to"):
    machine.succeed("systemctl kill --kill-whom=main -s USR1 hold.service")
    machine.wait_until_fails("systemctl is-active hold.service")
    assert machine.get_unit_property("hold.service", "Result") == "signal"
    machine.succeed("test ! -s /run/hold.json")

with subtest("the machine still runs programs"):
    machine.succeed("pressure --bytes 64M --passes 1")
