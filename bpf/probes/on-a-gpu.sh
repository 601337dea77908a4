#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Sets the probes on the CUDA driver library and has a CUDA program allocate, be refused,
# launch and free: each call must be told with its process, cgroup, size and result.
# For root, on a machine with an NVIDIA GPU; no compiler, no CUDA toolkit.
#   on-a-gpu.sh [LIBRARY [memory-only]]
# LIBRARY is libcuda.so.1 where it is not found; memory-only is for the fake one, which
# has neither managed memory nor kernels.
#   SLUICE_BIN_DIR   the folder with the program sluice-policy
#   SLUICE_LIB_DIR   a folder with libelf.so.1 and libz.so.1, where the machine lacks them
# cuda.bpf.o and cuda_client are beside this script.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
library=${1:-}
mode=${2:-}
fail() { echo "on-a-gpu.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail 'probes are set by root'
[ -e /sys/kernel/btf/vmlinux ] || fail 'this kernel has no type information (BTF)'
policy=${SLUICE_BIN_DIR:+$SLUICE_BIN_DIR/}sluice-policy
command -v "$policy" >/dev/null || fail "no $policy: SLUICE_BIN_DIR must name its folder"
for file in cuda.bpf.o cuda_client; do
	[ -e "$here/$file" ] || fail "$here/$file is missing: make -C kernel-module policies"
done
if [ -z "$library" ]; then
	for library in /run/opengl-driver/lib/libcuda.so.1 \
		"$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\.so\.1.*=> //p' | head -n1)" \
		/usr/lib64/libcuda.so.1 /usr/local/nvidia/lib64/libcuda.so.1; do
		[ -n "$library" ] && [ -e "$library" ] && break
	done
fi
[ -e "$library" ] || fail 'no libcuda.so.1: name it as the first argument'
# A probe is set on a file; the program must load that very one.
library=$(readlink -f "$library")

folder=$(mktemp -d)
tracer=
trap '[ -z "$tracer" ] || kill $tracer 2>/dev/null || true; rm -rf "$folder"' EXIT INT TERM
LD_LIBRARY_PATH=${SLUICE_LIB_DIR:-}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
	"$policy" trace --json --library "$library" --probe "$here/cuda.bpf.o" \
	>"$folder/events" 2>"$folder/said" &
tracer=$!
until grep -q '^watching' "$folder/said"; do
	kill -0 $tracer 2>/dev/null || { cat "$folder/said" >&2; fail 'sluice-policy trace ended'; }
	sleep 0.1
done
cat "$folder/said"

# Launches are counted by processor, so the program stays on one.
processor=$(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//')
# shellcheck disable=SC2086 # no mode is no argument
told=$(taskset -c "$processor" "$here/cuda_client" "$library" $mode) || fail 'the CUDA program failed'
read -r pid a b c managed refused <<-END
	$told
END
[ "$refused" != 0 ] || fail 'the driver granted a petabyte'

# Where the cgroups can be seen the number must be that of the program's.
cgroup='[1-9][0-9]*'
place=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && [ -d "$place" ]; then
	cgroup=$(stat -c %i "$place")
else
	echo 'the unified cgroups are not at /sys/fs/cgroup: any number will do'
fi

line() { # ADDRESS BYTES CALL RESULT
	echo "\"address\":$1,\"bytes\":$2,\"call\":\"$3\",\"cgroup_id\":$cgroup,\"comm\":\"cuda_client\",\"pid\":$pid,\"result\":$4,"
}
# The last thing that the program did; the events are in order.
waited=0
until grep -q "$(line "$c" 0 free 0)" "$folder/events"; do
	waited=$((waited + 1))
	[ $waited -lt 100 ] || { cat "$folder/events" >&2; fail 'the last event does not arrive'; }
	sleep 0.1
done
passed=0
expect() { # COUNT WORDS PATTERN
	found=$(grep -c "$3" "$folder/events" || true)
	[ "$found" = "$1" ] || { cat "$folder/events" >&2; fail "$2: $found of $1 events, as $3"; }
	echo "ok: $2"
	passed=$((passed + 1))
}
expect 1 '1 MiB were allocated' "$(line "$a" 1048576 alloc 0)"
expect 1 '2 MiB were allocated' "$(line "$b" 2097152 alloc 0)"
expect 1 '3 MiB were allocated' "$(line "$c" 3145728 alloc 0)"
expect 1 'a petabyte was refused' "$(line 0 1125899906842624 alloc "$refused")"
expect 1 'the first was freed' "$(line "$a" 0 free 0)"
expect 1 'the second was freed' "$(line "$b" 0 free 0)"
expect 1 'the third was freed' "$(line "$c" 0 free 0)"
if [ -z "$mode" ]; then
	expect 1 '4 MiB of managed memory were allocated' "$(line "$managed" 4194304 alloc 0)"
	expect 1 'they were freed' "$(line "$managed" 0 free 0)"
	expect 2 'a thousand kernels were launched, twice' "$(line 0 1000 launch 0)"
fi
printf '\n%s passed, 0 failed\n' "$passed"
