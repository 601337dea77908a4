# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# A policy is replaced under load, and no hook call finds none.
SWAPS = 12
load_modules()
native = play("zipf")
machine.succeed("sluice-policy load prefetch_always_max --as a")
alone = play("zipf")
assert alone["tenant.0.faults"] != native["tenant.0.faults"], "the effect would not be seen"
calls = hooks("a")["page_prefetch"]["calls"]

with subtest("swapped all the time, each run ends as with the one policy"):
    # The same policy in two loads: a single call that went to neither would change a fault.
    machine.succeed(
        "systemd-run --quiet --unit=load bash -c '"
        "n=0; while [ ! -e /run/enough ]; do sluice-sim run zipf --json >>/run/results; "
        "n=$((n + 1)); done; echo $n >/run/runs'"
    )
    names = ["a", "b"]
    for turn in range(SWAPS):
        old, new = names[turn % 2], names[(turn + 1) % 2]
        machine.succeed(f"sluice-policy replace {old} prefetch_always_max --as {new}")
    machine.succeed("touch /run/enough")
    machine.wait_for_file("/run/runs")
    runs = int(machine.succeed("cat /run/runs"))
    results = [json.loads(line) for line in machine.succeed("cat /run/results").splitlines()]
    assert runs == len(results) >= 2, runs
    for result in results:
        assert result == alone, result

with subtest("every call had an answer, and every answer was applied"):
    found = policies()["a"]
    assert found["replaced"] == SWAPS, found
    counted = hooks("a")["page_prefetch"]
    assert counted["calls"] == (runs + 1) * calls, (counted, runs, calls)
    assert counted["outcomes"]["applied"] == counted["calls"], counted

with subtest("a replacement that does not load leaves what was there"):
    for name in ("refused_prints", "refused_other_version"):
        machine.succeed(f"test -e {SIM}/misuse/{name}.bpf.o")
        machine.fail(f"sluice-policy replace a {SIM}/misuse/{name}.bpf.o")
    machine.fail("sluice-policy replace a timeslice_by_class")
    assert play("zipf") == alone
    assert policies()["a"]["replaced"] == SWAPS

with subtest("tunables are changed by a swap"):
    machine.succeed("sluice-policy replace a prefetch_adaptive_sequential --set least=512")
    said = machine.fail("sluice-policy replace prefetch_adaptive_sequential "
                        "prefetch_adaptive_sequential --set lest=1 2>&1")
    assert "has no tunable lest; it has least, most" in said, said
