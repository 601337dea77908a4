# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# What the NixOS module renders of its example `policies` attaches them at boot, each for
# whom it was chosen, and an empty choice detaches them.
become("policies")
load_modules()

with subtest("they are attached as the options say"):
    machine.succeed("systemctl start multi-user.target")
    machine.wait_for_unit("sluice-policy.service")
    assert set(policies()) == {"eviction_lfu", "prefetch_stride-1"}, policies()
    shown = machine.succeed("sluice-policy show prefetch_stride-1")
    assert "GPU 0, cgroup /system.slice" in shown and "budget 20 us" in shown, shown

with subtest("they are asked"):
    play("third-page")
    assert hooks("eviction_lfu")["block_activate"]["calls"] > 0, hooks("eviction_lfu")

with subtest("a configuration without policies detaches them"):
    # As a switch does it: another file, and the unit restarted.
    machine.succeed(f"rm {CONFIG}")
    configure("[policies]")
    machine.succeed("systemctl restart sluice-policy.service")
    assert not policies(), policies()
