// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration file `/etc/sluice/sluice.toml`: plain types ([`schema`]),
//! the rules they obey ([`check`]), reading the file ([`mod@load`]) and comparing it
//! with what is in force ([`in_force`]).
//!
//! Strict on purpose: an unknown key, a wrong type or a value out of range is
//! an error that names the place, never a default. All problems of a file are
//! reported at once.
#![forbid(unsafe_code)]

pub mod check;
pub mod control;
pub mod in_force;
pub mod load;
pub mod metrics;
pub mod policies;
mod problem;
pub mod schema;
mod table;
pub mod tenants;

pub use load::{DEFAULT_PATH, load, load_policies};
pub use policies::Policies;
pub use problem::{ConfigError, Problem};
pub use schema::{Config, Cuda, ServeOptions, TierKind, Vulkan};

#[cfg(test)]
mod tests;
