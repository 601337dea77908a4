# SPDX-License-Identifier: MIT OR Apache-2.0
# What scenarios share. It stands before each of them, here and in a NixOS test, and
# uses nothing but the test driver's own names.
import json
import time

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
    machine.fail("pgrep -x sluice-store || pgrep -x sluice-hold")
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


def hold_pages(size, resident, more=""):
    """Starts a program that fills `size` bytes of which `resident` may stay in memory.

    What does not fit is in swap when this returns, and stays there: the limit is lifted.
    `more`: further settings of its unit.
    """
    machine.succeed(
        f"systemd-run --quiet --unit=hold -p MemoryMax={resident} -p OOMPolicy=continue "
        f"{more} -p StandardOutput=file:/run/hold.json -p StandardError=journal "
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


def order(words, codes=(0,)):
    """Gives the store an order (`vram drain`, `gpu close --within 5s`); what came of it."""
    code, said = machine.execute(f"sluice {words} --json")
    assert code in codes, (words, code, said, status())
    return json.loads(said)


def leave_memory(mebibytes):
    """Takes all but so much of what is available, in pages that cannot be swapped."""
    machine.succeed(
        "available=$(awk '/MemAvailable/ { print int($2 / 2048) }' /proc/meminfo);"
        f"echo $((available - {mebibytes // 2})) >/proc/sys/vm/nr_hugepages"
    )


def start_pressure(words):
    """Runs `pressure` beside the scenario; pressure_ended() waits for it."""
    machine.succeed(
        "systemd-run --quiet --unit=load -p OOMPolicy=continue "
        "-p StandardOutput=file:/run/load.json -p StandardError=journal "
        f"pressure {words}"
    )


def pressure_ended(timeout=600):
    """The report of start_pressure(); every page of it was right."""
    machine.wait_until_succeeds("test -s /run/load.json", timeout=timeout)
    report = json.loads(machine.succeed("cat /run/load.json; rm /run/load.json"))
    machine.log(str(report))
    assert report["wrong"] == 0, report
    return report


def until_rule(rule, progress="settled"):
    """Waits until sluiced goes by that rule, and is so far with it; gives what it explains."""
    machine.wait_until_succeeds(
        "sluice explain --json >/run/why.json;"
        f"grep -q '\"rule\": \"{rule}\"' /run/why.json && grep -q '\"progress\": \"{progress}\"' /run/why.json"
    )
    return json.loads(machine.succeed("cat /run/why.json"))


def start_sluiced():
    """Starts the control plane; where it does not run, its own words are in the failure."""
    machine.succeed(
        "systemctl reload dbus",
        "systemctl start sluiced || { journalctl -u sluiced -n 30 >&2; false; }",
    )


def start_logind(settings=""):
    """Starts logind, which most machines here do without, with further settings."""
    write_file("/run/systemd/logind.conf.d/test.conf", f"[Login]\n{settings}")
    machine.succeed(
        "systemctl is-active -q systemd-logind || rm -f /etc/systemd/system/systemd-logind.service",
        "systemctl daemon-reload; systemctl restart systemd-logind",
    )


def sleep_and_wake(command):
    """Runs a command that has the machine sleep, presses the button, waits until it is awake."""

    def wakings():
        return machine.get_console_log().count("PM: suspend exit")

    before = wakings()
    machine.succeed(command)
    while wakings() == before:
        if "suspended" in machine.send_monitor_command("info status"):
            machine.send_monitor_command("system_wakeup")
        time.sleep(0.5)


def has_ended(*units):
    """Waits until the units are inactive, or have failed."""
    states = f"systemctl show --property=ActiveState --value {' '.join(units)}"
    machine.wait_until_fails(f"{states} | grep -qxE 'active|activating|deactivating|reloading'")


FAKE_DRIVER = "/usr/lib/sluice-fake/libcuda.so.1"
FAKE_CONTROL = "/run/fake-cuda"


def fake_cards(*words):
    """Gives the machine cards that are not there, with the fake driver's control words."""
    machine.succeed(
        f"test -e {FAKE_DRIVER} || {{ echo 'build with -p sluice-fake-cuda first' >&2; false; }}",
        f"fake-cuda-ctl {FAKE_CONTROL} create {' '.join(words)}",
    )
    variable = f"[Service]\nEnvironment=SLUICE_FAKE_CUDA={FAKE_CONTROL}"
    settings = {
        f"{STORE}.d": variable,
        # Its NVML counts the memory of all processes by their open files.
        "sluiced.service.d": f"{variable}\nCapabilityBoundingSet=CAP_SYS_PTRACE",
    }
    if machine.execute(f"test -e /run/systemd/system/{STORE}.d/fake-cuda.conf")[0] != 0:
        for folder, setting in settings.items():
            write_file(f"/run/systemd/system/{folder}/fake-cuda.conf", setting)
        machine.succeed(
            f"ln -s {FAKE_DRIVER} $(dirname {FAKE_DRIVER})/libnvidia-ml.so.1",
            "systemctl daemon-reload",
        )


def fake_set(*words):
    """Changes what the cards do, under a store that runs."""
    machine.succeed(f"fake-cuda-ctl {FAKE_CONTROL} set {' '.join(words)}")


def fake(*words):
    """Reads words of the fake driver; what it counts is among them."""
    lines = machine.succeed(f"fake-cuda-ctl {FAKE_CONTROL} get {' '.join(words)}").split()
    return {name: int(value) for name, value in (line.split("=") for line in lines)}


def the_cards_are_given_back():
    """No store is left on the fake cards, and none used the driver wrongly."""
    words = ["handles", "mappings", "reservations", "registrations", "streams", "events"]
    left = fake(*words, "contexts", "misuses")
    assert not any(left.values()), left


def store_pid():
    """The store's process; the holder's has another name."""
    return int(machine.succeed("pgrep -x sluice-store"))


def keep_busy(seconds=60):
    """Starts a program that writes and verifies pages of which most are in swap."""
    machine.succeed(
        "systemd-run --quiet --unit=busy -p MemoryMax=32M -p OOMPolicy=continue "
        "-p StandardOutput=file:/run/busy.json -p StandardError=journal "
        f"pressure --bytes 64M --seconds {seconds} --random --write 30"
    )
    machine.wait_until_succeeds("awk '/nbd/ { used += $4 } END { exit used < 20000 }' /proc/swaps")


def busy_pages_are_right():
    """Waits for the program of keep_busy, which must have found each page as it wrote it."""
    machine.wait_until_succeeds("test -s /run/busy.json")
    report = json.loads(machine.succeed("cat /run/busy.json"))
    assert report["wrong"] == 0 and report["major_faults"] > 100, report
    return report


def kill_store_and_wait(how="kill -KILL"):
    """Kills the store and waits until another one answers the kernel; tells how long it took."""
    before = store_pid()
    device = next(iter(swaps()))
    # One direct read from the device is in flight over it all: it is answered by the next store.
    took = machine.succeed(
        f"{how} {before}; begin=$(date +%s%N);"
        f"dd if={device} of=/dev/null bs=4096 count=1 skip=1 iflag=direct status=none;"
        "echo $((($(date +%s%N) - begin) / 1000000))"
    )
    after = store_pid()
    assert after != before, f"process {before} was not killed"
    print(f"first answer {took.strip()} ms after the kill")
    machine.wait_until_succeeds("sluice status --json | grep -q '\"state\": *\"serving\"'")
    return int(took)


SIM = "/usr/lib/sluice"


def load_modules():
    """Loads the policy module and the simulated GPU."""
    machine.succeed(
        f"insmod {SIM}/modules/sluice_gpu.ko", f"insmod {SIM}/modules/sluice_sim.ko"
    )


def play(workload, *options):
    """Plays a workload on the simulated GPU; gives its counters by name."""
    words = " ".join(map(str, options))
    return json.loads(machine.succeed(f"sluice-sim run {workload} --json {words}"))


def policies():
    """What is attached: name to what the module says of it."""
    found = json.loads(machine.succeed("sluice-policy stats --json"))
    return {policy["name"]: policy for policy in found}


def hooks(name):
    """The counters of a policy's hooks, by hook."""
    return {hook["hook"]: hook for hook in policies()[name]["hooks"]}


RENDERED = "/usr/lib/sluice-nixos"


def become(example):
    """Makes the machine what NixOS makes of an example in nixos-module/tests/examples.

    A machine that runs NixOS is it already.
    """
    if machine.execute("test -e /etc/NIXOS")[0] == 0:
        return
    machine.succeed(
        f"cp -a {RENDERED}/{example}/. /",
        "systemctl daemon-reload; systemctl restart systemd-modules-load",
    )


REBOOT_MARK = "sluice: the machine is told to go down"


def went_down_well(*said):
    """The machine is off or has booted again; its console tells how it went."""
    console = machine.get_console_log()
    # The kernel's last words, and what came since the machine was last switched on.
    last = console[console.rindex(REBOOT_MARK) :]
    assert "reboot: " in last, last[-4000:]
    for text in said:
        assert text in last, (text, last[-4000:])
    for bad in ["I/O error", "Out of memory", "oom-kill", "timed out", "Read-error", "Write-error"]:
        assert bad not in last, (bad, last[-4000:])


def go_down(leave):
    """Shuts the machine down with `leave`, for went_down_well()."""
    machine.succeed(f"echo '{REBOOT_MARK}' >/dev/kmsg")
    leave()


def leave_with(pages, leave):
    """Puts no, some or all pages in swap, shuts the machine down, and looks at how it went."""
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
""")
    start_store()
    if pages == "some":
        # Of a service: they go when it ends.
        # Told to end in order it would look at each page once more.
        hold_pages("112M", resident="48M", more="-p KillSignal=SIGKILL")
        assert swaps()["/dev/nbd0"]["used"] > 48 * MIB, swaps()
    if pages == "all":
        # Of files in memory that nobody can end, with no memory to bring them back to.
        machine.succeed(
            "mkdir /sys/fs/cgroup/files; echo 16M >/sys/fs/cgroup/files/memory.max",
            "echo $BASHPID >/sys/fs/cgroup/files/cgroup.procs; head -c 132M /dev/zero >/dev/shm/pages",
        )
        assert swaps()["/dev/nbd0"]["used"] > 96 * MIB, swaps()
        leave_memory(40)
    go_down(leave)
    if pages == "all":
        went_down_well("do not fit", "the GPUs are closed", "stays on; the store serves it")
    else:
        went_down_well("the swap is off and the store has ended")
