// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a GPU is named by a person: by number, UUID or PCI address; and what a driver
//! offers.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::units::ByteLen;

/// One GPU of this machine, as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuSelector {
    /// The n-th in the driver's own order, from 0.
    Index(u32),
    /// The driver's UUID, in the order in which it is printed.
    Uuid([u8; 16]),
    /// The PCI address, without the function, which is 0 for every GPU.
    Pci(PciAddress),
}

/// A PCI address `DDDD:BB:SS.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// The domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The slot on the bus, below 32.
    pub slot: u8,
}

/// What a selector may look like, for error messages.
pub const VALID: &str = "a GPU is named by its number (\"0\"), its UUID \
    (\"GPU-8-4-4-4-12 hex digits\") or its PCI address (\"0000:01:00.0\"); nvidia-smi -L and lspci -D show them";

impl FromStr for PciAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (slot, function) = rest.split_once('.')?;
            // The driver writes eight digits where lspci writes four.
            let domain = hex(domain, 4..=8)?;
            let bus = u8::try_from(hex(bus, 2..=2)?).ok()?;
            let slot = u8::try_from(hex(slot, 2..=2)?).ok().filter(|slot| *slot < 32)?;
            (function == "0").then_some(Self { domain, bus, slot })
        };
        parse().ok_or(VALID)
    }
}

impl FromStr for GpuSelector {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(digits) = text.strip_prefix("GPU-") {
            return uuid(digits).map(Self::Uuid).ok_or(VALID);
        }
        if text.contains(':') {
            return text.parse().map(Self::Pci);
        }
        // No sign, no blank, no leading zeros: one spelling for one GPU.
        match text.parse::<u32>() {
            Ok(number) if number.to_string() == text => Ok(Self::Index(number)),
            _ => Err(VALID),
        }
    }
}

/// A number of `digits` hexadecimal digits and nothing else.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let only_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (only_digits && digits.contains(&text.len())).then(|| u32::from_str_radix(text, 16).ok())?
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let digits = groups.concat();
    if lengths != [8, 4, 4, 4, 12] || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.slot)
    }
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(number) => number.fmt(f),
            Self::Pci(address) => address.fmt(f),
            Self::Uuid(bytes) => {
                f.write_str("GPU")?;
                for group in [0..4, 4..6, 6..8, 8..10, 10..16] {
                    f.write_str("-")?;
                    for byte in &bytes[group] {
                        write!(f, "{byte:02x}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl Serialize for GpuSelector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A device of a Vulkan driver, as a person is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// By which it can be named.
    pub number: u32,
    /// Number, model, UUID, PCI address, memory.
    pub description: String,
    /// The driver in its own words.
    pub driver: String,
    /// Bytes of the heap that can be mapped, and of the one that cannot.
    #[serde(rename = "mapped_bytes", serialize_with = "as_number")]
    pub mapped: Option<ByteLen>,
    /// Bytes of the heap of memory that only the device reaches.
    #[serde(rename = "plain_bytes", serialize_with = "as_number")]
    pub plain: Option<ByteLen>,
    /// Whether it has memory of its own.
    pub own: bool,
    /// Whether it is a program on the CPU.
    pub software: bool,
    /// Whether its memory is known to stay where it was given out.
    pub stays: bool,
}

#[expect(clippy::ref_option, reason = "serde hands fields over so")]
fn as_number<S: Serializer>(bytes: &Option<ByteLen>, to: S) -> Result<S::Ok, S::Error> {
    bytes.map(|bytes| bytes.0).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_selector() -> impl Strategy<Value = GpuSelector> {
        prop_oneof![
            any::<u32>().prop_map(GpuSelector::Index),
            any::<[u8; 16]>().prop_map(GpuSelector::Uuid),
            (any::<u32>(), any::<u8>(), 0_u8..32)
                .prop_map(|(domain, bus, slot)| GpuSelector::Pci(PciAddress { domain, bus, slot })),
        ]
    }

    proptest! {
        #[test]
        fn a_printed_selector_reads_back_as_itself(selector in any_selector()) {
            prop_assert_eq!(selector.to_string().parse(), Ok(selector));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
            let _ = text.parse::<GpuSelector>();
        }
    }

    #[test]
    fn both_spellings_of_a_pci_address_are_one_gpu() {
        assert_eq!("00000000:C1:00.0".parse::<GpuSelector>(), "0000:c1:00.0".parse());
        let upper = "GPU-9F1C0D2E-0001-4AAA-8BBB-0123456789AB".parse::<GpuSelector>().unwrap();
        assert_eq!(upper.to_string(), "GPU-9f1c0d2e-0001-4aaa-8bbb-0123456789ab");
    }

    #[test]
    fn what_names_no_gpu_is_refused() {
        for text in [
            "",
            "-1",
            "+1",
            "01",
            " 0",
            "0x0",
            "4294967296",
            "GPU-",
            "GPU-12345678",
            "gpu-0",
            "GPU-9f1c0d2e-0001-4aaa-8bbb-0123456789a",
            "GPU-9f1c0d2e00014aaa8bbb0123456789ab",
            "01:00.0",
            "0000:01:00",
            "0000:01:00.1",
            "0000:01:20.0",
            "0000:1:00.0",
            "0000:+1:00.0",
        ] {
            assert_eq!(text.parse::<GpuSelector>(), Err(VALID), "{text}");
        }
    }
}
