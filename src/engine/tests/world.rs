// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store, its sessions and its mover against a history of writes per page.
//!
//! A read may return a value unless another write began after that value was
//! acknowledged and was itself acknowledged before the read began.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use super::super::crash::Fuel;
use super::super::index::{Index, Place};
use super::super::io::{BlockIo, Command, Finished};
use super::super::mover::{JOBS, Mover, Progress, Reason};
use super::super::session::Session;
use super::super::store::{Role, Store, TierSetup, slabs_for};
use super::super::tier::{Tier, Wake};
use super::super::units::{ExtentIndex, PAGE_BYTES, PAGES_PER_EXTENT};
use super::memory_tier::{Dice, PAGE, Silent, TestTier, TierState, Words, contents, hash};

pub(super) const EXTENTS: u32 = 3;

pub(super) struct Write {
    pub(super) tag: u64,
    pub(super) began: u64,
    pub(super) acked: Option<u64>,
}

#[derive(Default)]
pub(super) struct History(pub(super) HashMap<u64, Vec<Write>>);

impl History {
    pub(super) fn of(&mut self, page: u64) -> &mut Vec<Write> {
        self.0.entry(page).or_insert_with(|| vec![Write { tag: 0, began: 0, acked: Some(0) }])
    }

    pub(super) fn may_read(&mut self, page: u64, tag: u64, began: u64) -> bool {
        let writes = self.of(page);
        writes.iter().any(|value| {
            value.tag == tag
                && !writes.iter().any(|over| {
                    over.acked.is_some_and(|acked| acked < began)
                        && value.acked.is_some_and(|acked| acked < over.began)
                })
        })
    }

    pub(super) fn being_written(&mut self, page: u64) -> bool {
        self.of(page).iter().any(|write| write.acked.is_none() && write.tag != 0)
    }
}

/// What an open request is, for the model.
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) command: Command,
    pub(super) page: u64,
    pub(super) count: u64,
    pub(super) tag: u64,
    pub(super) began: u64,
    pub(super) host: u32,
}

pub(super) struct Desk {
    pub(super) session: Session,
    pub(super) memory: Arc<Words>,
    pub(super) open: HashMap<u32, Open>,
}

pub(super) struct World {
    pub(super) fuel: Arc<Fuel>,
    pub(super) dice: Arc<Dice>,
    pub(super) tiers: Vec<Arc<TestTier>>,
    pub(super) store: Arc<Store>,
    pub(super) desks: Vec<Desk>,
    pub(super) mover: Mover,
    pub(super) history: History,
    pub(super) clock: u64,
    pub(super) now: Duration,
    /// Tiers may fail here: an error is an answer, wrong data is none.
    pub(super) may_fail: bool,
}

/// The last tier is the spill.
pub(super) fn setups(tiers: &[Arc<TestTier>]) -> Vec<TierSetup> {
    let setup = |(n, tier): (usize, &Arc<TestTier>)| {
        let is_spill = n + 1 == tiers.len();
        TierSetup {
            tier: Arc::clone(tier) as Arc<dyn Tier>,
            role: if is_spill { Role::Spill } else { Role::Fast },
            deadline: (!is_spill).then_some(Duration::from_secs(2)),
        }
    };
    tiers.iter().enumerate().map(setup).collect()
}

pub(super) fn desk(store: &Arc<Store>, tiers: &[Arc<TestTier>]) -> Desk {
    let memory = Words::new(640);
    for tier in tiers {
        *tier.memory.lock().unwrap() = Arc::clone(&memory);
    }
    let session =
        Session::new(Arc::clone(store), memory.clone(), 512 * PAGE, Arc::new(Silent)).unwrap();
    Desk { session, memory, open: HashMap::new() }
}

pub(super) fn mover(store: &Arc<Store>, tiers: &[Arc<TestTier>]) -> Mover {
    let memory = Words::new(JOBS * PAGES_PER_EXTENT);
    for tier in tiers {
        *tier.memory.lock().unwrap() = Arc::clone(&memory);
    }
    Mover::new(Arc::clone(store), memory, &(Arc::new(Silent) as Arc<dyn Wake>)).unwrap()
}

impl World {
    /// A fast tier of three slabs and a spill of one, for three extents.
    pub(super) fn new(seed: u64, desks: usize) -> Self {
        Self::with(seed, desks, EXTENTS, &[3, 1])
    }

