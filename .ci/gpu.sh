#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything that can be tried on a machine with an NVIDIA GPU, without the
# kernel's swap. Nothing is skipped: without a GPU it fails.
#   .ci/gpu.sh [SECONDS [LIBRARY]]
# LIBRARY is libcuda.so.1 where the loader does not know it; a fake one is as
# good for trying this script. What was built elsewhere runs without cargo:
#   SLUICE_BIN_DIR   the folder with the program sluice
#   SLUICE_TEST_BIN  the folder with the test programs cuda_conformance and
#                    cuda_card, also under the names that cargo gives them
#   SLUICE_TEST_KILLS, SLUICE_TEST_KILL_MIB   how often a store is killed under load
#                    (5), and how much GPU memory it has (256)
#   SLUICE_GPU_FOLDER  a folder on a disk with 4 GiB to spare (.)
#   SLUICE_GPU_SIZE, SLUICE_GPU_SPAN  how much to serve (4G), to write to (3G)
#   SLUICE_PROBES    the folder of the probes, target/kernel/probes: they are tried
#                    too, which takes root and the program sluice-policy
set -eu
seconds=${1:-20}
library=${2:-}
size=${SLUICE_GPU_SIZE:-4G}
span=${SLUICE_GPU_SPAN:-3G}
fail() { echo "gpu.sh: $*" >&2; exit 1; }
[ -e /dev/nvidia0 ] || [ -n "$library" ] ||
	fail 'no /dev/nvidia0: this machine has no NVIDIA GPU, or its driver is not loaded'
bin=${SLUICE_BIN_DIR:-}
if [ -z "$bin" ]; then
	bin=target/release
	cargo build --locked --release
fi
tests=${SLUICE_TEST_BIN:-}
if [ -z "$tests" ]; then
	tests=target/debug/deps
	cargo test --locked --no-run --test cuda_conformance --test cuda_card
fi
[ -x "$bin/sluice" ] || fail "$bin/sluice is missing: SLUICE_BIN_DIR must have the programs"
if [ -z "$library" ]; then
	for library in /run/opengl-driver/lib/libcuda.so.1 \
		"$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\.so\.1.*=> //p' | head -n1)" \
		/usr/lib64/libcuda.so.1 /usr/local/nvidia/lib64/libcuda.so.1; do
		[ -n "$library" ] && [ -e "$library" ] && break
	done
fi
[ -e "$library" ] || fail "no libcuda.so.1: name it as the second argument"
folder=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait; rm -rf "$folder"' EXIT INT TERM
ran=0
say() { printf '\n== %s\n' "$*"; }

# The newest test program of a name, as cargo names it or by that name alone.
program() {
	# shellcheck disable=SC2012 # names of cargo's making
	found=$(ls -t "$tests/$1" "$tests/$1"-* 2>/dev/null | grep -v '\.d$' | head -n1)
	[ -n "$found" ] && [ -x "$found" ] || fail "$tests has no test program $1"
	echo "$found"
}

# A driver is one for the whole process: each test has its own.
for suite in cuda_conformance cuda_card; do
	test=$(program $suite)
	names=$("$test" --list --format terse | sed -n 's/: test$//p')
	[ -n "$names" ] || fail "$test lists no test"
	for name in $names; do
		say "$suite $name"
		SLUICE_TEST_CUDA_LIBRARY=$library SLUICE_BIN_DIR=$bin "$test" --exact "$name" --nocapture >"$folder/said" 2>&1 &&
			grep -q 'test result: ok. 1 passed' "$folder/said" || {
			cat "$folder/said" >&2
			fail "$suite $name failed"
		}
		sed -n '/kills: /p' "$folder/said"
		ran=$((ran + 1))
	done
done

# The loader's path comes first, so that this library and no other is loaded.
ln -s "$library" "$folder/libcuda.so.1"
serve() { # ARGUMENT...
	rm -f "$folder/socket"
	LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
		"$bin/sluice" serve --tier cuda --socket "$folder/socket" "$@" >"$folder/serve.log" 2>&1 &
	server=$!
	until grep -q '^serving ' "$folder/serve.log"; do
		kill -0 $server 2>/dev/null || { cat "$folder/serve.log" >&2; fail 'sluice serve ended'; }
		sleep 0.1
	done
}
stop() {
	kill $server
	wait $server || { cat "$folder/serve.log" >&2; fail 'sluice serve did not end well'; }
	server=
}
bench() {
	say "$*"
	"$bin/sluice" bench "unix:$folder/socket" "$@" || fail "sluice bench $*: a page is wrong or a request failed"
	ran=$((ran + 1))
}

serve --size "$size"
for connections in 1 4 8; do
	bench --connections $connections --depth 32 --write 50 --seconds "$seconds" --span "$span"
done
stop

# The table of figures, each page verified.
serve --size "$size"
for work in '--connections 1 --depth 1 --write 50' '--connections 1 --depth 32 --write 50' \
	'--connections 1 --depth 32 --write 0 --fill' '--connections 4 --depth 32 --write 50' \
	'--connections 8 --depth 1 --write 50' '--connections 8 --depth 32 --write 0 --fill' \
	'--connections 1 --depth 4 --block 1M --write 100' \
	'--connections 1 --depth 1 --write 0 --fill --pause 1000'; do
	# shellcheck disable=SC2086 # a list of words
	bench $work --seconds 5 --span "$span"
done
stop

if [ -n "${SLUICE_PROBES:-}" ]; then
	say 'probes on the driver library'
	SLUICE_BIN_DIR=$bin "$SLUICE_PROBES/on-a-gpu.sh" "$library" ||
		fail 'the probes do not tell what a CUDA program does'
	ran=$((ran + 1))
fi
if [ -e /dev/nvidia0 ]; then
	say 'another program grows'
	python3 "$(dirname "$0")/gpu_others.py" "$bin" "$library" "${SLUICE_GPU_FOLDER:-.}" ||
		fail 'another program did not get its memory'
	ran=$((ran + 1))
fi
printf '\n%s passed, 0 failed\n' "$ran"
