// SPDX-License-Identifier: MIT OR Apache-2.0
//! Units of the device's address space, as newtypes so that they cannot be mixed.
//!
//! A *page* is 4 KiB, an *extent* 512 pages (2 MiB, one kernel swap cluster and
//! one CUDA allocation granule), a *slab* 32 extents (64 MiB of one tier).

use std::fmt;

/// Bytes in a page, the unit of swap and of checksums.
pub const PAGE_BYTES: usize = 4096;
/// Pages in an extent.
pub const PAGES_PER_EXTENT: usize = 512;
/// Bytes in an extent.
pub const EXTENT_BYTES: usize = PAGE_BYTES * PAGES_PER_EXTENT;
/// Extents (slots) in a slab.
pub const SLOTS_PER_SLAB: usize = 32;
/// Bytes in a slab.
pub const SLAB_BYTES: usize = EXTENT_BYTES * SLOTS_PER_SLAB;

/// A slab of one tier, by its number within that tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabIndex(pub u32);

/// One extent's worth of a tier: slot `index % 32` of slab `index / 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

impl SlotIndex {
    /// The slot numbered `within` (0..32) of `slab`.
    #[must_use]
    pub fn new(slab: SlabIndex, within: u32) -> Self {
        debug_assert!((within as usize) < SLOTS_PER_SLAB);
        Self(slab.0 * SLOTS_PER_SLAB as u32 + within)
    }

    /// The slab this slot is in.
    #[must_use]
    pub fn slab(self) -> SlabIndex {
        SlabIndex(self.0 / SLOTS_PER_SLAB as u32)
    }

    /// The slot's number within its slab, 0..32.
    #[must_use]
    pub fn within(self) -> u32 {
        self.0 % SLOTS_PER_SLAB as u32
    }

    /// The slot's first byte within its slab.
    #[must_use]
    pub fn byte_in_slab(self) -> u32 {
        self.within() * EXTENT_BYTES as u32
    }
}

/// A 2 MiB extent of the device's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentIndex(pub u32);

/// A number of bytes, printed with a binary unit (`1.5 GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ByteLen(pub u64);

impl fmt::Display for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut value = self.0 as f64;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if value.fract() == 0.0 {
            write!(f, "{value:.0} {}", UNITS[unit])
        } else {
            write!(f, "{value:.1} {}", UNITS[unit])
        }
    }
}

impl std::str::FromStr for ByteLen {
    type Err = String;

    /// Parses `512M`, `1G`, `64MiB`, `4096`: a decimal integer and an optional
    /// binary unit K, M, G or T (with or without `iB`).
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = match unit {
            "" | "B" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            "T" | "TiB" => 40,
            _ => {
                return Err(format!(
                    "size {text:?}: write a whole number and K, M, G or T, e.g. 512M"
                ));
            }
        };
        let number: u64 = number.parse().map_err(|_| {
            format!("size {text:?}: write a whole number and K, M, G or T, e.g. 512M")
        })?;
        number.checked_mul(1 << shift).map(ByteLen).ok_or_else(|| {
            format!("size {text:?} does not fit in 64 bits; the largest is 16777215T")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_binary_units_and_refuse_the_rest() {
        assert_eq!("1G".parse(), Ok(ByteLen(1 << 30)));
        assert_eq!("64MiB".parse(), Ok(ByteLen(64 << 20)));
        assert_eq!("4096".parse(), Ok(ByteLen(4096)));
        for bad in ["", "G", "1.5G", "-1", "1 G", "1g", "1MB", "99999999999999T", "0x10"] {
            assert!(bad.parse::<ByteLen>().is_err(), "{bad:?} must not parse");
        }
    }

    #[test]
    fn sizes_print_with_binary_units() {
        assert_eq!(ByteLen(0).to_string(), "0 B");
        assert_eq!(ByteLen(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(ByteLen(64 << 20).to_string(), "64 MiB");
    }

    #[test]
    fn a_slot_knows_its_slab_and_its_byte() {
        let slot = SlotIndex::new(SlabIndex(3), 5);
        assert_eq!((slot.slab(), slot.within()), (SlabIndex(3), 5));
        assert_eq!(slot.byte_in_slab() as usize, 5 * EXTENT_BYTES);
    }
}
