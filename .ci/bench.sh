#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Figures of `sluice serve` beside nbdkit's memory plugin, both in turns in one
# run, each page verified. Ratios hold on this machine only.
#   .ci/bench.sh BIN_DIR [SECONDS [ROUNDS]]
set -eu
bin=$1
seconds=${2:-5}
rounds=${3:-3}
folder=$(mktemp -d)
ours= peer=
trap 'kill $ours $peer 2>/dev/null || true; wait; rm -rf "$folder"' EXIT INT TERM
"$bin/sluice" serve --tier ram --size 1G --socket "$folder/sluice.sock" >"$folder/sluice.log" &
ours=$!
nbdkit -f -U "$folder/nbdkit.sock" memory 1G &
peer=$!
for socket in sluice nbdkit; do
	tries=0
	until [ -S "$folder/$socket.sock" ]; do
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "bench.sh: $socket does not listen" >&2; exit 1; }
		sleep 0.1
	done
done
run() {
	printf '\n== %s\n' "$*"
	"$bin/sluice" bench "unix:$folder/sluice.sock" --against "unix:$folder/nbdkit.sock" \
		--seconds "$seconds" --rounds "$rounds" --span 256M "$@"
}
run --connections 1 --depth 1 --write 50
run --connections 1 --depth 32 --write 50
run --connections 1 --depth 32 --write 0 --fill
run --connections 4 --depth 32 --write 50
run --connections 1 --depth 4 --block 1M --write 100
run --connections 1 --depth 1 --write 0 --fill --pause 1000
