// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block-device front ends: NBD over sockets and its attachment to the kernel.

pub mod bench;
pub mod nbd;
