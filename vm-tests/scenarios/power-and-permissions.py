# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies timeout=1200
# The control plane with the machine's own bus, polkit, logind and UPower: what is kept for the GPU's
# programs is lent while memory is short; unplugged, all fast memory is given back, and plugged
# it is lent again; an off by hand stays off; who sits at the machine may switch, and
# whoever is not allowed is refused; and while programs fault on its pages the store does not
# notice that sluiced is killed and comes back.
PLUG = "/sys/module/sluice_supply/parameters/online"


def store():
    fast = tier("ram")
    return fast["target_bytes"], fast["held_bytes"], fast["open"]


def session(user, tty, command):
    """Runs a command in a session on a terminal; gives its exit code and what it said."""
    words = f"-p User={user} -p PAMName=login -p TTYPath=/dev/{tty} -p StandardOutput=truncate:/run/said"
    code, _ = machine.execute(f"systemd-run --quiet --wait --collect {words} {command}")
    return code, machine.succeed("cat /run/said")


SETTINGS = """
[swap]
size = "128M"
[tier]
kind = "ram"
[spill]
path = "/dev/disk/by-id/virtio-spill"
[metrics]
listen = "127.0.0.1:9778"
[control]
dwell_s = 1
"""
configure(SETTINGS + 'idle_target = "64M"')
machine.succeed(f"insmod {SIM}/modules/sluice_supply.ko", "udevadm settle")
start_logind()
start_store()
start_sluiced()

with subtest("what stays with the GPU's own programs is lent while the machine is short of memory"):
    until_rule("calm")
    assert store()[0] == 64 * MIB, store()
    leave_memory(160)
    start_pressure("--bytes 224M --seconds 40 --random --write 30")
    until_rule("configured")
    assert store()[0] == 128 * MIB, store()

with subtest("unplugged, all of it is given back while programs fault on it; plugged, it comes back"):
    configure(SETTINGS)
    machine.succeed("systemctl reload sluiced")
    machine.wait_until_succeeds("awk '/nbd/ { used += $4 } END { exit used < 20000 }' /proc/swaps")
    machine.succeed(f"echo 0 >{PLUG}")
    why = until_rule("battery")
    assert why["goal"] == "closed", why
    assert store() == (0, 0, False), store()
    assert "/dev/nbd0" in swaps(), swaps()
    machine.succeed("busctl get-property org.sluice.Sluice1 /org/sluice/Sluice1 org.sluice.Sluice1 OnBattery | grep -q true")
    machine.succeed(f"echo 1 >{PLUG}")
    until_rule("configured")
    target, _, is_open = store()
    assert (target, is_open) == (128 * MIB, True), store()

with subtest("sluiced is killed under load, and the store does not notice"):
    before = status()
    machine.succeed("systemctl kill -s KILL sluiced", "sleep 1")
    machine.wait_until_succeeds("systemctl is-active sluiced")
    until_rule("configured")
    after = status()
    assert after["pid"] == before["pid"] and after["state"] == "serving", after
    pressure_ended()
    assert not any(status()["errors"].values()), status()
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages")

with subtest("whoever is not allowed is refused, and told what to do"):
    call = "busctl call org.sluice.Sluice1 /org/sluice/Sluice1 org.sluice.Sluice1"
    for method in ["Disable", "Suspend", "SetTarget t 0", "Reserve tu 67108864 1000"]:
        said = machine.succeed(f"! setpriv --reuid=nobody --clear-groups {call} {method} 2>&1")
        assert "org.sluice" in said, said
    # Everybody may look.
    machine.succeed(f"setpriv --reuid=nobody --clear-groups {call} Explain")
    assert store()[0] == 128 * MIB, store()

with subtest("Prometheus is answered by the unit, hardened as it is"):
    get = 'exec 3<>/dev/tcp/127.0.0.1/9778; printf "GET /metrics HTTP/1.0\\r\\n\\r\\n" >&3; cat <&3'
    page = machine.succeed(f"setpriv --reuid=nobody --clear-groups bash -c '{get}'").splitlines()
    for line in ("sluice_store_up 1", 'sluice_control_rule{rule="configured"} 1', 'sluice_device_swapped_on{device="/dev/nbd0"} 1'):
        assert line in page, page

# There is no screen, but its terminals are there. This one is shown; the serial one is of no seat.
SHOWN, HIDDEN, NONE = "tty1", "tty2", "ttyS0"
machine.succeed("useradd sitting; useradd waiting")

with subtest("an off by hand, of who sits at the machine, stays off, whatever the power does"):
    code, said = session("sitting", SHOWN, "sluice off --within 10m")
    assert code == 0, (code, said)
    nothing_is_left_behind()
    for online in (0, 1):
        machine.succeed(f"echo {online} >{PLUG}")
        machine.wait_until_succeeds(f"sluice explain --json | grep -q '{'AC' if online else 'battery at'}'")
    machine.succeed("systemctl restart sluiced")
    until_rule("manual-off")
    assert not swaps(), swaps()

with subtest("who does not sit there may not undo it"):
    for user, tty in [("waiting", HIDDEN), ("waiting", NONE), ("sitting", NONE)]:
        code, said = session(user, tty, "sluice on --within 10m")
        assert code == 1 and "org.sluice.toggle is refused" in said, (user, tty, code, said)
        assert not swaps(), swaps()

with subtest("who sits there may switch, and no more"):
    code, said = session("sitting", SHOWN, "sluice on --within 10m")
    assert code == 0 and "/dev/nbd0" in swaps(), (code, said, swaps())
    code, said = session("sitting", SHOWN, "sluice target 64M")
    assert code == 1 and "org.sluice.target is refused" in said, (code, said)
    assert store()[0] == 128 * MIB, store()

machine.succeed("systemctl stop sluiced", f"systemctl stop {STORE}")
nothing_is_left_behind()
