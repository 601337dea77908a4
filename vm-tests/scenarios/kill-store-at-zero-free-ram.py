# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=2400
# The store is killed when no memory is free and PID 1's own is swapped to it: the next one
# starts out of what the holder kept for it, without a page of swap.
configure("""
[swap]
size = "256M"
[tier]
kind = "ram"
size = "192M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="96M", resident="32M")


def swapped(pid):
    return int(machine.succeed(f"awk '/VmSwap/ {{ print $2 }}' /proc/{pid}/status"))


def take_all_memory():
    """PID 1 and every service go to swap, and what is free then is taken for good."""
    machine.succeed(
        "cd /sys/fs/cgroup; for group in init.scope system.slice/*.service; do"
        "  case $group in *sluice-s*) continue ;; esac;"
        "  echo 256M >$group/memory.reclaim || true; done 2>/dev/null",
        "echo 480 >/proc/sys/vm/nr_hugepages",
    )


with subtest("the store is killed"):
    take_all_memory()
    print("free, available:", machine.succeed("awk '/MemFree|MemAvailable/ { print $2 }' /proc/meminfo").split())
    assert swapped(1) > 0, "PID 1 was not swapped out"
    # What the shell needs for all this comes back from swap too.
    kill_store_and_wait()

with subtest("nothing was lost, nothing is wrong"):
    machine.succeed("echo 0 >/proc/sys/vm/nr_hugepages")
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
