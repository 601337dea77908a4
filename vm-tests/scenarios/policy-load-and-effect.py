# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# A policy is loaded, its effect is seen in the counters, and without it service is native.
load_modules()
machine.succeed("test -e /sys/kernel/btf/sluice_gpu")

with subtest("native: what the real driver was seen to do"):
    # Every third page of 8 MiB: 24 faults, of NVIDIA's UVM and here.
    native = play("third-page")
    assert native["tenant.0.faults"] == 24, native

with subtest("a prefetch policy brings in each block at its first fault"):
    machine.succeed("sluice-policy load prefetch_always_max")
    with_policy = play("third-page")
    assert with_policy["tenant.0.faults"] == 4, with_policy
    counted = hooks("prefetch_always_max")["page_prefetch"]
    assert counted["calls"] == 4, counted
    assert counted["outcomes"]["applied"] == 4, counted

with subtest("without it service is native again"):
    machine.succeed("sluice-policy unload prefetch_always_max")
    assert play("third-page") == native

# Two chunks. Block 0 comes after block 1, is taken back whole and used again, before block 2 comes.
machine.succeed(
    "printf '%s\\n' 0,gpu,2 0,process,1,normal 0,alloc,1,0,6291456 "
    "0,read,1,2097152,4096 100000,read,1,0,4096 200000,take,1,0,2097152 "
    "300000,read,1,0,4096 400000,read,1,4194304,4096 500000,read,1,0,4096 >/run/back.csv",
    "sluice-sim import /run/back.csv >/run/back",
)

for policy in "eviction_fifo", "eviction_fifo_chance":
    with subtest(f"{policy}: what was unused and is used again does not go first"):
        machine.succeed(f"sluice-policy load {policy}")
        played = json.loads(machine.succeed("sluice-sim replay --json /run/back"))
        # Block 1 went for block 2: the last access is a hit.
        assert played["tenant.0.faults"] == 4 and played["evictions"] == 1, played
        assert hooks(policy)["block_access"]["outcomes"]["nothing"] == 1, hooks(policy)
        machine.succeed(f"sluice-policy unload {policy}")

with subtest("verifying any policy costs no more than it did"):
    said = machine.succeed(
        f"sluice-policy check {SIM}/policies/*.bpf.o --baseline {SIM}/verifier-cost.txt"
    )
    assert said.count("instructions verified") > 30, said
    machine.succeed(f"sed 's/ [0-9]*$/ 1/' {SIM}/verifier-cost.txt >/run/cheaper")
    said = machine.fail("sluice-policy check eviction_lfu --baseline /run/cheaper 2>&1")
    assert "the baseline is 1, the most 65" in said and "next: make the programs" in said, said
