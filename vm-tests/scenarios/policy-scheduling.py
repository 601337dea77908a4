# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# Scheduling policies: turns by class, admission, preemption outside the hook.
load_modules()
native = play("tasks")

with subtest("by class the guaranteed tenant waits less, and all work is done"):
    machine.succeed("sluice-policy load timeslice_by_class")
    counters = play("tasks")
    assert counters["tenant.0.latency_p99_ns"] * 2 < native["tenant.0.latency_p99_ns"], (
        native, counters)
    for tenant in range(5):
        assert counters[f"tenant.{tenant}.jobs"] == native[f"tenant.{tenant}.jobs"] > 0
    asked = hooks("timeslice_by_class")
    assert asked["task_init"]["outcomes"]["applied"] == 5, asked
    # The clients' own wish is answered with what they have: nothing to change.
    assert asked["timeslice_control"]["outcomes"]["repeat"] == 5, asked
    machine.succeed("sluice-policy unload timeslice_by_class")

with subtest("admission turns the third preemptible task away, until one goes"):
    machine.succeed("sluice-policy load bind_admission")
    for _ in range(2):
        counters = play("tasks")
        served = [counters[f"tenant.{tenant}.jobs"] > 0 for tenant in range(5)]
        assert served == [True, True, True, False, False], counters
        assert counters["tenant.3.refused"] > 0, counters
    outcomes = hooks("bind_admission")["bind"]["outcomes"]
    assert outcomes["applied"] == 4, outcomes
    machine.succeed("sluice-policy unload bind_admission")

with subtest("a preemption is done after the hook, at the bind and at the wish for a timeslice"):
    machine.succeed("sluice-policy load preempt_guard")
    counters = play("tasks")
    found = policies()["preempt_guard"]["preemptions"]
    assert found == {"done": 2, "stale": 0, "refused": 0}, found
    assert counters["preemptions"] == 2, counters
    machine.succeed("sluice-policy unload preempt_guard")

with subtest("but not of another scope's task, nor of one that is not there"):
    machine.succeed("mkdir -p /sys/fs/cgroup/a /sys/fs/cgroup/b")
    places = [f"--cgroup {tenant}=/{'a' if tenant < 2 else 'b'}" for tenant in range(5)]
    load = f"sluice-policy load {SIM}/misuse/wrong_preempt.bpf.o --cgroup /a"
    for tsg, expected in {1: "done", 2: "refused", 99: "stale"}.items():
        machine.succeed(f"{load} --set tsg={tsg}")
        play("tasks", *places)
        found = policies()["wrong_preempt"]["preemptions"]
        assert found == {**dict.fromkeys(found, 0), expected: 1}, (tsg, found)
        machine.succeed("sluice-policy unload wrong_preempt")
