// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a store whose index and slabs outlive it: a new one, or one of what a
//! dead store left with the holder.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::custody::{Custody, Source};
use super::inventory::Inventory;
use super::kept_tier::KeptTier;
use super::message::Role as Kept;
use super::openings::Openings;
use crate::engine::error::{Error, Kind};
use crate::engine::index::Index;
use crate::engine::layout::{Facts, Layout, fingerprint};
use crate::engine::orders::{Orders, Targets};
use crate::engine::recovery::{TornPage, named_slabs};
use crate::engine::store::{Role, Store, TierSetup, slabs_for};
use crate::engine::tier::{Direction, Done, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake};
use crate::engine::units::{ByteLen, PAGE_BYTES, SLAB_BYTES, SlabIndex};
use crate::host::memory::{Arena, Lock};
use crate::host::shared_memory::SharedMemory;
use crate::runtime::assembly::Plan;
use crate::tier::spill::Prepare;

/// Torn pages read at a time.
const BATCH: usize = 32;
/// How long a tier may take for a batch before its pages count as unreadable.
const BATCH_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at a lane.
const LOOK: Duration = Duration::from_micros(100);

/// What a store is made with.
pub struct Making<'a> {
    /// Its sizes and tiers.
    pub plan: &'a mut Plan,
    /// Whom it hands its memory to.
    pub custody: &'a Arc<Custody>,
    /// Prepares the spill's workers.
    pub prepare: &'a Prepare,
    /// Rung when the keeper should look.
    pub ring: Arc<dyn Wake>,
    /// What the keeper of the store before was told, if anything.
    pub told: Option<&'a Orders>,
    /// Where devices that are opened later are noted; `None`: no thread needs to
    /// be prepared for them.
    pub openings: Option<&'a Arc<Openings>>,
}

/// Pages that were being written when the store before died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Torn {
    /// They hold something, and the kernel will write them again.
    pub adopted: usize,
    /// They could not be read, and stay so until the kernel writes them again.
    pub unreadable: usize,
}

impl Making<'_> {
    /// A store with nothing in it. `config` is the text it was made for.
    pub fn fresh(self, config: &str) -> Result<Arc<Store>> {
        let tiers = self.tiers(None)?;
        let facts = Facts {
            checksums: self.plan.checksums,
            fingerprint: fingerprint(config.bytes()),
            tiers: tiers
                .iter()
                .map(|setup| (setup.tier.name().to_owned(), setup.tier.max_slabs()))
                .collect(),
        };
        let (custody, lock) = (self.custody, self.plan.lock);
        let store = self.plan.fill(&tiers, |extents| new_index(extents, &facts, custody, lock))?;
        Ok(Arc::new(store.with_keeper(self.ring)))
    }

    /// The store that `inventory` is of. Nothing of it is changed if this fails;
    /// an error of kind `Protocol` or `Invalid` says that it cannot be trusted.
    pub fn recovered(self, mut inventory: Inventory) -> Result<(Arc<Store>, Torn)> {
        let memory = inventory.index.take().context("the holder has no index")?;
        let memory = SharedMemory::map(memory, self.plan.lock)?;
        let layout = Layout::judge(memory.words(), memory.bytes())?;
        self.plan.resume(layout.extents()).map_err(distrust)?;
        let words = &memory.words()[..layout.words()];
        let index = Index::over(layout, words, memory.half_words_after(layout.words()))?;
        self.custody.note(Kept::Index, 0, Source::Descriptor(memory.share()?), memory.bytes());
        self.plan.closed = stay_closed(self.told, &index, &inventory);
        let tiers = self.tiers(inventory.spill.take())?;
        require(&index, &tiers, &inventory)?;
        let slabs: Vec<_> = inventory.slabs.keys().copied().collect();
        for ((tier, slab), memory) in inventory.slabs {
            let setup = tiers.get(tier).filter(|setup| slab < setup.tier.max_slabs());
            let setup = setup.ok_or_else(|| {
                distrust(format!("slab {slab} of tier {tier} is held, and there is none such"))
            })?;
            setup.tier.import(SlabIndex(slab), memory).map_err(|error| {
                // No verdict on the index: the next try may succeed.
                Error::new(Kind::Io, format!("slab {slab} of tier {tier}: {error}"))
            })?;
        }
        let (store, torn) = Store::recover(index, tiers, self.plan.checksums)?;
        let store = store.with_keeper(self.ring);
        for (tier, slab) in slabs {
            // Held, and named by no entry: empty.
            store.tiers()[tier].pool().open(slab);
        }
        let torn = adopt(&store, &torn, self.plan)?;
        hold_rest(&store)?;
        Ok((Arc::new(store), torn))
    }

    /// The tiers, with slabs that outlive the process; the spill's claim too.
    fn tiers(&self, spill: Option<std::os::fd::OwnedFd>) -> Result<Vec<TierSetup>> {
        let known = spill.is_some();
        let mut tiers = self.plan.tiers(self.prepare, spill)?;
        for (number, setup) in tiers.iter_mut().enumerate() {
            if setup.role == Role::Spill {
                let claim = Source::Descriptor(setup.tier.export(SlabIndex(0))?);
                if known {
                    self.custody.note(Kept::Spill, 0, claim, 0);
                } else {
                    self.custody.keep(Kept::Spill, 0, claim, 0)?;
                }
                continue;
            }
            let inner = Arc::clone(&setup.tier);
            let lock = self.plan.slabs_can_be_locked(number);
            let openings = self.openings.cloned();
            let custody = Arc::clone(self.custody);
            setup.tier = Arc::new(KeptTier::new(inner, number, custody, openings, lock));
        }
        Ok(tiers)
    }
}

