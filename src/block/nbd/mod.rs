// SPDX-License-Identifier: MIT OR Apache-2.0
//! Network Block Device: wire format, handshake, the I/O loop, kernel attach.
//!
//! [`connection`] serves one socket from one [`BlockIo`](crate::engine::io::BlockIo),
//! whoever is at the other end. [`listener`] brings it sockets of user-space
//! clients, after the [`handshake`]; a socket that is handed to the kernel needs none.
//! [`client`] is the other end, for measurements and tests.

pub mod client;
pub mod connection;
pub mod handshake;
pub mod listener;
pub mod waker;
pub mod wire;