    /// The same, with a copy of every page in the spill.
    pub(super) fn mirrored(seed: u64, desks: usize) -> Self {
        Self::made(seed, desks, EXTENTS, &[3, 1], true)
    }

    /// Tiers of so many slabs, the last of them the spill.
    pub(super) fn with(seed: u64, desks: usize, extents: u32, slabs: &[u32]) -> Self {
        Self::made(seed, desks, extents, slabs, false)
    }

    pub(super) fn made(seed: u64, desks: usize, extents: u32, slabs: &[u32], mirror: bool) -> Self {
        let fuel = Arc::<Fuel>::default();
        let dice = Arc::new(Dice(AtomicU64::new(seed)));
        let tier = |max: &u32| {
            let state = TierState {
                fuel: Arc::clone(&fuel),
                dice: Arc::clone(&dice),
                ..TierState::default()
            };
            let memory = Mutex::new(Words::new(1));
            Arc::new(TestTier { max: *max, state: Arc::new(state), memory })
        };
        let tiers: Vec<_> = slabs.iter().map(tier).collect();
        let mut index = Index::new(extents);
        index.fuel = Arc::clone(&fuel);
        let mut store = Store::new(index, setups(&tiers), true).unwrap();
        if mirror {
            store = store.with_mirror().unwrap();
        }
        let store = Arc::new(store);
        store.hold_slabs(tiers.len() - 1, slabs_for(extents)).unwrap();
        Self {
            desks: (0..desks).map(|_| desk(&store, &tiers)).collect(),
            mover: mover(&store, &tiers),
            fuel,
            dice,
            tiers,
            store,
            history: History::default(),
            clock: 1,
            now: Duration::ZERO,
            may_fail: false,
        }
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Starts a request on a desk; false: the desk is full.
    pub(super) fn start(&mut self, desk: usize, command: Command, page: u64, count: u64) -> bool {
        let began = self.tick();
        let carries = matches!(command, Command::Read | Command::Write);
        let payload = if carries { count as u32 * PAGE } else { 0 };
        let Some(ticket) = self.desks[desk].session.reserve(payload) else { return false };
        let tag = if command == Command::Write { began } else { 0 };
        if command != Command::Read {
            for page in page..page + count {
                self.history.of(page).push(Write { tag, began, acked: None });
            }
        }
        if command == Command::Write {
            for n in 0..count {
                self.desks[desk]
                    .memory
                    .put(ticket.host + n as u32 * PAGE, &contents(page + n, tag));
            }
        }
        let open = Open { command, page, count, tag, began, host: ticket.host };
        self.desks[desk].open.insert(ticket.token, open);
        let bytes = PAGE_BYTES as u64;
        self.desks[desk].session.start(ticket.token, command, page * bytes, count * bytes);
        true
    }

    /// Drives a desk and checks what finished; a crash means nothing was answered.
    pub(super) fn drive(&mut self, desk: usize) -> std::result::Result<(), TestCaseError> {
        let mut finished = Vec::with_capacity(256);
        self.now += Duration::from_millis(1);
        self.desks[desk].session.drive(self.now, &mut finished);
        for Finished { token, result } in finished {
            prop_assert!(result.is_ok() || self.may_fail, "{:?}", result);
            let ended = self.tick();
            let open = self.desks[desk].open.remove(&token).unwrap();
            for n in (0..open.count).filter(|_| result.is_ok()) {
                let page = open.page + n;
                if open.command == Command::Read {
                    let words = self.desks[desk].memory.page(open.host + n as u32 * PAGE);
                    self.check(page, &words, open.began)?;
                } else {
                    let writes = self.history.of(page);
                    let write =
                        writes.iter_mut().find(|w| w.began == open.began && w.tag == open.tag);
                    write.unwrap().acked = Some(ended);
                }
            }
            self.desks[desk].session.release(token);
        }
        Ok(())
    }

    pub(super) fn check(
        &mut self,
        page: u64,
        words: &[u64],
        began: u64,
    ) -> std::result::Result<(), TestCaseError> {
        let tag = words[0] >> 32;
        prop_assert_eq!(words, &contents(page, tag)[..], "page {} is torn", page);
        prop_assert!(
            self.history.may_read(page, tag, began),
            "page {page} reads as write {tag}, which is lost or stale"
        );
        Ok(())
    }

    /// Drives everything until nothing is open.
    pub(super) fn settle(&mut self) -> std::result::Result<(), TestCaseError> {
        for _ in 0..100_000 {
            for desk in 0..self.desks.len() {
                self.drive(desk)?;
            }
            let moving = self.mover.advance(self.now) != Progress::Idle;
            if !moving && self.desks.iter().all(|d| d.open.is_empty()) {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("requests never finish"))
    }

    /// One random step of anything but a request.
    pub(super) fn housekeeping(&mut self, what: u8) {
        let die = self.dice.roll(64) as u32;
        match what % 4 {
            0 => {
                let _ = self.store.take_slab(0).unwrap();
            }
            1 => {
                let _ = self.store.release_empty_slab(0).unwrap();
            }
            _ => {
                let place = self.store.index.place(ExtentIndex(die % EXTENTS));
                if let Some(Place { tier, slot }) = place {
                    let _ = self.mover.start(tier as usize, slot, (die / 8) as usize % 2);
                }
                let progress = self.mover.advance(self.now);
                let damaged = matches!(progress, Progress::Abandoned(_, _, Reason::Checksum));
                assert!(!damaged || self.may_fail, "nothing was damaged");
            }
        }
    }

    /// The process dies: what persists is taken over by a new one.
    pub(super) fn recover(&mut self) -> std::result::Result<(), TestCaseError> {
        self.fuel.refill();
        let survivor = self.store.index.survivor();
        for extent in (0..EXTENTS).map(ExtentIndex) {
            let place = survivor.place(extent).filter(|place| {
                // A mirror's slots are given to nobody else, marked or not.
                usize::from(place.tier) == 0 || !survivor.is_mirrored()
            });
            if let Some(Place { tier, slot }) = place {
                let pool = &self.store.tiers()[tier as usize].pool;
                let free = pool.adopt(slot.slab().0, slot.within());
                prop_assert!(!free, "extent {extent:?} is in a slot that could be given away");
            }
        }
        for tier in &self.tiers {
            // Descriptors of slabs that no entry names are closed.
            tier.state.held.lock().unwrap().clear();
        }
        let (store, torn) = Store::recover(survivor, setups(&self.tiers), true)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        for (tier, slots) in self.tiers.iter().zip(store.tiers()) {
            for slab in 0..tier.max {
                if slots.pool.used_in(slab).is_some() {
                    tier.state.held.lock().unwrap().push(slab);
                }
            }
        }
        for page in &torn {
            let is_unreadable = |(tier, ..): (usize, _, _)| {
                self.tiers[tier].state.trouble.load(Ordering::Relaxed) != 0
            };
            if page.source.is_some_and(is_unreadable) {
                store.adopt_unreadable(page);
                continue;
            }
            let words = match page.source {
                None => contents(0, 0),
                Some((tier, slab, byte)) => self.tiers[tier]
                    .state
                    .pages()
                    .get(&(slab.0, byte / PAGE))
                    .cloned()
                    .unwrap_or_else(|| vec![7; PAGE_BYTES / 8]),
            };
            store.adopt(page, hash(&words));
        }
        self.store = Arc::new(store);
        if self.store.tiers()[1].count().held == 0 {
            self.store.hold_slabs(1, 1).unwrap();
        }
        self.desks = (0..self.desks.len()).map(|_| desk(&self.store, &self.tiers)).collect();
        self.mover = mover(&self.store, &self.tiers);
        Ok(())
    }

    /// Reads every page that was ever written.
    pub(super) fn read_all(&mut self) -> std::result::Result<(), TestCaseError> {
        let mut pages: Vec<u64> = self.history.0.keys().copied().collect();
        pages.sort_unstable();
        for page in pages {
            let undefined = self.history.being_written(page);
            let began = self.tick();
            let session = &mut self.desks[0].session;
            let ticket = session.reserve(PAGE).unwrap();
            session.start(ticket.token, Command::Read, page * u64::from(PAGE), PAGE.into());
            let mut finished = Vec::with_capacity(256);
            for _ in 0..100_000 {
                session.drive(self.now, &mut finished);
                if !finished.is_empty() {
                    break;
                }
            }
            prop_assert!(!finished.is_empty(), "page {page} can never be read");
            let result = finished[0].result;
            prop_assert!(result.is_ok() || self.may_fail, "page {}: {:?}", page, result);
            session.release(ticket.token);
            let words = self.desks[0].memory.page(ticket.host);
            if !undefined && result.is_ok() {
                self.check(page, &words, began)?;
            }
        }
        Ok(())
    }
}