/// An empty index that is kept, in place of one that was made before.
fn new_index(extents: u32, facts: &Facts, custody: &Custody, lock: Lock) -> Result<Index> {
    custody.forget(Kept::Index, 0);
    let layout = Layout::new(extents);
    let memory = SharedMemory::create("sluice-index", layout.bytes(), lock)?;
    let words = &memory.words()[..layout.words()];
    let index = Index::create(extents, facts, words, memory.half_words_after(layout.words()))?;
    let source = Source::Descriptor(memory.share()?);
    custody.keep(Kept::Index, 0, source, memory.bytes())?;
    Ok(index)
}

/// How many slabs each fast tier can hold that is not to be opened: it was told
/// to close, and nothing of it is kept. The index knows, so that nobody has to
/// ask the device, which would wake it.
pub(super) fn stay_closed(
    told: Option<&Orders>,
    index: &Index,
    held: &Inventory,
) -> Vec<Option<u32>> {
    let Some(told) = told.filter(|told| told.close) else { return Vec::new() };
    let tiers = index.facts().map(|facts| facts.tiers).unwrap_or_default();
    let stays = |(number, (_, max_slabs)): (usize, (String, u32))| {
        let nothing = |bytes: ByteLen| bytes.0 < SLAB_BYTES as u64;
        let is_unwanted = match &told.targets {
            Targets::Total(bytes) => nothing(*bytes),
            Targets::Each(each) => each.get(number).copied().is_some_and(nothing),
        };
        let is_empty = held.slabs.range((number, 0)..=(number, u32::MAX)).next().is_none();
        (is_unwanted && is_empty).then_some(max_slabs)
    };
    tiers.into_iter().enumerate().map(stays).collect()
}

/// Every slab that an entry names must be there.
fn require(index: &Index, tiers: &[TierSetup], inventory: &Inventory) -> Result<()> {
    for (tier, slab) in named_slabs(index) {
        let tier = usize::from(tier);
        let is_spill = tiers.get(tier).is_some_and(|setup| setup.role == Role::Spill);
        if !is_spill && !inventory.slabs.contains_key(&(tier, slab.0)) {
            return Err(distrust(format!(
                "the index has pages in slab {} of tier {tier}, which nobody kept",
                slab.0
            )));
        }
    }
    Ok(())
}

fn distrust(what: String) -> anyhow::Error {
    Error::new(Kind::Protocol, what).into()
}

/// Whether an error says that what is held cannot be trusted, as opposed to:
/// could not be taken over now.
#[must_use]
pub fn is_distrust(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<Error>())
        .any(|error| matches!(error.kind(), Kind::Protocol | Kind::Invalid))
}

