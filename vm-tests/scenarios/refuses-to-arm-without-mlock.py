# SPDX-License-Identifier: MIT OR Apache-2.0
# A store that cannot lock its memory would be swapped out to itself: it does not arm.
configure("""
[swap]
size = "128M"
[tier]
kind = "ram"
""")
DROP_IN = "/run/systemd/system/sluice-store.service.d/no-lock.conf"
write_file(DROP_IN, "[Service]\nLimitMEMLOCK=0\nCapabilityBoundingSet=~CAP_IPC_LOCK")
machine.succeed("systemctl daemon-reload")

with subtest("it says what it needs"):
    said = refuses_to_start()
    assert "lock" in said and "LimitMEMLOCK" in said, said

with subtest("with the limit lifted it arms"):
    machine.succeed(f"rm {DROP_IN}", "systemctl daemon-reload")
    start_store()
    assert "/dev/nbd0" in swaps()
