#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The lock protocols under the model checker: every interleaving, bounded.
set -eu
cargo test --locked -p sluice-loom
