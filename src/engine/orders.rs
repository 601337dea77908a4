// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the keeper can be told, whether it can be done, and how far it is.

use super::error::{Error, Kind, Result};
use super::units::{ByteLen, SLAB_BYTES};

/// How much fast memory the store may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Over all fast tiers, in their declared order: the first is filled first,
    /// the last gives back first.
    Total(ByteLen),
    /// For each fast tier, in declared order.
    Each(Vec<ByteLen>),
}

/// What the keeper is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// How much may be held; a part of a slab (64 MiB) is not held.
    pub targets: Targets,
    /// Bytes of each fast tier's memory left to others.
    pub reserve: ByteLen,
    /// Close each tier whose target is 0 once nothing of it is held. It is
    /// opened again when its target rises.
    pub close: bool,
}

/// What orders are judged by, for one fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding<'a> {
    /// Its name.
    pub name: &'a str,
    /// Slabs it holds.
    pub held_slabs: u32,
    /// Slabs it could ever hold.
    pub max_slabs: u32,
}

fn bytes(slabs: u64) -> ByteLen {
    ByteLen(slabs * SLAB_BYTES as u64)
}

/// Slabs for each fast tier, or why the orders cannot be followed, with the
/// arithmetic. Nothing was changed then.
///
/// `Invalid`: more than a tier can hold, or not one target for each tier.
/// `NoSpace`: without a spill there is no place but the memory held now.
pub fn check_orders(orders: &Orders, fast: &[Holding<'_>], has_spill: bool) -> Result<Vec<u32>> {
    let slabs = |bytes: ByteLen| bytes.0 / SLAB_BYTES as u64;
    let able: u64 = fast.iter().map(|tier| u64::from(tier.max_slabs)).sum();
    let targets: Vec<u32> = match &orders.targets {
        Targets::Total(total) if slabs(*total) > able => {
            return Err(Error::new(
                Kind::Invalid,
                format!("a target of {total}: the fast tiers can hold {} at most", bytes(able)),
            )
            .with_hint("ask for less, or raise the tier's size and start anew"));
        }
        Targets::Total(total) => {
            let mut left = slabs(*total);
            fast.iter()
                .map(|tier| {
                    let here = left.min(tier.max_slabs.into());
                    left -= here;
                    here as u32
                })
                .collect()
        }
        Targets::Each(each) if each.len() != fast.len() => {
            return Err(Error::new(
                Kind::Invalid,
                format!("{} targets for {} fast tiers", each.len(), fast.len()),
            )
            .with_hint("give one target for each fast tier, in declared order"));
        }
        Targets::Each(each) => each
            .iter()
            .zip(fast)
            .map(|(target, tier)| {
                if slabs(*target) > tier.max_slabs.into() {
                    return Err(Error::new(
                        Kind::Invalid,
                        format!(
                            "a target of {target}: tier {} can hold {} at most",
                            tier.name,
                            bytes(tier.max_slabs.into())
                        ),
                    )
                    .with_hint("ask for less, or raise the tier's size and start anew"));
                }
                Ok(slabs(*target) as u32)
            })
            .collect::<Result<_>>()?,
    };
    if has_spill {
        return Ok(targets);
    }
    for (target, tier) in targets.iter().zip(fast) {
        if *target < tier.held_slabs {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "a target of {} for tier {}: it holds {}, all of it promised to the device, \
                     and there is no spill that could take {}",
                    bytes(u64::from(*target)),
                    tier.name,
                    bytes(tier.held_slabs.into()),
                    bytes(u64::from(tier.held_slabs - target))
                ),
            )
            .with_hint("configure [spill], or switch the swap off to free the memory"));
        }
    }
    Ok(targets)
}

/// Whether the orders are carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// They are. Promotion and tidying may go on in the background.
    AtRest,
    /// Memory is being given back, or pages leave a faulty place.
    Working,
    /// Something is in the way, in a sentence. It is tried again.
    Stuck(String),
}

/// One fast tier on the way to its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierProgress {
    /// Its position in the store's list.
    pub tier: usize,
    /// Its name.
    pub name: String,
    /// False: its device is closed.
    pub is_open: bool,
    /// Slabs held now.
    pub held_slabs: u32,
    /// Slabs that may be held.
    pub target_slabs: u32,
    /// Written pages in the slabs that must still leave.
    pub pages_over_target: u64,
    /// Slabs given back since the orders.
    pub released_slabs: u64,
    /// Extents that left the tier, or changed their slab, since the orders.
    pub moved_extents: u64,
    /// Bytes copied for them.
    pub moved_bytes: u64,
}

/// How far the keeper is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which orders this is about, counted from 1: the start's own.
    pub order: u64,
    /// In a word.
    pub state: State,
    /// Each fast tier.
    pub tiers: Vec<TierProgress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: u64 = SLAB_BYTES as u64;
    const FAST: [Holding<'static>; 2] = [
        Holding { name: "cuda:0", held_slabs: 2, max_slabs: 4 },
        Holding { name: "cuda:1", held_slabs: 3, max_slabs: 8 },
    ];

    fn orders(targets: Targets) -> Orders {
        Orders { targets, reserve: ByteLen(0), close: false }
    }

    #[test]
    fn a_total_fills_the_first_device_first() {
        let slabs =
            |total| check_orders(&orders(Targets::Total(ByteLen(total))), &FAST, true).unwrap();
        assert_eq!(slabs(0), [0, 0]);
        assert_eq!(slabs(3 * SLAB + 1), [3, 0]);
        assert_eq!(slabs(6 * SLAB), [4, 2]);
        assert_eq!(slabs(12 * SLAB), [4, 8]);
    }

    #[test]
    fn more_than_there_is_is_refused_with_the_most() {
        let too_much = [
            Targets::Total(ByteLen(13 * SLAB)),
            Targets::Each(vec![ByteLen(5 * SLAB), ByteLen(0)]),
            Targets::Each(vec![ByteLen(0)]),
        ];
        for (targets, part) in too_much.into_iter().zip(["768 MiB at most", "cuda:0", "1 targets"])
        {
            let error = check_orders(&orders(targets), &FAST, true).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn without_a_spill_what_is_held_stays_held() {
        let each = |a, b| orders(Targets::Each(vec![ByteLen(a * SLAB), ByteLen(b * SLAB)]));
        assert_eq!(check_orders(&each(2, 3), &FAST, false).unwrap(), [2, 3]);
        let error = check_orders(&each(4, 1), &FAST, false).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        for part in ["64 MiB", "cuda:1", "holds 192 MiB", "take 128 MiB"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(check_orders(&each(4, 1), &FAST, true).unwrap(), [4, 1]);
    }
}
