# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# A policy that answers wrongly or too slowly changes nothing but its counters, and is bypassed.
load_modules()


def attach(name, *options):
    """Attaches one of the wrong policies."""
    words = " ".join(options)
    machine.succeed(f"sluice-policy load {SIM}/misuse/{name}.bpf.o {words}")


def bypassed(name):
    """Waits until a policy is bypassed; gives what the module says of it."""
    machine.wait_until_succeeds(
        f"sluice-policy show {name} --json | grep -q '\"bypass\":\"[sw]'", timeout=30
    )
    return policies()[name]


native = play("third-page")
native_zipf = play("zipf")

for name, outcome in {
    "wrong_region": "bad_range",
    "wrong_conflict": "conflict",
    "wrong_verdict": "bad_action",
}.items():
    with subtest(f"{name}: each answer is void, service is native"):
        attach(name)
        assert play("third-page") == native
        counted = hooks(name)["page_prefetch"]
        assert counted["outcomes"][outcome] == counted["calls"] == 24, counted
        assert policies()[name]["bypass"] == "none"
    with subtest(f"{name}: after 64 of them it is not asked any more"):
        assert play("zipf") == native_zipf
        found = bypassed(name)
        assert found["bypass"] == "wrong", found
        assert found["hooks"][0]["calls"] == 64, found
        machine.succeed(f"sluice-policy unload {name}")

with subtest("what was just filled can't be made to go next"):
    attach("wrong_head")
    assert play("zipf") == native_zipf
    counted = hooks("wrong_head")["block_activate"]
    assert counted["outcomes"]["bad_action"] == counted["calls"] > 0, counted
    machine.succeed("sluice-policy unload wrong_head")

with subtest("a slow policy is bypassed, and says where it was slow"):
    attach("wrong_slow", "--budget-us 20")
    assert play("zipf") == native_zipf
    found = bypassed("wrong_slow")
    assert found["bypass"] == "slow" and found["bypass_hook"] == "page_prefetch", found
    assert found["bypass_ns"] > 20_000, found
    assert found["hooks"][0]["calls"] == 16, found
    machine.wait_for_console_text("policy wrong_slow is bypassed: too many calls over")

with subtest("it stays bypassed until another load takes its place"):
    assert play("third-page") == native
    assert policies()["wrong_slow"]["hooks"][0]["calls"] == 16
    machine.succeed("sluice-policy replace wrong_slow prefetch_always_max")
    assert play("third-page")["tenant.0.faults"] == 4
    assert policies()["prefetch_always_max"]["bypass"] == "none"
    machine.succeed("sluice-policy unload prefetch_always_max")

# Two chunks, and a hundred pages of each block one by one: a hundred faults to an eviction.
machine.succeed(
    "awk 'BEGIN { print \"0,gpu,2\"; print \"0,process,1,normal\"; "
    "print \"0,alloc,1,0,1073741824\"; "
    "for (block = 0; block < 24; block++) for (page = 0; page < 100; page++) "
    "printf \"%d,read,1,%d,4096\\n\", (block * 100 + page) * 50000, "
    "(block * 512 + page) * 4096 }' >/run/rare.csv",
    "sluice-sim import /run/rare.csv >/run/rare",
)

with subtest("many cheap calls of one hook do not hide the slow ones of another"):
    attach("wrong_slow_eviction", "--budget-us 40", "--max-faults 100000")
    machine.succeed("sluice-sim replay /run/rare")
    found = bypassed("wrong_slow_eviction")
    assert found["bypass"] == "slow" and found["bypass_hook"] == "evict_prepare", found
    counted = hooks("wrong_slow_eviction")
    assert counted["evict_prepare"]["calls"] == 16, counted
    # Else they would all be in one window, of whatever hook.
    assert counted["page_prefetch"]["calls"] > 1024, counted
    machine.succeed("sluice-policy unload wrong_slow_eviction")

# Eight readers side by side, each of every third page, always at the same pace. The first eight
# records say what GPU it is on, each further eight are one step.
machine.succeed(
    "awk 'BEGIN { print \"0,gpu,512\"; print \"0,process,1,normal\"; "
    "print \"0,alloc,1,0,1073741824\"; for (i = 0; i < 5; i++) print \"0,tick\"; "
    "for (step = 0; step < 2200; step++) for (i = 0; i < 8; i++) "
    "printf \"%d,read,1,%d,4096\\n\", step * 50000, (i * 32768 + step * 3) * 4096 }' >/run/steady.csv",
    "sluice-sim import /run/steady.csv >/run/steady",
)


def loaded_halfway(name):
    """Plays the readers, loads a policy at half time, gives what the module says of it."""
    machine.succeed(
        "exec 3<>/dev/sluice_sim; dd status=none if=/run/steady bs=256 count=1601 >&3; "
        f"sluice-policy load {name}; dd status=none if=/run/steady bs=256 skip=1601 >&3; "
        "cat <&3 >/run/report"
    )
    return policies()[name]


with subtest("a policy under which faults soar is bypassed though each answer is in order"):
    found = loaded_halfway("prefetch_none")
    assert found["bypass"] == "faults", found
    assert found["bypass_faults"] > 4 * found["bypass_before"] > 0, found
    assert found["hooks"][0]["outcomes"]["applied"] == found["hooks"][0]["calls"] > 0, found
    said = machine.succeed("sluice-policy show prefetch_none")
    assert f"{found['bypass_faults']} in 10 ms" in said, said
    machine.wait_for_console_text("policy prefetch_none is bypassed: too many faults")
    machine.succeed("sluice-policy unload prefetch_none")

with subtest("one under which they fall is not"):
    found = loaded_halfway("prefetch_adaptive_sequential")
    assert found["bypass"] == "none" and found["hooks"][0]["calls"] > 0, found
