// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration file: plain types, the rules they obey, and loading.
#![forbid(unsafe_code)]
