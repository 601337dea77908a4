// SPDX-License-Identifier: GPL-2.0-only
//! Traces by name. Each is the same for the same seed, and says how much more
//! memory it wants than there is.

use clap::ValueEnum;

use crate::trace::{BLOCK_PAGES, Class, Random, Trace, Zipf};

/// Chunks of the simulated GPU: 256 MiB.
pub const CHUNKS: u32 = 128;
const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Reads all of 1.5 times the memory from begin to end, four times
    Sequential,
    /// Touches each 40th page of 1.2 times the memory, four times
    Strided,
    /// Touches each third page of 8 MiB, one at a time
    ThirdPage,
    /// Reads blocks of 1.5 times the memory, of which the processor takes every other one back
    HandBack,
    /// Touches single pages anywhere in twice the memory
    Random,
    /// Touches 16 pages in blocks of which few are popular, in twice the memory
    Zipf,
    /// Decodes tokens with a mixture of experts, 1.84 times the memory
    Moe,
    /// Trains a graph network in epochs, 1.34 times the memory
    Gcn,
    /// Searches vectors in inverted lists, 1.3 times the memory
    Ivf,
    /// A guaranteed tenant's working set beside a preemptible one's scan
    TwoTenants,
    /// Two guaranteed working sets, a preemptible scan, a preemptible random walk
    FourTenants,
    /// Short jobs of a guaranteed tenant beside long ones of four preemptible ones
    Tasks,
}

impl Workload {
    /// Its trace.
    pub fn trace(self, gpu: u32, seed: u64, cgroups: &[(u16, u64)]) -> Trace {
        let mut trace = Trace::new(gpu, CHUNKS, cgroups);
        let mut random = Random::new(seed);
        match self {
            Self::Sequential => sequential(&mut trace),
            Self::Strided => strided(&mut trace),
            Self::ThirdPage => third_page(&mut trace),
            Self::HandBack => hand_back(&mut trace),
            Self::Random => uniform(&mut trace, &mut random),
            Self::Zipf => zipf(&mut trace, &mut random),
            Self::Moe => moe(&mut trace, &mut random),
            Self::Gcn => gcn(&mut trace, &mut random),
            Self::Ivf => ivf(&mut trace, &mut random),
            Self::TwoTenants => tenants(&mut trace, &mut random, 2),
            Self::FourTenants => tenants(&mut trace, &mut random, 4),
            Self::Tasks => tasks(&mut trace, &mut random),
        }
        trace
    }
}

fn blocks(percent: u64) -> u64 {
    u64::from(CHUNKS) * percent / 100
}

fn sequential(trace: &mut Trace) {
    let pages = blocks(150) * BLOCK_PAGES;
    trace.tenant(0, Class::Normal, blocks(150));
    for _ in 0..4 {
        for first in (0..pages).step_by(32) {
            trace.access(0, first, 32, false);
            trace.wait(4 * US);
        }
    }
}

fn strided(trace: &mut Trace) {
    let pages = blocks(120) * BLOCK_PAGES;
    trace.tenant(0, Class::Normal, blocks(120));
    for _ in 0..4 {
        for page in (0..pages).step_by(40) {
            trace.access(0, page, 1, true);
            trace.wait(2 * US);
        }
    }
}

fn third_page(trace: &mut Trace) {
    trace.tenant(0, Class::Normal, 4);
    for page in (0..4 * BLOCK_PAGES).step_by(3) {
        trace.access(0, page, 1, false);
        trace.wait(US);
    }
}

fn hand_back(trace: &mut Trace) {
    trace.tenant(0, Class::Normal, blocks(150));
    for _ in 0..2 {
        for block in 0..blocks(150) {
            trace.access(0, block * BLOCK_PAGES, BLOCK_PAGES, true);
            trace.wait(50 * US);
            if block % 2 == 0 {
                trace.take(0, block * BLOCK_PAGES, BLOCK_PAGES);
            }
        }
    }
}

fn uniform(trace: &mut Trace, random: &mut Random) {
    trace.tenant(0, Class::Normal, blocks(200));
    for _ in 0..20_000 {
        trace.access(0, random.below(blocks(200) * BLOCK_PAGES), 1, random.below(4) == 0);
        trace.wait(2 * US);
    }
}

