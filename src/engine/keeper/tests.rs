// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decision by itself: rules one by one, then a model of tiers that does
//! what it is told, until it comes to rest.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

const SLAB: u64 = SLAB_BYTES as u64;

fn facts(held: u32, used: u32, empty: u32) -> TierFacts {
    TierFacts {
        count: PoolCount { held, used, empty, free: held * 32 - used, ..PoolCount::default() },
        target_slabs: 10,
        available_bytes: None,
        reserve_bytes: 0,
        health: Health::Well,
        is_open: true,
        is_waiting: false,
    }
}

#[derive(Default)]
struct Known {
    sparsest: Option<(u32, u32)>,
    lightest: Option<u32>,
    quarantined: Option<u32>,
    hottest: Option<ExtentIndex>,
}

impl Survey for Known {
    fn sparsest(&self, _: usize) -> Option<(u32, u32)> {
        self.sparsest
    }
    fn lightest(&self, _: usize) -> Option<u32> {
        self.lightest
    }
    fn quarantined(&self, _: usize) -> Option<u32> {
        self.quarantined
    }
    fn hottest(&self) -> Option<ExtentIndex> {
        self.hottest
    }
}

fn step(tiers: &[TierFacts], known: &Known) -> Step {
    next(&Facts { tiers, has_spill: true, close: false }, known)
}

fn alone(tier: TierFacts) -> Step {
    step(&[tier], &Known::default())
}

#[test]
fn slabs_are_taken_ahead_of_need_up_to_the_target() {
    assert_eq!(alone(facts(0, 0, 0)), Step::Take(0));
    assert_eq!(alone(facts(2, 40, 0)), Step::Take(0));
    assert_eq!(alone(facts(2, 20, 0)), Step::Rest);
    assert_eq!(alone(facts(10, 320, 0)), Step::Rest);
    assert_eq!(alone(TierFacts { is_waiting: true, ..facts(0, 0, 0) }), Step::Rest);
    assert_eq!(alone(TierFacts { health: Health::Faulty, ..facts(0, 0, 0) }), Step::Rest);
}

#[test]
fn the_first_tier_is_filled_before_the_next_is_touched() {
    let full = facts(10, 320, 0);
    assert_eq!(step(&[facts(2, 20, 0), facts(0, 0, 0)], &Known::default()), Step::Rest);
    assert_eq!(step(&[full, facts(0, 0, 0)], &Known::default()), Step::Take(1));
    let broken = TierFacts { health: Health::Faulty, ..facts(0, 0, 0) };
    assert_eq!(step(&[broken, facts(0, 0, 0)], &Known::default()), Step::Take(1));
}

#[test]
fn the_last_tier_gives_back_first() {
    let over = |target_slabs| TierFacts { target_slabs, ..facts(4, 100, 1) };
    assert_eq!(step(&[over(1), over(1)], &Known::default()), Step::Release(1));
    assert_eq!(step(&[over(1), over(4)], &Known::default()), Step::Release(0));
}

#[test]
fn the_reserve_is_never_touched_and_is_given_back_when_others_touch_it() {
    let tight = |available_bytes| TierFacts {
        reserve_bytes: 1 << 30,
        available_bytes: Some(available_bytes),
        ..facts(2, 40, 0)
    };
    let known = Known { lightest: Some(1), ..Known::default() };
    assert_eq!(alone(tight((1 << 30) + 2 * SLAB - 1)), Step::Rest);
    assert_eq!(alone(tight((1 << 30) + 2 * SLAB)), Step::Take(0));
    assert_eq!(step(&[tight(1 << 30)], &known), Step::Rest);
    assert_eq!(step(&[tight((1 << 30) - 1)], &known), Step::Evacuate(0, 1));
    assert_eq!(tight((1 << 30) - SLAB - 1).cap(), 0);
}

#[test]
fn above_the_target_empty_slabs_go_then_extents_are_packed_then_the_lightest_slab_leaves() {
    let known = Known { sparsest: Some((3, 2)), lightest: Some(5), ..Known::default() };
    let over = |used, empty| TierFacts { target_slabs: 2, ..facts(4, used, empty) };
    assert_eq!(step(&[over(60, 1)], &known), Step::Release(0));
    assert_eq!(step(&[over(60, 0)], &known), Step::Empty(0, 3));
    // 30 of the 31 free slots are the sparsest slab's own.
    assert_eq!(step(&[over(97, 0)], &known), Step::Evacuate(0, 5));
    assert_eq!(step(&[over(96, 0)], &known), Step::Empty(0, 3));
    let broken = TierFacts { health: Health::Faulty, ..over(60, 0) };
    assert_eq!(step(&[broken], &known), Step::Evacuate(0, 5));
}

