# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# A policy that asks for nothing changes nothing; what being asked costs is printed, not judged.
load_modules()
PLAY = "bash -c 'TIMEFORMAT=%R; time sluice-sim run random --json >/run/out' 2>&1"


def timed():
    """Plays a workload; gives the seconds that it took and its counters."""
    seconds = float(machine.succeed(PLAY))
    return seconds, json.loads(machine.succeed("cat /run/out"))


before, native = timed()
machine.succeed(f"sluice-policy load {SIM}/misuse/does_nothing.bpf.o")
with_hooks, asked = timed()
assert asked == native
calls = 0
for hook in policies()["does_nothing"]["hooks"]:
    calls += hook["calls"]
    assert hook["outcomes"]["nothing"] == hook["calls"] > 0, hook
    print(f"{hook['hook']:16} {hook['calls']:8} calls, mean {hook['time_ns'] // hook['calls']} ns")
machine.succeed("sluice-policy unload does_nothing")
after, again = timed()
assert again == native
plain = min(before, after)
print(f"{calls} calls: {with_hooks:.2f} s against {plain:.2f} s without, "
      f"ratio {with_hooks / plain:.2f}")
