#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Licences, banned crates and sources of all dependencies, on every target.
set -eu
cargo fetch --locked
cargo deny --offline --workspace --config .ci/deny.toml check bans licenses sources
