#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What needs counts or hours; by hand, results go into docs/how-to/soak.md.
#   .ci/soak.sh BIN_DIR [FUZZ_SECONDS [CASES [ROUNDS]]]
# SLUICE_FAULT_ROUNDS and SLUICE_FAULT_SEED: rounds of failing GPUs, where they begin.
set -eu
bin=$1
fuzz_seconds=${2:-3600}
cases=${3:-100000}
rounds=${4:-20}
say() { printf '\n== %s: %s\n' "$(date +%H:%M:%S)" "$*"; }

say "fuzzing the codec, 10,000,000 inputs"
cargo run --locked --release -p sluice-fuzz -- codec 10000000

say "fuzzing the NBD server for $fuzz_seconds s"
cargo run --locked --release -p sluice-fuzz -- server "$fuzz_seconds"

say "the engine under Miri"
.ci/miri.sh

say "the engine's model, $cases histories and as many crashes"
PROPTEST_CASES=$cases cargo test --locked --release --lib engine:: -- --nocapture

say "${SLUICE_FAULT_ROUNDS:-200} rounds of a GPU that fails at random, with a mirror and without"
SLUICE_FAULT_ROUNDS=${SLUICE_FAULT_ROUNDS:-200} SLUICE_FAULT_SEED=${SLUICE_FAULT_SEED:-$(date +%s)} \
	cargo test --locked --test cuda_served cuda_rounds -- --nocapture

say "an hour of pressure at zero free memory"
vm-tests/run --bin-dir "$bin" --live soak/pressure-for-an-hour

say "200 rounds of giving fast memory back and taking it again, under pressure"
vm-tests/run --bin-dir "$bin" --live soak/yield-rounds

say "giving memory back beside swapoff"
vm-tests/run --bin-dir "$bin" --live soak/yield-against-swapoff

say "the store killed twenty times in a row, and twenty reboots with pages in swap"
vm-tests/run --bin-dir "$bin" --live soak/kill-store-twenty-times soak/reboot-twenty-times

say "NVIDIA's unified memory on a stub of its core, watched"
make kernel
make -C kernel-module uvm
vm-tests/run --bin-dir "$bin" --live soak/policy-probe-uvm

say "the same driver with the semantic patches, asking policies"
make -C kernel-module driver
vm-tests/run --bin-dir "$bin" --live soak/policy-patched-uvm

say "the modules and policies on the newest kernel that Debian has"
make vm-newest

say "the modules under sparse and checkpatch"
make -C kernel-module sparse
make -C kernel-module checkpatch

say "$rounds times: stops with pages in use, a refused stop, on and off again"
round=1
while [ "$round" -le "$rounds" ]; do
	echo "round $round of $rounds"
	vm-tests/run --bin-dir "$bin" stop-with-pages-in-use stop-refused-without-room swap-on-off
	round=$((round + 1))
done
say "done"
