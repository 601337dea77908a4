# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies timeout=900
# NVIDIA's nvidia-uvm with the semantic patches asks policies; its core is a stub without a GPU.
# Needs `make -C kernel-module driver`, some minutes the first time.
MODULES = f"{SIM}/modules"
PLACE, PAGES = 0x200000000000, 2048
machine.succeed(
    f"test -e {MODULES}/patched/nvidia-uvm-testing.ko || "
    "{ echo 'build it first: make -C kernel-module driver' >&2; false; }"
)
# Every third page of 8 MiB. What comes of it natively and in groups of eight pages is known.
write_file("/run/touches", "\n".join(f"w {page}" for page in range(0, PAGES, 3)))


def load(name="nvidia-uvm"):
    """Loads the driver; gives what it says of policies."""
    machine.succeed(
        "dmesg -C",
        f"insmod {MODULES}/patched/{name}.ko",
        "rm -f /dev/nvidia-uvm",
        "mknod /dev/nvidia-uvm c $(awk '$2 == \"nvidia-uvm\" { print $1 }' /proc/devices) 0",
    )
    return machine.succeed("dmesg")


def unload():
    """Takes the driver out: once the last program is gone nothing holds it."""
    machine.wait_until_succeeds("rmmod nvidia_uvm")


def faults(cgroup=""):
    """Touches the pages from a program in a cgroup; gives its faults and what came beside them."""
    machine.succeed("rm -f /run/report")
    machine.succeed(
        f"""sh -c 'test -z "{cgroup}" || echo $$ >/sys/fs/cgroup{cgroup}/cgroup.procs
        exec {SIM}/probes/uvm_client {PLACE} {PAGES} </run/touches >/run/report' >/dev/null 2>&1 &
        echo $! >/run/client"""
    )
    machine.wait_until_succeeds("grep -q ready /run/report")
    machine.succeed("kill -USR1 $(cat /run/client)")
    machine.wait_until_succeeds("grep -q done /run/report")
    lines = machine.succeed("cat /run/report").splitlines()[1:-1]
    beside = sum(json.loads(line)["came"] for line in lines)
    return len(lines), beside


POOL = "/sys/module/nvidia_uvm/parameters/sluice_pool"
# On the lists after that, the first to go first: unused 1, used 2 4 5 3 0.
ORDERS = ["new 6", *["touch 1"] * 3, "touch 3", "touch 0", "idle 1", *["evict"] * 4]


def victims():
    """Gives what the driver evicts of six chunks that were filled, touched and left alone."""
    machine.succeed(*[f"echo {order} >{POOL}" for order in ORDERS])
    evicted = machine.succeed(f"cat {POOL}").split()
    machine.succeed(f"echo end >{POOL}")
    return [int(chunk) for chunk in evicted]


def evicts(policy, expected, **calls):
    """Expects these victims with a policy, and that each hook was asked and obeyed so often."""
    machine.succeed(f"sluice-policy load {policy}")
    assert victims() == expected
    counted = hooks(policy)
    for hook, (asked, applied) in calls.items():
        assert counted[hook]["calls"] == asked, (hook, counted[hook])
        assert counted[hook]["outcomes"]["applied"] == applied, (hook, counted[hook])
    machine.succeed(f"sluice-policy unload {policy}")


NATIVE, GROUPS = (24, PAGES - 24), (256, PAGES - 256)
machine.succeed("mkdir -p /sys/fs/cgroup/a /sys/fs/cgroup/b", f"insmod {MODULES}/patched/nvidia_rm_stub.ko")

with subtest("without sluice_gpu it is the stock driver, and holds nothing"):
    said = load()
    assert "sluice_gpu is not loaded: no policies" in said, said
    assert faults() == NATIVE
    unload()

machine.succeed(f"insmod {MODULES}/sluice_gpu.ko")
with subtest("with sluice_gpu and no policy it serves as before"):
    said = load()
    assert "policies of sluice_gpu are asked" in said, said
    assert faults() == NATIVE

with subtest("sluice_gpu stays as long as the driver needs it"):
    said = machine.fail("rmmod sluice_gpu 2>&1")
    assert "in use" in said, said

with subtest("a policy decides what comes in: 256 faults in place of 24, each asked once"):
    machine.succeed(f"sluice-policy load {SIM}/misuse/aligned_group.bpf.o")
    assert faults() == GROUPS
    counted = hooks("aligned_group")["page_prefetch"]
    assert counted["calls"] == 256, counted
    assert counted["outcomes"]["applied"] == 256, counted
    machine.succeed("sluice-policy unload aligned_group")
    assert faults() == NATIVE

with subtest("a policy of a cgroup is asked for programs that began there"):
    machine.succeed(f"sluice-policy load {SIM}/misuse/aligned_group.bpf.o --cgroup /a")
    assert faults("/b") == NATIVE
    assert faults("/a") == GROUPS
    machine.succeed("sluice-policy unload aligned_group")

with subtest("what a policy may not ask for is not done"):
    machine.succeed(f"sluice-policy load {SIM}/misuse/wrong_region.bpf.o")
    assert faults() == NATIVE
    counted = hooks("wrong_region")["page_prefetch"]
    assert counted["calls"] == 24, counted
    assert counted["outcomes"]["bad_range"] == 24, counted
    machine.succeed("sluice-policy unload wrong_region")

with subtest("nothing comes in beside the page where a policy wants that"):
    machine.succeed("sluice-policy load prefetch_none")
    assert faults() == (683, 0)
    machine.succeed("sluice-policy unload prefetch_none")

unload()
# The same driver with a way to its lists of chunks where there is no GPU.
load("nvidia-uvm-testing")
with subtest("eviction without a policy is the driver's own"):
    assert victims() == [1, 2, 4, 5]

with subtest("a chunk that a policy leaves where it is goes as it came"):
    evicts("eviction_fifo", [1, 0, 2, 3], block_access=(5, 5))

with subtest("a chunk that a policy moves to the head goes first"):
    evicts("eviction_mru", [1, 0, 3, 2], block_access=(5, 3))

with subtest("a policy chooses whom to evict"):
    evicts(
        "eviction_lfu",
        [2, 4, 5, 3],
        block_activate=(6, 0),
        block_access=(5, 0),
        evict_prepare=(4, 4),
    )

with subtest("and without one it is the driver's own again"):
    assert victims() == [1, 2, 4, 5]

with subtest("the driver can be unloaded, and sluice_gpu then"):
    unload()
    machine.wait_until_succeeds("rmmod sluice_gpu")
    machine.fail("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace'")
