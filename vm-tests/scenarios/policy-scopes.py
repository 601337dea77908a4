# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# Several policies at once: by cgroup, by GPU, by hook; the most specific one serves.
load_modules()
machine.succeed("mkdir -p /sys/fs/cgroup/a/inner /sys/fs/cgroup/b")
PLACES = "--cgroup 0=/a/inner --cgroup 1=/b"
native = play("two-tenants", PLACES)
everywhere = f"{SIM}/misuse/aligned_group.bpf.o"


def faults(counters):
    """Faults of both tenants."""
    return counters["tenant.0.faults"], counters["tenant.1.faults"]


with subtest("a policy for a cgroup serves it and what is below it, and nobody else"):
    machine.succeed("sluice-policy load prefetch_always_max --cgroup /a --as max-a")
    counters = play("two-tenants", PLACES)
    assert counters["tenant.0.faults"] < native["tenant.0.faults"], counters
    calls = hooks("max-a")["page_prefetch"]["calls"]
    assert 0 < calls <= counters["tenant.0.faults"], (calls, counters)
    elsewhere = play("third-page", "--cgroup 0=/b")
    assert elsewhere["tenant.0.faults"] == 24, elsewhere
    assert hooks("max-a")["page_prefetch"]["calls"] == calls

with subtest("the most specific one serves: deeper cgroup, then cgroup, then GPU, then all"):
    machine.succeed(f"sluice-policy load {everywhere} --as group-all")
    assert play("third-page", "--cgroup 0=/b")["tenant.0.faults"] == 256
    assert play("third-page", "--cgroup 0=/a")["tenant.0.faults"] == 4
    machine.succeed("sluice-policy load prefetch_none --cgroup /a/inner --as none-inner")
    assert play("third-page", "--cgroup 0=/a/inner")["tenant.0.faults"] == 683
    assert play("third-page", "--cgroup 0=/a")["tenant.0.faults"] == 4
    machine.succeed("sluice-policy load prefetch_none --gpu 7 --as none-7")
    assert play("third-page", "--gpu 7 --cgroup 0=/b")["tenant.0.faults"] == 683
    assert play("third-page", "--gpu 7 --cgroup 0=/a")["tenant.0.faults"] == 4
    assert play("third-page", "--gpu 3 --cgroup 0=/b")["tenant.0.faults"] == 256

with subtest("two of one scope may not have the same hook, but may share the rest"):
    said = machine.fail("sluice-policy load prefetch_none --cgroup /a --as again 2>&1")
    assert "another policy has a hook of again" in said, said
    machine.fail("ls /sys/fs/bpf/sluice/again")
    machine.succeed("sluice-policy load eviction_lfu --cgroup /a --as lfu-a")
    play("two-tenants", PLACES)
    assert hooks("lfu-a")["evict_prepare"]["outcomes"]["applied"] > 0

with subtest("a bypassed policy leaves its scope to native service, not to others"):
    machine.succeed(
        f"sluice-policy replace max-a {SIM}/misuse/wrong_verdict.bpf.o --as wrong-a"
    )
    play("zipf", "--cgroup 0=/a")
    machine.wait_until_succeeds("sluice-policy show wrong-a --json | grep -q '\"bypass\":\"wrong'")
    assert play("third-page", "--cgroup 0=/a")["tenant.0.faults"] == 24

with subtest("a cgroup's policy can't name another's memory as the victim"):
    for name in ("wrong-a", "lfu-a", "group-all", "none-inner", "none-7"):
        machine.succeed(f"sluice-policy unload {name}")
    machine.succeed(f"sluice-policy load {SIM}/misuse/wrong_victim.bpf.o --cgroup /a")
    play("two-tenants", PLACES)
    outcomes = hooks("wrong_victim")["evict_prepare"]["outcomes"]
    assert outcomes["bad_identity"] > 0 and outcomes["bad_range"] == 0, outcomes

with subtest("a cgroup that is not there is an error"):
    said = machine.fail("sluice-policy load prefetch_none --cgroup /nowhere 2>&1")
    assert "no cgroup /nowhere" in said, said
