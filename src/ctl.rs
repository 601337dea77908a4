// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice`: the command-line client.

fn main() {}
