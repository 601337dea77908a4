// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the NBD suites share: a store in memory, a client that says exactly
//! what it is told, and a served socketpair.

pub mod client;
pub mod fuzzing;
pub mod memory_io;
pub mod served;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// A small deterministic generator (xorshift64*); tests print their seed.
pub struct Dice(pub u64);

impl Dice {
    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.roll() >> 16) as usize % limit
    }
}

/// Recognisable contents for a page.
pub fn pattern(seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed | 1 << 63);
    (0..PAGE / 8).flat_map(|_| dice.roll().to_le_bytes()).collect()
}