#[test]
fn pages_leave_a_faulty_tier_and_a_quarantined_slab_while_the_target_stays() {
    let known = Known { lightest: Some(1), quarantined: Some(2), ..Known::default() };
    let broken = TierFacts { health: Health::Faulty, ..facts(4, 10, 0) };
    assert_eq!(step(&[broken], &known), Step::Evacuate(0, 1));
    let mut damaged = facts(4, 40, 0);
    damaged.count.quarantined = 1;
    assert_eq!(step(&[damaged], &known), Step::Evacuate(0, 2));
    let lost = TierFacts { health: Health::Lost, ..broken };
    assert_eq!(step(&[lost], &known), Step::Rest, "nobody can read what it has");
    assert_eq!(step(&[TierFacts { target_slabs: 0, ..lost }], &known), Step::Rest);
    // Empty, it stays in quarantine, and goes when memory is to be given back.
    damaged.count.spent = 1;
    assert_eq!(step(&[damaged], &known), Step::Rest);
    damaged.target_slabs = 3;
    assert_eq!(step(&[damaged], &known), Step::Release(0));
}

#[test]
fn without_a_spill_nothing_is_given_back_and_nothing_taken() {
    for tier in [facts(10, 0, 10), facts(2, 60, 0), TierFacts { target_slabs: 0, ..facts(3, 5, 2) }]
    {
        let facts = Facts { tiers: &[tier], has_spill: false, close: true };
        assert_eq!(next(&facts, &Known::default()), Step::Rest);
    }
}

#[test]
fn a_sparse_slab_is_emptied_only_when_the_others_have_room() {
    let known = |used| Known { sparsest: Some((5, used)), ..Known::default() };
    assert_eq!(step(&[facts(6, 90, 0)], &known(4)), Step::Empty(0, 5));
    assert_eq!(step(&[facts(6, 90, 0)], &known(30)), Step::Rest);
}

#[test]
fn a_tier_without_a_slab_is_closed_when_told_and_opened_by_a_higher_target() {
    let known = Known::default();
    let gone = TierFacts { target_slabs: 0, ..facts(0, 0, 0) };
    let close = |tiers: &[TierFacts]| next(&Facts { tiers, has_spill: true, close: true }, &known);
    assert_eq!(close(&[gone]), Step::Close(0));
    assert_eq!(close(&[TierFacts { is_open: false, ..gone }]), Step::Rest);
    assert_eq!(close(&[TierFacts { is_waiting: true, ..gone }]), Step::Rest);
    assert_eq!(step(&[gone], &known), Step::Rest);
    let wanted = TierFacts { target_slabs: 2, is_open: false, ..gone };
    assert_eq!(close(&[wanted]), Step::Take(0));
}

#[test]
fn promotion_goes_where_room_is_well_under_the_target() {
    let known = Known { hottest: Some(ExtentIndex(7)), ..Known::default() };
    let with = |target_slabs| TierFacts { target_slabs, ..facts(2, 20, 0) };
    assert_eq!(step(&[with(2)], &known), Step::Rest);
    assert_eq!(step(&[with(3)], &known), Step::Promote(0, ExtentIndex(7)));
    assert_eq!(step(&[with(2), with(3)], &known), Step::Promote(1, ExtentIndex(7)));
    assert_eq!(step(&[with(3)], &Known::default()), Step::Rest);
}

/// Tiers of used slots per slab, memory that others share, and extents in the
/// spill of which some were read.
#[derive(Clone, Debug)]
struct Model {
    slabs: Vec<Vec<u32>>,
    targets: Vec<u32>,
    available: Vec<u64>,
    reserve: u64,
    read_in_spill: u32,
    spilled: u32,
}

struct Looking<'a>(&'a Model, Cell<u32>);

impl Survey for Looking<'_> {
    fn sparsest(&self, tier: usize) -> Option<(u32, u32)> {
        let slabs = self.0.slabs[tier].iter().enumerate().filter(|(_, used)| **used > 0);
        slabs.min_by_key(|(_, used)| **used).map(|(n, used)| (n as u32, *used))
    }
    fn lightest(&self, tier: usize) -> Option<u32> {
        self.sparsest(tier).map(|(slab, _)| slab)
    }
    fn quarantined(&self, _: usize) -> Option<u32> {
        None
    }
    fn hottest(&self) -> Option<ExtentIndex> {
        self.1.set(self.1.get() + 1);
        (self.0.read_in_spill > 0).then_some(ExtentIndex(0))
    }
}

impl Model {
    fn facts(&self) -> Vec<TierFacts> {
        (0..self.slabs.len())
            .map(|n| TierFacts {
                count: PoolCount {
                    held: self.slabs[n].len() as u32,
                    used: self.slabs[n].iter().sum(),
                    empty: self.slabs[n].iter().filter(|used| **used == 0).count() as u32,
                    free: self.slabs[n].iter().map(|used| 32 - used).sum(),
                    ..PoolCount::default()
                },
                target_slabs: self.targets[n],
                available_bytes: Some(self.available[n]),
                reserve_bytes: self.reserve,
                health: Health::Well,
                is_open: true,
                is_waiting: false,
            })
            .collect()
    }

