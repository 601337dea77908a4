# SPDX-License-Identifier: MIT OR Apache-2.0
# What scenarios share. It stands before each of them, here and in a NixOS test, and
# uses nothing but the test driver's own names.
import json

STORE = "sluice-store.service"
CONFIG = "/etc/sluice/sluice.toml"
MIB = 1 << 20


def write_file(path, text):
    """Puts a text into a file of the machine."""
    machine.succeed(f"mkdir -p $(dirname {path}); cat >{path} <<'END'\n{text}\nEND")


def configure(text):
    """Writes the configuration of the store."""
    write_file(CONFIG, text)


def start_store():
    """Starts the store; where it does not arm, its own words are in the failure."""
    machine.succeed(f"systemctl start {STORE} || {{ journalctl -u {STORE} -n 20 >&2; false; }}")


def status():
    """What the store says about itself."""
    return json.loads(machine.succeed("sluice status --json"))


def tier(name):
    """What the store says about one of its tiers."""
    return next(t for t in status()["tiers"] if t["name"] == name)


def swaps():
    """Swap areas that are on: device to size, used (bytes) and priority."""
    lines = machine.succeed("cat /proc/swaps").splitlines()[1:]
    fields = [line.split() for line in lines]
    return {
        f[0]: {"size": int(f[2]) * 1024, "used": int(f[3]) * 1024, "priority": int(f[4])}
        for f in fields
    }


def journal():
    """What the store has logged."""
    return machine.succeed(f"journalctl --no-pager -o cat -u {STORE}")


def nothing_is_left_behind():
    """No swap, no device, no process, no socket of a store."""
    assert not swaps(), swaps()
    machine.fail("pgrep -x sluice-store")
    machine.fail("cat /sys/block/nbd*/pid")
    machine.fail("test -e /run/sluice/store.sock")


def refuses_to_start():
    """Starts the store, which must fail and leave nothing; gives what it said."""
    machine.fail(f"systemctl start {STORE}")
    machine.succeed(f"systemctl is-failed {STORE}")
    nothing_is_left_behind()
    said = journal()
    machine.succeed(f"systemctl reset-failed {STORE}")
    return said


def hold_pages(size, resident):
    """Starts a program that fills `size` bytes of which `resident` may stay in memory.

    What does not fit is in swap when this returns, and stays there: the limit is lifted.
    """
    machine.succeed(
        f"systemd-run --quiet --unit=hold -p MemoryMax={resident} -p OOMPolicy=continue "
        "-p StandardOutput=file:/run/hold.json -p StandardError=journal "
        f"pressure --bytes {size} --hold --ready /run/hold.ready"
    )
    machine.wait_for_file("/run/hold.ready")
    machine.succeed("systemctl set-property --runtime hold.service MemoryMax=infinity")


def held_pages_are_right():
    """Has the program of hold_pages verify each of its pages, and end."""
    machine.succeed("systemctl kill --kill-whom=main -s USR1 hold.service")
    machine.wait_until_succeeds("test -s /run/hold.json")
    report = json.loads(machine.succeed("cat /run/hold.json"))
    assert report["wrong"] == 0, report
    assert report["verified"] == report["bytes"] // 4096, report
    machine.succeed("rm /run/hold.json /run/hold.ready")
    return report
