# SPDX-License-Identifier: MIT OR Apache-2.0
# What `make install` puts into a machine works there: systemd, the bus, polkit and shells
# find their files, the store starts and stops, and members of the group `sluice` may
# switch it.
UNITS = " ".join(
    f"{name}.service"
    for name in ["sluice-store", "sluiced", "sluice-shutdown", "sluice-sleep", "sluice-freeze", "sluice-hibernate"]
)
CALL = "busctl call org.sluice.Sluice1 /org/sluice/Sluice1 org.sluice.Sluice1"
AS_NOBODY = f"setpriv --reuid=nobody --regid=nogroup --clear-groups {CALL}"
# With the groups that a login would give.
AS_MEMBER = f"setpriv --reuid=nobody --regid=nogroup --init-groups {CALL}"

with subtest("systemd finds the units, and nothing wrong with them"):
    # There is no program `man` in the machine.
    said = machine.succeed(f"systemd-analyze verify --man=no --recursive-errors=no {UNITS} 2>&1")
    assert "sluice" not in said, said
    machine.succeed("systemctl enable sluice-store sluiced sluice-sleep sluice-freeze sluice-hibernate 2>&1")

with subtest("pages and completions are there"):
    for page in ["sluice", "sluice-status", "sluice-spill-create"]:
        machine.succeed(f"grep -q '^.TH' /usr/share/man/man1/{page}.1")
    machine.succeed(
        "bash -c '. /usr/share/bash-completion/completions/sluice; complete -p sluice'",
        "test -s /usr/share/zsh/site-functions/_sluice",
        "test -s /usr/share/fish/vendor_completions.d/sluice.fish",
        "grep -q 'interface name=\"org.sluice.Sluice1\"' /usr/share/dbus-1/interfaces/org.sluice.Sluice1.xml",
    )

with subtest("the store starts, and its swap is on"):
    configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
    start_store()
    assert swaps()["/dev/nbd0"]["size"] == 128 * MIB - 4096, swaps()
    # Nothing that was asked for asks the bus to start it.
    assert status()["pending"] == {"file": CONFIG, "sluiced": False, "problems": [], "changes": []}, status()
    machine.fail("systemctl is-active sluiced")

with subtest("the bus starts sluiced for who asks, and polkit knows its actions"):
    machine.succeed("systemctl reload dbus", f"{CALL} Explain")
    machine.succeed("systemctl is-active sluiced")
    assert status()["pending"]["sluiced"], status()
    machine.succeed("pkaction --action-id org.sluice.toggle")

with subtest("members of the group may switch, others may not"):
    said = machine.succeed(f"! {AS_NOBODY} Disable 2>&1")
    assert "org.sluice" in said, said
    machine.succeed("systemd-sysusers", "sed -i 's/^sluice:.*:$/&nobody/' /etc/group", "getent group sluice | grep nobody")
    machine.succeed(f"{AS_MEMBER} Disable")
    machine.wait_until_fails("test -e /run/sluice/store.sock")
    machine.wait_until_succeeds(f"! systemctl is-active {STORE}")
    nothing_is_left_behind()
    # The target is another permission.
    machine.fail(f"{AS_MEMBER} SetTarget t 0")
    machine.succeed(f"{AS_MEMBER} Enable", "sluice on --within 2m")
    assert "/dev/nbd0" in swaps(), swaps()

machine.succeed("systemctl stop sluiced", f"systemctl stop {STORE}")
nothing_is_left_behind()
