#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What needs counts or hours; by hand, results go into docs/how-to/soak.md.
#   .ci/soak.sh BIN_DIR [FUZZ_SECONDS [CASES [ROUNDS]]]
set -eu
bin=$1
fuzz_seconds=${2:-3600}
cases=${3:-100000}
rounds=${4:-20}
say() { printf '\n== %s: %s\n' "$(date +%H:%M:%S)" "$*"; }

say "fuzzing the NBD server for $fuzz_seconds s"
cargo run --locked --release -p sluice-fuzz -- "$fuzz_seconds"

say "the engine's model, $cases histories and as many crashes"
PROPTEST_CASES=$cases cargo test --locked --release --lib engine:: -- --nocapture

say "an hour of pressure at zero free memory"
vm-tests/run --bin-dir "$bin" --live soak/pressure-for-an-hour

say "$rounds times: stops with pages in use, a refused stop, on and off again"
round=1
while [ "$round" -le "$rounds" ]; do
	echo "round $round of $rounds"
	vm-tests/run --bin-dir "$bin" stop-with-pages-in-use stop-refused-without-room swap-on-off
	round=$((round + 1))
done
say "done"
