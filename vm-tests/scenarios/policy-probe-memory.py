# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# The probe tells of each fault, prefetch and eviction, and what it told can be played again.
with subtest("without a manager it says what to load"):
    said = machine.fail("sluice-policy trace --memory 2>&1")
    assert "no GPU memory manager is loaded" in said and "next: modprobe" in said, said

load_modules()
# A GPU of two chunks; a page of each of three blocks, the second written to, the first block again.
machine.succeed(
    "printf '%s\\n' 0,gpu,2 0,process,4711,normal 0,alloc,4711,0x40000000,6291456 "
    "1000,read,4711,0x40000000,1 1000000,write,4711,0x40200000,1 2000000,read,4711,0x40400000,1 "
    "3000000,read,4711,0x40001000,1 4000000,tick >/run/text",
    "sluice-sim import /run/text >/run/trace",
    "systemd-run --quiet --unit=trace -p StandardOutput=file:/run/events "
    "-p StandardError=journal sluice-policy trace --memory --json --count 10",
)
machine.wait_until_succeeds("journalctl -u trace | grep -q 'watching the simulated GPU'")
played = json.loads(machine.succeed("sluice-sim replay --json /run/trace"))
machine.wait_until_fails("systemctl is-active trace")
events = [json.loads(line) for line in machine.succeed("cat /run/events").splitlines()]

with subtest("each event is told with its pages, in order"):
    # A page counts as the 16 around it; with a free chunk gone, the one used least lately goes.
    PAGE, BLOCK, BASE = 4096, 2 << 20, 0x40000000
    expected = [
        ("fault", BASE, PAGE),
        ("prefetch", BASE + PAGE, 15 * PAGE),
        ("fault", BASE + BLOCK, PAGE),
        ("prefetch", BASE + BLOCK + PAGE, 15 * PAGE),
        ("evict", BASE, 16 * PAGE),
        ("fault", BASE + 2 * BLOCK, PAGE),
        ("prefetch", BASE + 2 * BLOCK + PAGE, 15 * PAGE),
        ("evict", BASE + BLOCK, 16 * PAGE),
        ("fault", BASE + PAGE, PAGE),
        ("prefetch", BASE, 15 * PAGE),
    ]
    found = [(event["event"], event["address"], event["bytes"]) for event in events]
    assert found == expected, found

with subtest("each says whose, when and how"):
    assert {event["pid"] for event in events} == {4711}, events
    assert {event["by"] for event in events} == {"gpu"}, events
    assert len({event["cgroup_id"] for event in events}) == 1 and events[0]["cgroup_id"], events
    assert [event["writes"] for event in events].count(True) == 1 and events[2]["writes"], events
    times = [event["time_ns"] for event in events]
    assert times == sorted(times) and times[0] == 1000, times

with subtest("events that find no room are counted"):
    machine.succeed(
        "systemd-run --quiet --unit=halted -p StandardOutput=file:/run/some "
        "-p StandardError=journal sluice-policy trace --memory --json"
    )
    machine.wait_until_succeeds("journalctl -u halted | grep -q 'watching the simulated GPU'")
    machine.succeed("systemctl kill -s STOP halted")
    play("random")
    machine.fail("journalctl -u halted | grep -q lost")
    machine.succeed("systemctl kill -s CONT halted")
    machine.wait_until_succeeds("journalctl -u halted | grep -q ' [1-9][0-9]* events were lost'")
    machine.succeed("systemctl stop halted")

with subtest("what was told can be imported, and makes the same faults"):
    machine.succeed("sluice-sim import --chunks 2 /run/events >/run/again")
    again = json.loads(machine.succeed("sluice-sim replay --json /run/again"))
    for name in ("tenant.0.faults", "tenant.0.pages_in", "evictions"):
        assert again[name] == played[name] > 0, (name, again, played)
