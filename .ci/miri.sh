#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The engine under Miri, which sees undefined behaviour and data races. Needs a
# nightly toolchain with the component miri: rustup +nightly component add miri.
# Left out is what would take hours there and runs natively in every test: the
# histories, the crash after each store, and devices too large for it.
set -eu
cargo +nightly miri --version >/dev/null 2>&1 || {
	echo 'miri.sh: no Miri; rustup toolchain install nightly --component miri,rust-src' >&2
	exit 1
}
PROPTEST_CASES=${PROPTEST_CASES:-4} MIRIFLAGS='-Zmiri-disable-isolation' \
	cargo +nightly miri test --locked --no-default-features --target-dir target/miri --lib engine:: -- \
	--skip any_history --skip any_crash --skip a_crash_after_each_single_store \
	--skip threads_on_one_store
