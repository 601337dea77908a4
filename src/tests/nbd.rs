// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NBD server from outside: over real sockets, against a store in memory.
//! One binary, so that the suites share [`nbd_support`] without relinking it.

mod nbd_connection;
mod nbd_fuzz;
mod nbd_handshake;
mod nbd_listener;
mod nbd_misbehaviour;
mod nbd_peers;
mod nbd_support;
