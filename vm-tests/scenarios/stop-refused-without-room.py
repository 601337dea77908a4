# SPDX-License-Identifier: MIT OR Apache-2.0
# Where the pages would not fit into memory, detaching says so with the figures, and the
# store goes on holding them. With room again, a stop that was begun ends by itself.
configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="128M", resident="48M")
leave_memory(48)

with subtest("detach refuses, says how much is missing, and changes nothing"):
    said = machine.fail("sluice-store detach 2>&1")
    assert "do not fit" in said and "--force" in said, said
    assert swaps()["/dev/nbd0"]["used"] > 64 * MIB
    assert status()["state"] == "serving"

with subtest("a stop waits for room instead of ending the store"):
    machine.succeed(f"systemctl stop --no-block {STORE}")
    machine.wait_until_succeeds(f"journalctl -u {STORE} | grep -q 'still serving'")
    machine.succeed("pgrep -x sluice-store", "grep -q nbd0 /proc/swaps")

with subtest("killed while it waits: the next store serves the pages, and waits in its place"):
    kill_store_and_wait()
    assert machine.succeed(f"systemctl is-active {STORE} || true").strip() == "deactivating"
    assert swaps()["/dev/nbd0"]["used"] > 64 * MIB

with subtest("with room it ends"):
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages")
    machine.wait_until_fails(f"systemctl is-active {STORE} || pgrep -x sluice-store")
    nothing_is_left_behind()

with subtest("the program never noticed"):
    held_pages_are_right()
