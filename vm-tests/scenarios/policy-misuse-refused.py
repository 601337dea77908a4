# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# What must not run is refused when it is loaded, with words that say why.
# Where kernels put it differently: as 6.12 does, as 7.3 does.
REFUSED = {
    "writes_context": "can be read only",
    "made_up_context": ("must point to scalar", "R1 is fp expected STRUCT sluice_gpu_block_ctx"),
    "sleeps": "attach to unsupported member block_access",
    "costly_helper": "bpf_loop",
    "prints": "bpf_trace_printk",
    "endless_loop": "infinite loop detected",
    "beyond_context": "access beyond struct sluice_gpu_prefetch_ctx",
    "unchecked_candidate": "ptr_or_null",
    "other_hooks_request": "expected pointer to STRUCT sluice_gpu_evict_ctx",
    "other_version": "is of another version than the module",
    "bad_name": "refuses policy ../name",
    "without_link": "refuses policy without_link: Operation not supported",
    "nested_iterators": "attach to unsupported member page_prefetch",
    "rdonly_cast": "attach to unsupported member page_prefetch",
    "may_goto": "attach to unsupported member page_prefetch",
    "global_functions": "attach to unsupported member page_prefetch",
}
# And what the kernel's log says of those that the verifier has no words for.
LOGGED = {
    "nested_iterators": "calls a function of the kernel that is not sluice_bpf_*",
    "rdonly_cast": "calls a function of the kernel that is not sluice_bpf_*",
    "may_goto": "has a loop with may_goto",
    "global_functions": "has a function that is not static",
}


def refused(command):
    """Runs what must fail; gives what it said."""
    return machine.fail(f"{command} 2>&1")


with subtest("a module without type information does not load"):
    machine.fail(f"insmod {SIM}/modules/without_btf.ko")
    machine.wait_for_console_text("sluice_gpu: the kernel did not take this module's BTF")
    machine.fail("test -e /sys/module/sluice_gpu")

with subtest("without the module the loader says so"):
    said = refused("sluice-policy load eviction_lfu")
    assert "module sluice_gpu is not loaded" in said and "next: modprobe" in said, said
    assert "module sluice_gpu is not loaded" in refused("sluice-policy list")

load_modules()
listed = machine.succeed(f"ls {SIM}/misuse").split()
assert {f"refused_{name}.bpf.o" for name in REFUSED} == {
    name for name in listed if name.startswith("refused_")
}, listed

for name, words in REFUSED.items():
    with subtest(f"refused: {name}"):
        machine.succeed("dmesg --clear")
        said = refused(f"sluice-policy check {SIM}/misuse/refused_{name}.bpf.o")
        known = (words,) if isinstance(words, str) else words
        assert any(each in said for each in known) and "next: " in said, said
        if name in LOGGED:
            logged = machine.succeed("dmesg")
            assert f"program page_prefetch {LOGGED[name]}" in logged, logged

with subtest("what the module itself refuses is told in the kernel's log"):
    machine.wait_for_console_text("sluice_gpu: policy without_link has no link")

with subtest("nothing of it is left"):
    assert policies() == {}
    machine.fail("ls /sys/fs/bpf/sluice/*")
    machine.succeed("rmmod sluice_sim", "rmmod sluice_gpu")
