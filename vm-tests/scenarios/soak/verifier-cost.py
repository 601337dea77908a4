# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=policies
# Prints what verifying each policy costs, for bpf/verifier-cost.txt.
load_modules()
print(machine.succeed(f"sluice-policy check {SIM}/policies/*.bpf.o"))