/// Which block has which popularity: neighbours have nothing in common.
fn shuffled(random: &mut Random, count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

fn zipf(trace: &mut Trace, random: &mut Random) {
    let order = shuffled(random, blocks(200));
    let ranks = Zipf::new(blocks(200));
    trace.tenant(0, Class::Normal, blocks(200));
    for _ in 0..12_000 {
        let block = order[ranks.pick(random) as usize];
        let page = random.below(BLOCK_PAGES / 16) * 16;
        trace.access(0, block * BLOCK_PAGES + page, 16, random.below(4) == 0);
        trace.wait(3 * US);
    }
}

/// 12 layers: for each token all of a layer's attention, then 2 of its 16
/// experts, some more popular than others.
fn moe(trace: &mut Trace, random: &mut Random) {
    const LAYERS: u64 = 12;
    const EXPERTS: u64 = 16;
    let total = blocks(184);
    let layer_blocks = total / LAYERS;
    let expert_pages = (layer_blocks - 3) * BLOCK_PAGES / EXPERTS;
    let ranks = Zipf::new(EXPERTS);
    let popular: Vec<Vec<u64>> = (0..LAYERS).map(|_| shuffled(random, EXPERTS)).collect();
    trace.tenant(0, Class::Normal, total);
    for _ in 0..40 {
        for layer in 0..LAYERS {
            let base = layer * layer_blocks * BLOCK_PAGES;
            for first in (0..3 * BLOCK_PAGES).step_by(256) {
                trace.access(0, base + first, 256, false);
                trace.wait(10 * US);
            }
            for _ in 0..2 {
                let expert = popular[layer as usize][ranks.pick(random) as usize];
                let first = base + 3 * BLOCK_PAGES + expert * expert_pages;
                for part in (0..expert_pages).step_by(128) {
                    trace.access(0, first + part, 128.min(expert_pages - part), false);
                    trace.wait(5 * US);
                }
            }
        }
    }
}

/// Each epoch reads the edges in order and gathers features at random, some
/// vertices having most of the edges; then it writes the activations.
fn gcn(trace: &mut Trace, random: &mut Random) {
    let total = blocks(134);
    let edges = total * 30 / 100;
    let features = total * 60 / 100;
    let activations = total - edges - features;
    let ranks = Zipf::new(features * 32);
    trace.tenant(0, Class::Normal, total);
    for _ in 0..4 {
        for first in (0..edges * BLOCK_PAGES).step_by(128) {
            trace.access(0, first, 128, false);
            for _ in 0..8 {
                let row = ranks.pick(random) * 16;
                trace.access(0, edges * BLOCK_PAGES + row, 4, false);
            }
            trace.wait(20 * US);
        }
        for first in (0..activations * BLOCK_PAGES).step_by(128) {
            trace.access(0, (edges + features) * BLOCK_PAGES + first, 128, true);
            trace.wait(10 * US);
        }
    }
}

/// Each query reads the centroids, then scans 8 of 200 lists, popular ones more often.
fn ivf(trace: &mut Trace, random: &mut Random) {
    let total = blocks(130);
    let list_pages = (total - 4) * BLOCK_PAGES / 200;
    let ranks = Zipf::new(200);
    let order = shuffled(random, 200);
    trace.tenant(0, Class::Normal, total);
    for _ in 0..150 {
        trace.access(0, 0, 4 * BLOCK_PAGES, false);
        trace.wait(50 * US);
        for _ in 0..8 {
            let list = order[ranks.pick(random) as usize];
            let first = 4 * BLOCK_PAGES + list * list_pages;
            for part in (0..list_pages).step_by(64) {
                trace.access(0, first + part, 64.min(list_pages - part), false);
                trace.wait(4 * US);
            }
        }
    }
}

/// Even tenants are guaranteed and come back to what they have, odd ones are
/// preemptible and walk over more than there is.
fn tenants(trace: &mut Trace, random: &mut Random, count: u16) {
    let guaranteed = blocks(100) * 60 / 100 / u64::from(count / 2);
    let ranks = Zipf::new(guaranteed);
    let walk = blocks(120);
    for tenant in 0..count {
        if tenant % 2 == 0 {
            trace.tenant(tenant, Class::Guaranteed, guaranteed);
        } else {
            trace.tenant(tenant, Class::Preemptible, walk);
        }
    }
    for turn in 0..4000u64 {
        for tenant in 0..count {
            if tenant % 2 == 0 {
                let block = ranks.pick(random);
                let page = random.below(BLOCK_PAGES / 16) * 16;
                trace.access(tenant, block * BLOCK_PAGES + page, 16, false);
            } else if tenant == 1 {
                trace.access(tenant, turn * 64 % (walk * BLOCK_PAGES), 64, true);
            } else {
                trace.access(tenant, random.below(walk * BLOCK_PAGES), 1, true);
            }
            trace.wait(5 * US);
        }
    }
}

fn tasks(trace: &mut Trace, random: &mut Random) {
    trace.tenant(0, Class::Guaranteed, 0);
    for tenant in 1..=4 {
        trace.tenant(tenant, Class::Preemptible, 0);
    }
    for tenant in [1, 2, 3, 4, 0] {
        trace.task(tenant, u32::from(tenant), 0);
        // As CUDA does before the first kernel.
        trace.timeslice(tenant, u32::from(tenant), 0, 2048);
    }
    for turn in 0..200u64 {
        trace.submit(0, 0, 0, 500 * US + random.below(500) * US);
        if turn % 10 == 0 {
            for tenant in 1..=4u16 {
                trace.submit(tenant, u32::from(tenant), 0, 40 * MS);
            }
        }
        trace.wait(20 * MS);
    }
    trace.wait(4000 * MS);
    trace.tick();
    for tenant in 0..=4 {
        trace.destroy(tenant, u32::from(tenant), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_the_same_for_the_same_seed_and_another_for_another() {
        for workload in [Workload::Zipf, Workload::Moe, Workload::Gcn, Workload::FourTenants] {
            let bytes = |seed| workload.trace(0, seed, &[]).bytes();
            assert_eq!(bytes(1), bytes(1), "{workload:?}");
            assert_ne!(bytes(1), bytes(2), "{workload:?}");
        }
    }

    #[test]
    fn a_third_page_trace_touches_683_pages() {
        // One record for the GPU, one for the tenant, one for its memory.
        assert_eq!(Workload::ThirdPage.trace(0, 0, &[]).bytes().len(), 32 * (3 + 683));
    }
}
