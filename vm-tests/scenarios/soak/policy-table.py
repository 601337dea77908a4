# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies timeout=3000
# Plays every workload under every policy and prints the tables of docs/policies.md.
WORKLOADS = ["sequential", "strided", "hand-back", "random", "zipf", "moe", "gcn", "ivf",
             "two-tenants", "four-tenants"]
SCHEDULING = {"timeslice_by_class", "bind_admission", "preempt_guard"}
load_modules()
listed = [name.removesuffix(".bpf.o") for name in machine.succeed(f"ls {SIM}/policies").split()]


def play_all(workloads):
    """Plays workloads one after another; gives the counters of each."""
    command = "; ".join(f"sluice-sim run {name} --json" for name in workloads)
    lines = machine.succeed(command).splitlines()
    return dict(zip(workloads, map(json.loads, lines), strict=True))


def row(*cells):
    """A line of a table."""
    print("| " + " | ".join(map(str, cells)) + " |")


def percent(value, base):
    """Part of the native value."""
    return f"{100 * value / base:.0f}" if base else "-"


native = play_all(WORKLOADS)
row("policy", *WORKLOADS)
row("---", *["--:"] * len(WORKLOADS))
row("native, ms", *(native[name]["clock_ns"] // 1_000_000 for name in WORKLOADS))
row("native, faults", *(sum(value for key, value in native[name].items()
                            if key.endswith(".faults")) for name in WORKLOADS))
guaranteed = {}
costs = {}
for policy in listed:
    if policy in SCHEDULING:
        continue
    costs[policy] = machine.succeed(f"sluice-policy check {policy}").splitlines()
    machine.succeed(f"sluice-policy load {policy}")
    found = play_all(WORKLOADS)
    told = policies()[policy]
    assert told["bypass"] == "none", told
    for hook in told["hooks"]:
        assert sum(hook["outcomes"].values()) == hook["calls"], hook
    machine.succeed(f"sluice-policy unload {policy}")
    guaranteed[policy] = found
    row(policy, *(percent(found[name]["clock_ns"], native[name]["clock_ns"])
                  for name in WORKLOADS))

print()
tenants = [("two-tenants", 0), ("two-tenants", 1), ("four-tenants", 0), ("four-tenants", 2),
           ("four-tenants", 1), ("four-tenants", 3)]
row("policy", *(f"{name} {'guaranteed' if tenant % 2 == 0 else 'preemptible'} {tenant}"
                for name, tenant in tenants))
row("---", *["--:"] * len(tenants))
row("native, ms", *(native[name][f"tenant.{tenant}.stall_ns"] // 1_000_000
                    for name, tenant in tenants))
for policy, found in guaranteed.items():
    row(policy, *(percent(found[name][f"tenant.{tenant}.stall_ns"],
                          native[name][f"tenant.{tenant}.stall_ns"])
                  for name, tenant in tenants))

print()
row("policy", "guaranteed p50, us", "guaranteed p99, us", "preemptible p99, ms",
    "preemptible jobs", "refused")
row("---", *["--:"] * 5)
for policy in ["native", *sorted(SCHEDULING)]:
    if policy != "native":
        costs[policy] = machine.succeed(f"sluice-policy check {policy}").splitlines()
        machine.succeed(f"sluice-policy load {policy}")
    found = play_all(["tasks"])["tasks"]
    if policy != "native":
        machine.succeed(f"sluice-policy unload {policy}")
    row(policy, found["tenant.0.latency_p50_ns"] // 1000, found["tenant.0.latency_p99_ns"] // 1000,
        max(found[f"tenant.{tenant}.latency_p99_ns"] for tenant in range(1, 5)) // 1_000_000,
        sum(found[f"tenant.{tenant}.jobs"] for tenant in range(1, 5)),
        sum(found[f"tenant.{tenant}.refused"] for tenant in range(1, 5)))

print()
row("policy", "hook", "instructions verified", "bytes of code")
row("---", "---", "--:", "--:")
for policy, lines in costs.items():
    for line in lines:
        words = line.split()
        row(policy, words[1].rstrip(":"), words[2], words[5])
