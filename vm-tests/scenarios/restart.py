# SPDX-License-Identifier: MIT OR Apache-2.0
# Another file leaves the store and its pages alone, as after a switch to another NixOS
# configuration, and `sluice status` says what waits for what. `systemctl restart` is a stop
# and a start: every page comes back to memory first, and the new configuration holds
# afterwards. Where a stop is refused, so is the restart's.
configure("""
[swap]
size = "192M"
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="96M", resident="48M")
holder, store = machine.succeed("pgrep -x sluice-hold").strip(), store_pid()
assert not status()["pending"]["changes"], status()

with subtest("another file changes nothing, and the status says what is not in force"):
    configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
    used = swaps()["/dev/nbd0"]["used"]
    pending = status()["pending"]
    assert pending["file"] == CONFIG and not pending["problems"], pending
    keys = {c["key"]: (c["running"], c["configured"], c["effect"]) for c in pending["changes"]}
    expected = ('"192M"', '"128M"', "store-start")
    assert keys == {"swap.size": expected, "tier.size": expected}, keys
    shown = machine.succeed("sluice status")
    assert "takes effect after sluice off && sluice on, or a reboot:" in shown, shown
    assert 'swap.size  "192M" now, then "128M"' in shown, shown
    assert store_pid() == store and status()["size_bytes"] == 192 * MIB
    assert used > 32 * MIB and swaps()["/dev/nbd0"]["size"] == 192 * MIB - 4096, swaps()

with subtest("a hand-over goes on with what was in force"):
    machine.succeed(f"systemctl reload {STORE}")
    machine.wait_until_succeeds(f"pgrep -x sluice-store && ! pgrep -x sluice-store | grep -qx {store}")
    machine.wait_until_succeeds("sluice status --json | grep -q '\"state\": *\"serving\"'")
    assert status()["pending"] == pending, status()
    store = store_pid()

with subtest("with a wrong file or none the status still works"):
    write_file("/run/kept.toml", machine.succeed(f"cat {CONFIG}").strip())
    machine.succeed(f"echo 'size = 5' >>{CONFIG}")
    assert "sluice config check" in status()["pending"]["problems"][0], status()
    machine.succeed(f"rm {CONFIG}")
    assert "No such file" in status()["pending"]["problems"][0], status()
    machine.succeed(f"mv /run/kept.toml {CONFIG}")

machine.succeed(f"systemctl restart {STORE}")
assert machine.succeed("pgrep -x sluice-hold").strip() != holder
assert store_pid() != store
assert status()["size_bytes"] == 128 * MIB
assert not status()["pending"]["changes"], status()
held_pages_are_right()
machine.succeed(f"systemctl stop {STORE}")
nothing_is_left_behind()
