# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies timeout=900
# The probe tells what NVIDIA's unified memory does for whom; the driver's core is a stub without a GPU.
# Needs `make -C kernel-module uvm`, some minutes the first time.
import random

MODULES = f"{SIM}/modules"
PAGE, PLACE = 4096, 0x200000000000
machine.succeed(
    f"test -e {MODULES}/nvidia-uvm.ko || "
    "{ echo 'build it first: make -C kernel-module uvm' >&2; false; }"
)


def load(parameters=""):
    """Loads the driver."""
    machine.succeed(
        f"insmod {MODULES}/nvidia-uvm.ko {parameters}",
        "rm -f /dev/nvidia-uvm",
        "mknod /dev/nvidia-uvm c $(awk '$2 == \"nvidia-uvm\" { print $1 }' /proc/devices) 0",
    )


def start_trace(name, *options):
    """Starts a tracer that writes /run/NAME.events."""
    words = " ".join(map(str, options))
    machine.succeed(
        f"systemd-run --quiet --unit={name} -p StandardOutput=file:/run/{name}.events "
        f"-p StandardError=journal sluice-policy trace --memory --json {words}"
    )
    machine.wait_until_succeeds(f"journalctl -u {name} | grep -q \"NVIDIA's unified memory\"")


def events_of(trace):
    """What a tracer has told."""
    return [json.loads(line) for line in machine.succeed(f"cat /run/{trace}.events").splitlines()]


class Client:
    """A program with managed memory, in a cgroup of its own; it touches when it is told to."""

    def __init__(self, name, pages, touches):
        self.name = name
        write_file(f"/run/{name}.touches", "\n".join(f"{how} {page}" for how, page in touches))
        machine.succeed(
            f"systemd-run --quiet --unit={name} -p StandardInput=file:/run/{name}.touches "
            f"-p StandardOutput=file:/run/{name}.report -p StandardError=journal "
            f"{SIM}/probes/uvm_client {PLACE} {pages}"
        )
        machine.wait_until_succeeds(f"grep -q ready /run/{name}.report")
        self.pid = int(machine.succeed(f"systemctl show -p MainPID --value {name}"))
        self.cgroup = int(machine.succeed(f"stat -c %i /sys/fs/cgroup/system.slice/{name}.service"))

    def ended(self):
        """Waits for it; keeps what it found in its page table and its count of faults."""
        machine.wait_until_fails(f"systemctl is-active {self.name}")
        ready, *lines, done = machine.succeed(f"cat /run/{self.name}.report").splitlines()
        assert (ready, done) == ("ready", "done"), (ready, lines, done)
        self.report = [json.loads(line) for line in lines]
        assert {line["faults"] for line in self.report} <= {1}, self.report

    def expected(self):
        """What is to be told of it: kind, address, bytes, writes; and when, at the earliest and latest."""
        for line in self.report:
            when = (line["begin_ns"], line["end_ns"])
            yield ("fault", line["address"], PAGE, line["writes"]), when
            if line["came"]:
                yield ("prefetch", line["first"], line["came"] * PAGE, False), when

    def was_told(self, events):
        """Nothing but what it did was told, in order, at its time, with its name on it."""
        mine = [event for event in events if event["pid"] == self.pid]
        expected = list(self.expected())
        told = [(e["event"], e["address"], e["bytes"], e["writes"]) for e in mine]
        assert told == [what for what, _ in expected], (self.name, told, expected)
        for event, (_, (begin, end)) in zip(mine, expected):
            assert begin < event["time_ns"] < end, (self.name, event, begin, end)
        assert {event["cgroup_id"] for event in mine} <= {self.cgroup}, (self.name, mine)
        return mine


def touch(*clients):
    """Has the programs touch their memory, all at once."""
    machine.succeed("kill -USR1 " + " ".join(str(client.pid) for client in clients))
    for client in clients:
        client.ended()


def played(trace, *clients):
    """All that was told while the programs touched their memory."""
    touch(*clients)
    # Events come in order: with the last program's, all that came before it have been told.
    last = Client(f"last-{trace}", 1, [("w", 0)])
    touch(last)
    machine.wait_until_succeeds(f"grep -q '\"pid\":{last.pid},' /run/{trace}.events")
    events = events_of(trace)
    assert {event["by"] for event in events} == {"cpu"}, events
    for client in [*clients, last]:
        client.was_told(events)
    strangers = {event["pid"] for event in events} - {client.pid for client in [*clients, last]}
    assert not strangers, (strangers, events)
    machine.fail(f"journalctl -u {trace} | grep -q lost")
    return events


def unload(trace):
    """Ends a tracer and takes the driver out."""
    machine.succeed(f"systemctl stop {trace}")
    # What the probes were made of is freed some moments after they are gone.
    machine.wait_until_succeeds("rmmod nvidia_uvm")


def total(events, kind):
    """How often something was told, and of how many pages."""
    sizes = [event["bytes"] for event in events if event["event"] == kind]
    return len(sizes), sum(sizes) // PAGE


machine.succeed(f"insmod {MODULES}/nvidia_rm_stub.ko")
load()
start_trace("trace")
# Three programs with memory at one address: one writes every third page of 8 MiB, one reads
# here and there and writes some of it, one leaves its memory alone.
choice = random.Random(1)
read = choice.sample(range(1024), 64)
writer = Client("writer", 2048, [("w", page) for page in range(0, 2048, 3)])
reader = Client("reader", 1024, [("r", page) for page in read] + [("w", page) for page in read[:16]])
idle = Client("idle", 512, [])
start_trace("only", "--pid", writer.pid)

with subtest("each fault and prefetch is told, as the kernel and the page tables say"):
    events = played("trace", writer, reader, idle)
    print(f"told {total(events, 'fault')} faults, {total(events, 'prefetch')} prefetches (pages)")
    assert {event["event"] for event in events} == {"fault", "prefetch"}, events
    assert not [event for event in events if event["pid"] == idle.pid], events

with subtest("24 faults, as the simulated GPU has, and all other pages beside them"):
    of_writer = writer.was_told(events)
    assert total(of_writer, "fault") == (24, 24), of_writer
    assert total(of_writer, "prefetch") == (24, 2048 - 24), of_writer

with subtest("with a process named, it alone is told of"):
    # Each tracer takes the time itself.
    timeless = [[{**event, "time_ns": 0} for event in told] for told in (events_of("only"), of_writer)]
    assert timeless[0] == timeless[1], timeless

with subtest("a driver that is watched stays loaded"):
    said = machine.fail("rmmod nvidia_uvm 2>&1")
    assert "in use" in said, said
    machine.succeed("systemctl stop only")
unload("trace")

with subtest("what the driver does not bring in is not told"):
    # The prefetcher makes plans from the first fault on, and follows them from the fourth.
    load("uvm_perf_prefetch_min_faults=4")
    start_trace("late")
    late = Client("late-client", 512, [("w", page) for page in range(0, 512, 3)])
    events = late.was_told(played("late", late))
    assert [event["event"] for event in events][:5] == ["fault"] * 4 + ["prefetch"], events
    unload("late")
    load("uvm_perf_prefetch_enable=0")
    start_trace("never")
    alone = Client("alone", 512, [("r", page) for page in range(0, 512, 3)])
    events = alone.was_told(played("never", alone))
    assert total(events, "fault") == (171, 171) and total(events, "prefetch") == (0, 0), events
    unload("never")

with subtest("without the driver there is nothing to watch"):
    said = machine.fail("sluice-policy trace --memory 2>&1")
    assert "no GPU memory manager is loaded" in said, said
