# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# What is attached outlives its loader, unless it was told not to; the module stays while it is.
load_modules()
native = play("third-page")

machine.succeed("systemd-run --quiet --unit=watch sluice-policy watch")
machine.wait_until_succeeds("journalctl -u watch | grep -q 'watching the policies'")

with subtest("only administrators are told"):
    said = machine.fail("timeout 20 runuser -u nobody -- sluice-policy watch 2>&1")
    assert "cannot join the group events" in said, said

with subtest("a folder for pins that others may write to is not used"):
    for options in "-o nobody -m 755", "-m 775":
        machine.succeed(f"install -d {options} /sys/fs/bpf/sluice")
        said = machine.fail("sluice-policy load prefetch_always_max 2>&1")
        assert "others than root could put pins there" in said, said
        machine.succeed("rmdir /sys/fs/bpf/sluice")
    machine.succeed("mkdir /sys/fs/bpf/mine", "ln -s mine /sys/fs/bpf/sluice")
    said = machine.fail("sluice-policy load prefetch_always_max 2>&1")
    assert "/sys/fs/bpf/sluice is no folder" in said, said
    machine.succeed("rm /sys/fs/bpf/sluice", "rmdir /sys/fs/bpf/mine")
    assert policies() == {}

with subtest("held: killed with its loader"):
    machine.succeed(
        "systemd-run --quiet --unit=holder sluice-policy load prefetch_always_max --hold"
    )
    machine.wait_until_succeeds("journalctl -u holder | grep -q 'attached prefetch_always_max'")
    assert play("third-page")["tenant.0.faults"] == 4
    machine.fail("rmmod sluice_gpu")
    machine.succeed("systemctl kill -s KILL holder")
    machine.wait_until_fails("systemctl is-active holder")
    assert policies() == {}
    assert play("third-page") == native

with subtest("pinned: stays, and keeps the module"):
    machine.succeed("sluice-policy load prefetch_always_max")
    machine.fail("ps -C sluice-policy -o args= | grep load")
    assert play("third-page")["tenant.0.faults"] == 4
    machine.succeed("rmmod sluice_sim")
    machine.fail("rmmod sluice_gpu")
    machine.succeed(f"insmod {SIM}/modules/sluice_sim.ko")
    assert play("third-page")["tenant.0.faults"] == 4

with subtest("its name is taken until it is unloaded"):
    said = machine.fail("sluice-policy load prefetch_none --as prefetch_always_max 2>&1")
    assert "next: sluice policy replace" in said, said
    machine.succeed("sluice-policy unload prefetch_always_max")
    said = machine.fail("sluice-policy unload prefetch_always_max 2>&1")
    assert "no policy named prefetch_always_max is attached" in said, said

with subtest("a loader that was killed before its first pin bars nothing"):
    machine.succeed("mkdir /sys/fs/bpf/sluice/eviction_lfu")
    machine.succeed("sluice-policy load eviction_lfu")
    assert set(policies()) == {"eviction_lfu"}
    machine.succeed("sluice-policy unload eviction_lfu")
    machine.succeed("mkdir -p /sys/fs/bpf/sluice/eviction_lfu/configured-eviction")
    machine.succeed("sluice-policy unload eviction_lfu")
    machine.fail("ls /sys/fs/bpf/sluice/*")
    machine.succeed(
        "sluice-policy load eviction_lfu",
        "mkdir -p /sys/fs/bpf/sluice/eviction_mru/configured-eviction",
        "sluice-policy replace eviction_lfu eviction_mru",
    )
    assert set(policies()) == {"eviction_mru"}
    machine.succeed("sluice-policy unload eviction_mru")
    said = machine.fail("sluice-policy unload .. 2>&1")
    assert "no policy named .. is attached" in said, said

with subtest("who watches was told of each"):
    told = machine.succeed("journalctl -o cat -u watch | grep prefetch_always_max").splitlines()
    line = "prefetch_always_max (mem, every GPU): in force"
    assert told == [f"attached {line}", f"detached {line}"] * 2, told
    machine.succeed("systemctl stop watch")



def configure(text):
    """Writes the configuration."""
    machine.succeed(f"mkdir -p /etc/sluice; printf '%s' '[policies]\n{text}' >/etc/sluice/sluice.toml")


with subtest("configured: the unit attaches it, and it stays when the unit is stopped"):
    configure('prefetch = "prefetch_always_max"\n')
    machine.succeed("systemctl start sluice-policy")
    assert play("third-page")["tenant.0.faults"] == 4
    machine.succeed("systemctl stop sluice-policy")
    assert play("third-page")["tenant.0.faults"] == 4

with subtest("configured anew: in its place, for others beside it, with parameters"):
    configure(
        'prefetch = "prefetch_none"\n[[policies.scope]]\ncgroup = "/system.slice"\n'
        'prefetch = "prefetch_adaptive_sequential"\n'
        "[policies.parameters.prefetch_adaptive_sequential]\nleast = 512\n"
    )
    said = machine.succeed("sluice policy apply")
    assert "replaced prefetch_always_max by prefetch_none" in said, said
    assert policies()["prefetch_none"]["replaced"] == 1
    assert play("third-page", "--cgroup 0=/")["tenant.0.faults"] == 683
    assert play("third-page", "--cgroup 0=/system.slice")["tenant.0.faults"] == 4

with subtest("what a killed apply left is taken up by the next one"):
    machine.succeed("mkdir -p /sys/fs/bpf/sluice/eviction_lfu/configured-eviction")
    machine.succeed("sluice policy apply")
    machine.fail("test -e /sys/fs/bpf/sluice/eviction_lfu")

with subtest("a mistake in it changes nothing"):
    before = set(policies())
    configure('eviction = "eviction_lfu"\nprefetch = "eviction_mru"\n')
    said = machine.fail("sluice policy apply 2>&1")
    assert "the policy has none of the hooks page_prefetch" in said, said
    configure('prefetch = "prefetch_non"\n')
    assert "there is no policy prefetch_non" in machine.fail("sluice policy apply 2>&1")
    assert set(policies()) == before

with subtest("a name that was loaded by hand is not taken, and nothing is lost for it"):
    configure('eviction = "eviction_mru"\n')
    machine.succeed("sluice policy apply", "sluice-policy load eviction_lfu --gpu 1")
    configure('eviction = "eviction_lfu"\n')
    said = machine.fail("sluice policy apply 2>&1")
    assert "one of that name was loaded by hand" in said, said
    assert set(policies()) == {"eviction_mru", "eviction_lfu"}
    machine.succeed("sluice-policy unload eviction_lfu", "sluice policy apply")
    assert set(policies()) == {"eviction_lfu"}

with subtest("told to, policies go with the loader, and the unit brings it back"):
    configure('loader_exit = "detach"\nprefetch = "prefetch_always_max"\n')
    machine.succeed("systemctl start sluice-policy")
    assert set(policies()) == {"prefetch_always_max"}
    assert play("third-page")["tenant.0.faults"] == 4
    machine.succeed("systemctl kill -s KILL sluice-policy")
    machine.wait_until_succeeds("sluice-policy list | grep -q 'no policy is attached'")
    machine.wait_until_succeeds("sluice-policy list | grep -q '^prefetch_always_max'")
    machine.succeed("systemctl stop sluice-policy")
    assert policies() == {}
    assert play("third-page") == native

with subtest("then the module can go"):
    machine.succeed("rmmod sluice_sim")
    # The kernel frees maps after a grace period, so not at once.
    machine.wait_until_succeeds("rmmod sluice_gpu", timeout=30)
