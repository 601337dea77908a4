#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The pure layers, engine and config, build without one optional dependency.
set -eu
cargo check --locked --lib --no-default-features
