# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=18000
# As reboot-with-pages, twenty times, and each time the machine really boots again with the
# spill that the one before left.
for turn in range(20):
    with subtest(f"round {turn}"):
        leave_with(["all", "some", "no"][turn % 3], machine.reboot)
