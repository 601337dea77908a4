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