/// Holds what a store that died while it was arming had not taken yet. With a
/// spill the keeper takes what is missing of the fast tiers.
fn hold_rest(store: &Store) -> Result<()> {
    let all = slabs_for(store.extents());
    if let Some(spill) = store.tiers().iter().position(|slots| slots.role() == Role::Spill) {
        return Ok(store.hold_slabs(spill, all)?);
    }
    let mut held: u32 = store.tiers().iter().map(|slots| slots.count().held).sum();
    for tier in 0..store.tiers().len() {
        while held < all && store.take_slab(tier)? {
            held += 1;
        }
    }
    anyhow::ensure!(held >= all, "{held} of {all} slabs could be held");
    Ok(())
}

/// Gives every torn page the checksum of what it holds.
fn adopt(store: &Store, torn: &[TornPage], plan: &Plan) -> Result<Torn> {
    let mut result = Torn::default();
    for page in torn.iter().filter(|page| page.source.is_none()) {
        store.adopt(page, 0);
        result.adopted += 1;
    }
    for tier in 0..store.tiers().len() {
        let here: Vec<_> =
            torn.iter().filter(|page| page.source.is_some_and(|(of, ..)| of == tier)).collect();
        if here.is_empty() {
            continue;
        }
        let memory = Arc::new(Arena::new(BATCH * PAGE_BYTES, plan.lock)?);
        let mut reader = Reader::new(&**store.tiers()[tier].tier(), memory)?;
        for batch in here.chunks(BATCH) {
            for (page, read) in batch.iter().zip(reader.read(batch)) {
                if let Some(checksum) = read {
                    store.adopt(page, checksum);
                    result.adopted += 1;
                } else {
                    store.adopt_unreadable(page);
                    result.unreadable += 1;
                }
            }
        }
        reader.end();
    }
    Ok(result)
}

/// Reads pages of one tier.
struct Reader {
    memory: Arc<Arena>,
    lane: Box<dyn Lane>,
}

struct Silent;

impl Wake for Silent {
    fn wake(&self) {}
}

impl Reader {
    fn new(tier: &dyn Tier, memory: Arc<Arena>) -> Result<Self> {
        let mut lane = tier.lane(LaneSetup {
            memory: Arc::clone(&memory) as Arc<dyn HostMemory>,
            depth: BATCH,
            waker: Arc::new(Silent),
        })?;
        lane.enter();
        Ok(Self { memory, lane })
    }

    /// The checksum of each page; `None`: it cannot be read.
    fn read(&mut self, pages: &[&TornPage]) -> [Option<u32>; BATCH] {
        let mut read = [None; BATCH];
        if self.lane.pending() > 0 {
            // An operation that never came back still owns its memory.
            return read;
        }
        let bytes = PAGE_BYTES as u32;
        let ops: Vec<_> = pages
            .iter()
            .zip(0..)
            .filter_map(|(page, tag)| {
                let (_, slab, offset) = page.source?;
                let direction = Direction::Read;
                Some(PageOp { tag, direction, slab, offset, host: tag * bytes, bytes })
            })
            .collect();
        self.lane.submit(&ops);
        let deadline = Instant::now() + BATCH_PATIENCE;
        let mut done = Vec::with_capacity(BATCH);
        while self.lane.pending() > 0 && Instant::now() < deadline {
            self.lane.poll(&mut done);
            for Done { tag, result } in done.drain(..) {
                if result.is_ok() {
                    read[tag as usize] = Some(self.memory.crc32c(tag * bytes, bytes));
                }
            }
            if self.lane.pending() > 0 {
                std::thread::sleep(LOOK);
            }
        }
        read
    }

    fn end(self) {
        if self.lane.pending() > 0 {
            // A tier still has the memory; it must outlive this.
            std::mem::forget(self);
        }
    }
}

/// The executable and every library that is mapped, opened anew: what the next
/// store needs to start. The executable has the role of the program.
pub fn mapped_files() -> Result<Vec<(Kept, std::fs::File)>> {
    let program = std::fs::File::open("/proc/self/exe").context("cannot open this program")?;
    let maps = std::fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let mut paths: Vec<&Path> = maps
        .lines()
        // address perms offset dev inode path
        .filter(|line| line.split_ascii_whitespace().nth(1).is_some_and(|p| p.contains('x')))
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])))
        .filter(|path| *path != own)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    // One that was replaced on disk meanwhile cannot be opened, or is another;
    // the next store would load that one as well.
    let libraries = paths.into_iter().filter_map(|path| std::fs::File::open(path).ok());
    let libraries = libraries.map(|file| (Kept::Library, file));
    Ok(std::iter::once((Kept::Program, program)).chain(libraries).collect())
}
