// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `sluice` command: arguments and how results are shown.
#![forbid(unsafe_code)]