    fn fill(&mut self, tier: usize, except: Option<usize>, mut extents: u32) -> u32 {
        for (n, used) in self.slabs[tier].iter_mut().enumerate() {
            if Some(n) != except {
                let fit = extents.min(32 - *used);
                *used += fit;
                extents -= fit;
            }
        }
        extents
    }

    /// Steps until it rests: how many, and whether memory moved both ways.
    fn settle(&mut self) -> std::result::Result<u32, TestCaseError> {
        let (mut taken, mut released) = (0, 0);
        for steps in 0..3000 {
            let facts = self.facts();
            let all = Facts { tiers: &facts, has_spill: true, close: false };
            let step = next(&all, &Looking(self, Cell::new(0)));
            match step {
                Step::Rest => {
                    for (tier, facts) in facts.iter().enumerate() {
                        prop_assert!(
                            facts.count.held <= facts.cap(),
                            "tier {tier} stays too large"
                        );
                    }
                    return Ok(steps);
                }
                Step::Take(n) => {
                    taken += 1;
                    self.slabs[n].push(0);
                    prop_assert!(self.available[n] >= self.reserve + SLAB, "into the reserve");
                    self.available[n] -= SLAB;
                }
                Step::Release(n) => {
                    released += 1;
                    let at = self.slabs[n].iter().position(|used| *used == 0).unwrap();
                    self.slabs[n].remove(at);
                    self.available[n] += SLAB;
                }
                Step::Empty(n, slab) => {
                    let extents = std::mem::take(&mut self.slabs[n][slab as usize]);
                    let left = self.fill(n, Some(slab as usize), extents);
                    prop_assert_eq!(left, 0, "emptied a slab that did not fit");
                }
                Step::Evacuate(n, slab) => {
                    let mut left = std::mem::take(&mut self.slabs[n][slab as usize]);
                    for other in (0..self.slabs.len()).filter(|other| *other != n) {
                        if facts[other].headroom() >= LOW_SLOTS {
                            left = self.fill(other, None, left);
                        }
                    }
                    self.spilled += left;
                }
                Step::Promote(n, _) => {
                    prop_assert_eq!(self.fill(n, None, 1), 0);
                    self.read_in_spill -= 1;
                    self.spilled = self.spilled.saturating_sub(1);
                }
                Step::Close(_) => prop_assert!(false, "nobody said close"),
            }
        }
        Err(TestCaseError::fail(format!("still busy: {taken} taken, {released} released")))
    }
}

fn model() -> impl Strategy<Value = Model> {
    let slabs = proptest::collection::vec(0u32..=32, 0..10);
    let tier = (slabs, 0u32..12, 0u64..20);
    (proptest::collection::vec(tier, 1..3), 0u64..6, 0u32..200).prop_map(
        |(tiers, reserve, read)| {
            Model {
                slabs: tiers.iter().map(|tier| tier.0.clone()).collect(),
                targets: tiers.iter().map(|tier| tier.1).collect(),
                // Off a whole slab, as real figures are.
                available: tiers.iter().map(|tier| tier.2 * SLAB + SLAB / 3).collect(),
                reserve: reserve * SLAB,
                read_in_spill: read,
                spilled: read,
            }
        },
    )
}

proptest! {
    /// From any state, with no requests coming in, the keeper comes to rest at
    /// or below every target and outside every reserve, and stays there.
    #[test]
    fn the_keeper_comes_to_rest(mut model in model()) {
        model.settle()?;
        prop_assert_eq!(model.settle()?, 0, "it did not stay at rest");
    }

    /// Targets that go down and up again: each time it comes to rest, and what
    /// nobody reads in the spill is left there.
    #[test]
    fn alternating_targets_do_not_oscillate(mut model in model(), low in 0u32..4) {
        let high = model.targets.clone();
        let mut rests = Vec::new();
        for _ in 0..4 {
            model.targets.fill(low);
            model.settle()?;
            model.targets.clone_from(&high);
            model.read_in_spill = 0;
            let spilled = model.spilled;
            model.settle()?;
            prop_assert!(model.spilled >= spilled, "promoted what nobody read");
            rests.push(model.slabs.iter().map(Vec::len).collect::<Vec<_>>());
        }
        prop_assert_eq!(&rests[2], &rests[3]);
    }

    /// Noise of less than a slab in what others have does not move memory.
    #[test]
    fn noise_around_the_reserve_moves_nothing(mut model in model(), noise in 0u64..SLAB) {
        model.settle()?;
        let at_rest = model.slabs.clone();
        for n in 0..model.available.len() {
            if model.available[n] >= model.reserve + noise {
                model.available[n] -= noise;
            }
        }
        model.settle()?;
        prop_assert_eq!(model.slabs, at_rest);
    }
}
