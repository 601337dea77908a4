# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=9000
# As yield-under-pressure, 200 rounds: no hang, no wrong page, no memory that grows.
ROUNDS = 200
configure("""
[swap]
size = "256M"
[tier]
kind = "ram"
size = "128M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
leave_memory(160)


def resident():
    return int(machine.succeed("awk '/VmRSS/ { print $2 }' /proc/$(pgrep -x sluice-store)/status"))


totals = {"slabs_released": 0, "extents_moved": 0, "moved_bytes": 0}
turns, longest, before = 0, 0, resident()
while turns < ROUNDS:
    start_pressure("--bytes 288M --seconds 120 --random --tasks 2 --write 30")
    while machine.execute("test -s /run/load.json")[0]:
        for words in ["vram drain --within 300s", "vram target 64M --within 300s", "vram resume"]:
            outcome = order(words)
            assert outcome["outcome"] == "done", (turns, words, outcome)
            longest = max(longest, outcome["elapsed_ms"])
            for name in totals:
                totals[name] += outcome[name]
        turns += 1
    report = pressure_ended()
    print(f"{turns} rounds: {totals}, the longest order took {longest} ms; {report}")
    assert not any(status()["errors"].values()), status()
print(f"resident before and after: {before} and {resident()} KiB")
assert resident() < before + 140 * 1024, "grew by more than the fast tier's slabs"
machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages", f"systemctl stop {STORE}")
nothing_is_left_behind()
