#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The embedded shader is what its source compiles to. With --write it is made anew.
# The compiler leaves its version in the third word, which is not compared.
set -eu
source=src/tier/vulkan/shader/gather.comp
made=src/tier/vulkan/shader/gather.spv
out=$(mktemp)
trap 'rm -f "$out" "$out.a" "$out.b"' EXIT
glslangValidator --quiet --target-env vulkan1.2 -V -o "$out" "$source"
if [ "${1:-}" = --write ]; then
	cp "$out" "$made"
	exit
fi
for file in "$out" "$made"; do
	[ "$file" = "$out" ] && to=$out.a || to=$out.b
	head -c 8 "$file" >"$to"
	tail -c +13 "$file" >>"$to"
done
cmp -s "$out.a" "$out.b" || {
	echo "shader.sh: $made is not what $source compiles to; run .ci/shader.sh --write" >&2
	exit 1
}
