// SPDX-License-Identifier: MIT OR Apache-2.0
//! `org.sluice.Sluice1` on the system bus: its objects ([`manager`],
//! [`device`]), who may call what ([`authority`]), what callers are told
//! ([`error`]), a client of it ([`client`]) and what one that stays is told
//! ([`watch`]), and systemd's interface to the store's unit ([`unit`]).
//!
//! A method is: decode, authorise the caller, hand the call over, answer. It
//! decides nothing: calls go to whoever holds the other end of the channel.
#![forbid(unsafe_code)]

pub mod authority;
pub mod client;
pub mod device;
pub mod error;
pub mod manager;
pub mod unit;
pub mod watch;

/// The service's name, and its manager's interface.
pub const SERVICE: &str = "org.sluice.Sluice1";
/// The manager's object.
pub const PATH: &str = "/org/sluice/Sluice1";
