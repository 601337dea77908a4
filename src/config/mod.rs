// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration file `/etc/sluice/sluice.toml`: plain types ([`schema`]),
//! the rules they obey ([`check`]) and reading the file ([`mod@load`]).
//!
//! Strict on purpose: an unknown key, a wrong type or a value out of range is
//! an error that names the place, never a default. All problems of a file are
//! reported at once.
#![forbid(unsafe_code)]

pub mod check;
pub mod load;
mod problem;
pub mod schema;
mod table;

pub use load::{DEFAULT_PATH, load};
pub use problem::{ConfigError, Problem};
pub use schema::{Config, ServeOptions, TierKind};

#[cfg(test)]
mod tests;
