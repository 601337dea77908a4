// SPDX-License-Identifier: MIT OR Apache-2.0
//! Network Block Device: wire format, handshake, the I/O loop, kernel attach.

pub mod client;
pub mod netlink;
pub mod wire;
