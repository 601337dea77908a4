# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# Somebody asks logind to suspend while programs swap to a card: logind waits for sluiced,
# which has every page leave the card and the card closed before anything is stopped. Where
# sluiced is stuck, logind does not wait for ever, and the unit does it: sleep waits for that.
# After waking the card is lent again and every page is right.
MANAGER = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
SUSPEND = "systemd-suspend.service"
fake_cards("device-bytes=512M")
configure(f"""
[swap]
size = "128M"
[tier]
kind = "cuda"
[cuda]
library = "{FAKE_DRIVER}"
[spill]
path = "/dev/disk/by-id/virtio-spill"
[control]
dwell_s = 1
""")
machine.succeed("systemctl enable sluice-sleep.service sluice-freeze.service")
for unit in ["sluice-sleep.service", SUSPEND]:
    write_file(
        f"/run/systemd/system/{unit}.d/look.conf",
        f"[Service]\nExecStartPre=bash -c 'sluice status --json >/run/{unit}.json'",
    )


def is_waited_for():
    """Waits until logind knows that it has to wait for sluiced."""
    machine.wait_until_succeeds(f"busctl call {MANAGER} ListInhibitors | grep -q '\"sluiced\"'")


def suspend():
    """Sleeps and wakes; gives the card as it was when the unit started, and at the last."""
    sleep_and_wake(f"busctl call {MANAGER} Suspend b false")
    has_ended(SUSPEND, "sluice-sleep.service", "sluice-freeze.service")
    machine.fail(f"systemctl is-failed {SUSPEND}")
    seen = [json.loads(machine.succeed(f"cat /run/{u}.json")) for u in ("sluice-sleep.service", SUSPEND)]
    return [next(t for t in then["tiers"] if t["name"] == "cuda:0") for then in seen]


def all_is_as_before(sleeps):
    machine.wait_until_succeeds(
        f"test $(journalctl -o cat -u sluiced | grep -c 'logind: SleepEnded') = {sleeps}"
    )
    until_rule("configured")
    assert tier("cuda:0")["target_bytes"] == 128 * MIB and status()["state"] == "serving", status()
    is_waited_for()


# Far longer than it takes, emulated as it may be.
start_logind("InhibitDelayMaxSec=300")
start_store()
start_sluiced()
until_rule("configured")
hold_pages(size="48M", resident="24M")
keep_busy(60)

with subtest("logind waits until sluiced has emptied and closed the card"):
    is_waited_for()
    assert tier("cuda:0")["held_bytes"] > 0, status()
    before, asleep = suspend()
    assert not before["open"] and before["held_bytes"] == 0, before
    assert not asleep["open"], asleep
    all_is_as_before(1)

with subtest("sluiced is stuck: logind gives it up, and sleep waits for the unit"):
    start_logind("InhibitDelayMaxSec=2")
    is_waited_for()
    machine.succeed("systemctl kill -s STOP sluiced")
    before, asleep = suspend()
    assert before["open"], before
    assert not asleep["open"] and asleep["held_bytes"] == 0, asleep
    machine.succeed("systemctl kill -s CONT sluiced")
    all_is_as_before(2)

with subtest("no page was lost"):
    busy_pages_are_right()
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()

machine.succeed("systemctl stop sluiced", f"systemctl stop {STORE}")
nothing_is_left_behind()
the_cards_are_given_back()
