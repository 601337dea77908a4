# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# The probe tells who asks the CUDA library for memory, and gets it or not; no module is needed.
CLIENT = f"{SIM}/probes/client"
# Three allocations, a refused one, two thousand launches, one freed.
machine.succeed(
    "systemd-run --quiet --unit=trace -p StandardOutput=file:/run/events -p StandardError=journal "
    f"sluice-policy trace --json --count 7 --library {CLIENT}"
)
machine.wait_until_succeeds("journalctl -u trace | grep -q watching")
a, b, c, refused = machine.succeed(f"taskset -c 0 {CLIENT}").split()
machine.wait_until_fails("systemctl is-active trace")
events = [json.loads(line) for line in machine.succeed("cat /run/events").splitlines()]

with subtest("each allocation is told with its size, place and result"):
    allocated = [event for event in events if event["call"] == "alloc"]
    assert [event["bytes"] for event in allocated] == [1 << 20, 2 << 20, 3 << 20, 1 << 40]
    assert [event["result"] for event in allocated] == [0, 0, 0, int(refused)]
    places = [event["address"] for event in allocated]
    assert places == [int(a, 16), int(b, 16), int(c, 16), 0], (places, a, b, c)

with subtest("so are launches, by the thousand, and what is given back"):
    # They are counted by processor, and it ran on one.
    launched = [event["bytes"] for event in events if event["call"] == "launch"]
    assert launched == [1000, 1000], events
    assert [event["address"] for event in events if event["call"] == "free"] == [int(c, 16)]

with subtest("each says who"):
    assert {event["comm"] for event in events} == {"client"}, events
    assert len({event["pid"] for event in events}) == 1, events
    assert len({event["cgroup_id"] for event in events}) == 1, events

with subtest("without a library it says where it looked"):
    said = machine.fail("sluice-policy trace 2>&1")
    assert "no libcuda.so.1" in said and "next: " in said, said
    said = machine.fail("sluice-policy trace --library /bin/true 2>&1")
    assert "none of the functions is found in /bin/true" in said, said

with subtest("the check for machines with a GPU passes on the fake driver"):
    fake_cards()
    said = machine.succeed(
        f"SLUICE_FAKE_CUDA={FAKE_CONTROL} "
        f"{SIM}/probes/on-a-gpu.sh /usr/lib/sluice-fake/libcuda.so.1 memory-only"
    )
    assert "7 passed, 0 failed" in said, said
