# SPDX-License-Identifier: MIT OR Apache-2.0
# What keeps the store from waiting on itself is in force on every thread of it.
configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
size = "64M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
pid = machine.succeed("pgrep -x sluice-store").strip()

with subtest("every thread, the tiers' included, is an I/O flusher"):
    threads = {}
    for line in machine.succeed(f"cat /proc/{pid}/task/*/stat").splitlines():
        name, _, rest = line.partition("(")[2].rpartition(")")
        threads.setdefault(name, []).append(int(rest.split()[6]))
    # PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, include/linux/sched.h.
    bits = 0x00080000 | 0x00100000
    assert all(flags & bits == bits for found in threads.values() for flags in found), threads
    names = " ".join(threads)
    assert all(part in names for part in ("sluice-store", "sluice-io-0", "sluice-spill", "sluice-keeper")), names

with subtest("threads that answer requests are real-time, the others are not"):
    machine.succeed(
        f"for task in /proc/{pid}/task/*; do name=$(cat $task/comm); class=$(chrt -p ${{task##*/}}); "
        "case $name in sluice-io-*|sluice-spill*) echo $class | grep -q SCHED_FIFO ;; "
        "*) echo $class | grep -q SCHED_OTHER ;; esac || { echo $name $class >&2; exit 1; }; done"
    )

with subtest("all memory is locked, the process is the last to be killed"):
    fields = dict(
        line.split(":") for line in machine.succeed(f"cat /proc/{pid}/status").splitlines()
    )
    assert fields["VmSwap"].split()[0] == "0", fields
    assert int(fields["VmLck"].split()[0]) >= int(fields["RssAnon"].split()[0]), fields
    machine.succeed(f"grep -qx -- -1000 /proc/{pid}/oom_score_adj")

with subtest("with no memory left in its own control group the store is not the one to go"):
    group = f"/sys/fs/cgroup/system.slice/{STORE}"
    machine.succeed(f"echo $(($(cat {group}/memory.current) + (16 << 20))) >{group}/memory.max")
    # Smaller than the store, and a victim like any other.
    said, _ = machine.execute(
        f"echo $BASHPID >{group}/cgroup.procs; exec pressure --bytes 48M --passes 1"
    )
    assert said == 137, said
    machine.succeed(
        f"echo max >{group}/memory.max; grep -qx 'oom_kill 1' {group}/memory.events",
        "sluice status",
    )
    assert machine.succeed("pgrep -x sluice-store").strip() == pid

with subtest("the kernel's timers are those of the design"):
    machine.succeed("[ $(cat /sys/block/nbd0/queue/io_timeout) -le 110 ]")

with subtest("with nothing to do the thread that serves the kernel sleeps without waking"):
    machine.succeed("udevadm settle")
    wakes = (
        f"for task in /proc/{pid}/task/*; do grep -q sluice-io $task/comm || continue; "
        "awk '/^voluntary_ctxt_switches/ { print $2 }' $task/status; done"
    )
    before = machine.succeed(wakes)
    machine.sleep(15)
    assert machine.succeed(wakes) == before, "it woke although nobody asked anything"
