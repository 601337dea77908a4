// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-store`: the process that holds swapped pages.

fn main() {}
