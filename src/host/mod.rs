// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store needs of the machine it runs on: locked memory, swap, scheduling.
