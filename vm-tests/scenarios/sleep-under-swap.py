# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# The machine sleeps (to RAM, really) and wakes while a program swaps to a card: no page is
# on the card meanwhile, who might wait for a page is stopped first, and afterwards all is as
# before. A sleep that is given up half way leaves everything at work; one that would cost
# pages is refused. There is no logind here: its part, starting the service, is done by hand;
# sleep-by-logind has one, and the control plane.
fake_cards("device-bytes=512M")
SWAP = f"""
[swap]
size = "128M"
[tier]
kind = "cuda"
[cuda]
library = "{FAKE_DRIVER}"
"""
SPILL = '[spill]\npath = "/dev/disk/by-id/virtio-spill"'
SUSPEND, HIBERNATE = "systemd-suspend.service", "systemd-hibernate.service"
machine.succeed(
    "systemctl enable sluice-sleep.service sluice-freeze.service sluice-hibernate.service"
)
write_file(
    f"/run/systemd/system/{SUSPEND}.d/look.conf",
    "[Service]\nExecStartPre=bash -c 'sluice status --json >/run/slept.json;"
    " cat /sys/fs/cgroup/system.slice/busy.service/cgroup.events >/run/slept.events'",
)
write_file(
    f"/run/systemd/system/{HIBERNATE}.d/instead.conf",
    "[Service]\nExecStart=\nExecStart=bash -c 'cat /proc/swaps >/run/hibernated'",
)
machine.succeed("systemctl daemon-reload")


def card():
    return tier("cuda:0")


def all_is_as_before():
    has_ended("sluice-sleep.service", "sluice-freeze.service", "sluice-hibernate.service")
    machine.fail("grep -qx 'frozen 1' /sys/fs/cgroup/system.slice/*/cgroup.events")
    machine.fail("test -e /run/sluice/store.asleep || test -e /run/sluice/store.frozen")
    assert card()["target_bytes"] == 128 * MIB, status()
    assert status()["state"] == "serving", status()


configure(SWAP + SPILL)
start_store()
keep_busy(90)
with subtest("it sleeps with the card closed and the program stopped, and wakes"):
    sleep_and_wake(f"systemctl start --no-block {SUSPEND}")
    has_ended(SUSPEND)
    machine.fail(f"systemctl is-failed {SUSPEND}")
    slept = json.loads(machine.succeed("cat /run/slept.json"))
    then = next(t for t in slept["tiers"] if t["name"] == "cuda:0")
    assert not then["open"] and then["held_bytes"] == 0, then
    assert "frozen 1" in machine.succeed("cat /run/slept.events")
    all_is_as_before()

with subtest("a program that the kernel cannot stop: sleep is given up, and all goes on"):
    write_file(
        "/run/systemd/system/sluice-freeze.service.d/soon.conf",
        "[Service]\nExecStart=\nExecStart=/usr/bin/sluice-store freeze --within 3",
    )
    machine.succeed(
        "systemctl daemon-reload",
        "mkfs.ext4 -q /dev/disk/by-id/virtio-swap; mkdir /run/stuck",
        "mount /dev/disk/by-id/virtio-swap /run/stuck; fsfreeze -f /run/stuck",
        "systemd-run --quiet --unit=stuck touch /run/stuck/file; sleep 1",
        "echo 2000 >/sys/power/pm_freeze_timeout",
    )
    machine.fail(f"systemctl start {SUSPEND}", timeout=300)
    machine.wait_for_console_text("tasks refusing to freeze")
    said = machine.succeed("journalctl -o cat -u sluice-freeze.service")
    assert "stuck.service" in said and "did not stop in 3 s" in said, said
    all_is_as_before()
    machine.succeed("fsfreeze -u /run/stuck; umount /run/stuck")

with subtest("no page was lost"):
    busy_pages_are_right()
    assert not any(status()["errors"].values()), status()

hold_pages(size="80M", resident="40M")
with subtest("hibernation is refused where the pages do not fit into memory"):
    leave_memory(40)
    machine.fail(f"systemctl start {HIBERNATE}")
    said = machine.succeed("journalctl -o cat -u sluice-hibernate.service")
    assert "do not fit" in said, said
    machine.fail("test -e /run/hibernated")
    all_is_as_before()
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages")

with subtest("where they fit, the swap is off when the image is made, and on again after"):
    machine.succeed(f"systemctl start {HIBERNATE}")
    assert "nbd" not in machine.succeed("cat /run/hibernated")
    machine.wait_until_succeeds("grep -q nbd /proc/swaps && sluice status")
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
    the_cards_are_given_back()

with subtest("without a spill it is refused, with the reason, and nothing changes"):
    configure(SWAP)
    start_store()
    hold_pages(size="40M", resident="32M")
    machine.fail(f"systemctl start {SUSPEND}")
    said = machine.succeed("journalctl -o cat -u sluice-sleep.service")
    assert "no spill" in said and "must not sleep" in said, said
    all_is_as_before()
    assert card()["open"] and card()["held_bytes"] == 128 * MIB, card()
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
