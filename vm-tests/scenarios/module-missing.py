# SPDX-License-Identifier: MIT OR Apache-2.0
# Without the kernel's nbd module the store says so, and works once it is there.
configure("""
[swap]
size = "64M"
[tier]
kind = "ram"
""")
machine.fail("test -e /sys/module/nbd")
# As after an upgrade of the kernel without a reboot: the folder of the running kernel's
# modules is empty.
modules = machine.succeed("modinfo -n nbd").split("/kernel/")[0]
machine.succeed(f"mount -t tmpfs none {modules}")

with subtest("the module and the kernel are named"):
    said = refuses_to_start()
    release = machine.succeed("uname -r").strip()
    assert f"cannot load module nbd for kernel {release}" in said, said
    assert "next: " in said and "dmesg" not in said, said

with subtest("doctor finds the same"):
    said = machine.fail("sluice doctor")
    assert any(line.startswith("NO ") and "nbd" in line for line in said.splitlines()), said

with subtest("with the module there it arms"):
    machine.succeed(f"umount {modules}")
    start_store()
    assert "/dev/nbd0" in swaps()
