#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what building and testing need on Debian 12: packages by apt-get,
# cargo's tools from the crate registry. The VM harness fetches its own.
set -eu
missing=
need() { # COMMAND PACKAGE
	command -v "$1" >/dev/null || missing="$missing $2"
}
need cc gcc
need python3 python3
need nbdinfo libnbd-bin
need nbdcopy libnbd-bin
need qemu-img qemu-utils
need qemu-nbd qemu-utils
need fio fio
need nbd-client nbd-client
need nbdkit nbdkit
# The control plane's tests have a bus of their own.
need dbus-daemon dbus-daemon
need dbus-send dbus-bin
# The NixOS module's units are looked at by systemd's own tools.
need systemd-analyze systemd
# A Vulkan device without a GPU.
ls /usr/lib/*/libvulkan.so.1 >/dev/null 2>&1 || missing="$missing libvulkan1"
ls /usr/share/vulkan/icd.d/lvp_icd.*.json >/dev/null 2>&1 || missing="$missing mesa-vulkan-drivers"
need glslangValidator glslang-tools
# The kernel modules, the policies, and libbpf for their loader.
need make make
need pahole pahole
need pkg-config pkg-config
need sparse sparse
# Applies the semantic patches to NVIDIA's driver.
need spatch coccinelle
if ! command -v clang >/dev/null && ! command -v clang-19 >/dev/null; then
	missing="$missing clang-19"
fi
for header in libelf.h:libelf-dev zlib.h:zlib1g-dev bpf/bpf_helpers.h:libbpf-dev; do
	[ -e "/usr/include/${header%%:*}" ] || missing="$missing ${header#*:}"
done
/usr/bin/python3 -c 'import nbd' 2>/dev/null || missing="$missing python3-libnbd"
if [ -n "$missing" ]; then
	[ "$(id -u)" = 0 ] || { echo "install.sh: run as root, or install:$missing" >&2; exit 1; }
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	# shellcheck disable=SC2086 # a list of words
	apt-get install -qy --no-install-recommends $missing
fi
command -v cargo >/dev/null || {
	echo 'install.sh: no cargo; install Rust 1.89 or newer with rustup (https://rustup.rs)' >&2
	exit 1
}
cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest
cargo deny --version >/dev/null 2>&1 || cargo install --locked --debug cargo-deny@0.20.2
# Nix itself is unpacked from Debian's archive by the tests of the NixOS module.
command -v nixfmt >/dev/null || cargo install --locked --debug nixfmt_rs@0.5.3
command -v deadnix >/dev/null || cargo install --locked --debug deadnix@1.3.1
