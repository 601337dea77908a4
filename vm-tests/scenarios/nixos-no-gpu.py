# SPDX-License-Identifier: MIT OR Apache-2.0
# What the NixOS module renders of its example `no-gpu` is a machine that swaps to Sluice,
# with a spill that it made itself, and that a switch of its configuration leaves alone.
if machine.execute("mountpoint -q /var/lib/sluice")[0] != 0:
    machine.succeed(
        "mkfs.ext4 -q /dev/disk/by-id/virtio-spill",
        "mkdir -p /var/lib/sluice; mount /dev/disk/by-id/virtio-spill /var/lib/sluice",
    )
become("no-gpu")

with subtest("the target brings the spill, and the spill the store"):
    machine.succeed("systemctl start multi-user.target")
    machine.wait_for_unit(STORE)
    assert swaps()["/dev/nbd0"]["priority"] == 1500, swaps()
    assert status()["size_bytes"] == 192 * MIB
    made = machine.succeed("stat -c '%i %a %s' /var/lib/sluice/spill").split()
    assert made[1:] == ["600", str(194 * MIB)], made
    assert machine.succeed("cat /sys/module/nbd/parameters/max_part").strip() == "0"
    machine.succeed("sluice config check")

with subtest("pages go there and come back"):
    hold_pages(size="48M", resident="24M")
    assert swaps()["/dev/nbd0"]["used"] > 16 * MIB, swaps()
    before = store_pid()

with subtest("a switch leaves the store and its pages alone"):
    # What switch-to-configuration goes by; the rest of it is a reload of the units.
    unit = machine.succeed(f"systemctl cat {STORE}")
    assert "X-RestartIfChanged=false" in unit, unit
    machine.succeed("systemctl daemon-reload; systemctl start multi-user.target")
    assert store_pid() == before
    held_pages_are_right()

with subtest("the spill is made once"):
    machine.succeed(f"systemctl restart {STORE}")
    assert machine.succeed("stat -c %i /var/lib/sluice/spill").strip() == made[0]
    skipped = machine.get_unit_property("sluice-spill.service", "ConditionResult")
    assert skipped == "no", skipped

machine.succeed(f"systemctl stop {STORE}")
nothing_is_left_behind()
