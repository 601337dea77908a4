// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's thread over real tiers: orders from outside, its bell, and a
//! fast tier that is lost. Nothing here depends on how long anything takes.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::*;
use crate::engine::index::Index;
use crate::engine::io::{BlockIo, Command, Finished};
use crate::engine::orders::Targets;
use crate::engine::session::Session;
use crate::engine::store::TierSetup;
use crate::engine::tier::{HostMemory, Tier};
use crate::engine::units::{PAGE_BYTES, SLAB_BYTES};
use crate::host::handover;
use crate::runtime::hand_over::{Connections, hand_over};
use crate::runtime::holder::custody::Custody;
use crate::runtime::holder::message::{self, Message};
use crate::tier::fault::{FaultTier, Faults};
use crate::tier::ram::{Pinning, RamTier};

const EXTENTS: u32 = 80;
const PAGE: u32 = PAGE_BYTES as u32;

/// Two fast tiers of two slabs and a spill of three, all of them RAM, the fast
/// ones able to fail.
struct House {
    store: Arc<Store>,
    keeper: Keeper,
    faults: [Arc<Faults>; 2],
    session: Session,
    memory: Arc<Arena>,
    begun: Instant,
}

fn ram(slabs: u32) -> RamTier {
    RamTier::new(slabs, Pinning::Pageable, Box::new(|| Ok(u64::MAX)))
}

fn orders(slabs: [u64; 2]) -> Orders {
    let bytes = slabs.map(|slabs| ByteLen(slabs * SLAB_BYTES as u64));
    Orders { targets: Targets::Each(bytes.to_vec()), reserve: ByteLen(0), close: true }
}

impl House {
    fn new() -> Self {
        let faults = [Arc::<Faults>::default(), Arc::default()];
        let fast = faults.iter().map(|faults| TierSetup {
            tier: Arc::new(FaultTier::new(ram(2), Arc::clone(faults))),
            role: Role::Fast,
            deadline: None,
        });
        let spill: Arc<dyn Tier> = Arc::new(ram(3));
        let spill = TierSetup { tier: spill, role: Role::Spill, deadline: None };
        let waker = Arc::new(EventWaker::new().unwrap());
        let store = Store::new(Index::new(EXTENTS), fast.chain([spill]).collect(), true)
            .unwrap()
            .with_keeper(Arc::clone(&waker) as Arc<dyn Wake>);
        for (tier, slabs) in [(0, 2), (1, 2), (2, 3)] {
            store.hold_slabs(tier, slabs).unwrap();
        }
        let store = Arc::new(store);
        let memory = Arc::new(Arena::new(1 << 20, Lock::None).unwrap());
        let session = Session::new(
            Arc::clone(&store),
            Arc::clone(&memory) as Arc<dyn HostMemory>,
            PAGE,
            Arc::new(EventWaker::new().unwrap()),
        )
        .unwrap();
        let begun = Instant::now();
        let mut house = Self {
            keeper: Keeper::start(&store, waker, &orders([2, 2]), Lock::None).unwrap(),
            store,
            faults,
            session,
            memory,
            begun,
        };
        for page in House::pages() {
            assert!(house.ask(Command::Write, page).is_ok());
        }
        house
    }

    /// One page of each extent.
    fn pages() -> impl Iterator<Item = u64> {
        (0..u64::from(EXTENTS)).map(|extent| extent * 512 + extent)
    }

    /// One request from start to end; the checksum of its memory.
    fn ask(&mut self, command: Command, page: u64) -> Result<u32, ()> {
        let ticket = self.session.reserve(PAGE).unwrap();
        self.memory.zero(ticket.host, PAGE);
        self.session.start(ticket.token, command, page * u64::from(PAGE), PAGE.into());
        let mut finished: Vec<Finished> = Vec::with_capacity(256);
        while finished.is_empty() {
            self.session.drive(self.begun.elapsed(), &mut finished);
        }
        let sum = self.memory.crc32c(ticket.host, PAGE);
        self.session.release(ticket.token);
        finished[0].result.map(|()| sum).map_err(|_| ())
    }

    /// Waits on the bell alone until these orders are carried out or stuck.
    fn wait(&self, order: u64) -> Progress {
        loop {
            let progress = self.keeper.progress();
            assert_ne!(progress.state, State::Stuck("the keeper panicked".to_owned()));
            if progress.order == order && progress.state != State::Working {
                return progress;
            }
            let mut fds = [PollFd::new(&**self.keeper.bell(), PollFlags::IN)];
            poll(&mut fds, None).unwrap();
            self.keeper.bell().clear();
        }
    }

    fn used(&self) -> Vec<u32> {
        self.store.tiers().iter().map(|slots| slots.count().used).collect()
    }
}

#[test]
fn orders_are_carried_out_and_the_bell_says_when() {
    let mut house = House::new();
    let order = house.keeper.give(&orders([0, 0])).unwrap();
    let progress = house.wait(order);
    assert_eq!(progress.state, State::AtRest);
    assert!(progress.tiers.iter().all(|tier| tier.held_slabs == 0));
    assert_eq!(house.used(), [0, 0, EXTENTS]);
    for page in House::pages() {
        assert!(house.ask(Command::Read, page).is_ok());
    }
    let order = house.keeper.give(&orders([2, 1])).unwrap();
    assert_eq!(house.wait(order).state, State::AtRest);
    let refused = house.keeper.give(&orders([3, 0])).unwrap_err();
    assert!(refused.to_string().contains("128 MiB at most"), "{refused}");
    assert_eq!(house.keeper.progress().order, order);
}

#[test]
fn the_loss_of_one_of_two_fast_tiers_is_the_loss_of_its_own_pages_only() {
    let mut house = House::new();
    assert_eq!(house.used(), [64, 16, 0]);
    house.faults[0].fail_every.store(1, Ordering::Relaxed);
    let lost: Vec<bool> =
        House::pages().map(|page| house.ask(Command::Read, page).is_err()).collect();
    assert_eq!(lost.iter().filter(|lost| **lost).count(), 64);
    assert!(house.store.tiers()[0].is_faulty() && !house.store.tiers()[1].is_faulty());
    // Written again, all of them live on elsewhere.
    for page in House::pages() {
        assert!(house.ask(Command::Write, page).is_ok());
    }
    for page in House::pages() {
        assert!(house.ask(Command::Read, page).is_ok());
    }
    assert_eq!(house.used()[0], 0);
}

#[test]
fn a_keeper_that_pauses_does_nothing_and_goes_on_with_its_orders() {
    let mut house = House::new();
    assert!(house.keeper.pause(Duration::from_secs(60)));
    let held = house.keeper.progress().order;
    let order = house.keeper.give(&orders([0, 0])).unwrap();
    // What holds from now on is told, although it has not come to it.
    let targets = |house: &House| -> Vec<u32> {
        house.keeper.progress().tiers.iter().map(|tier| tier.target_slabs).collect()
    };
    assert_eq!(targets(&house), [0, 0]);
    // Whatever rings.
    for page in House::pages() {
        assert!(house.ask(Command::Write, page).is_ok());
    }
    assert!(house.keeper.pause(Duration::from_secs(60)), "it pauses already");
    assert_eq!((house.keeper.progress().order, house.used()), (held, vec![64, 16, 0]));
    assert!(!house.keeper.is_at_rest());
    house.keeper.go_on();
    assert_eq!(house.wait(order).state, State::AtRest);
    assert!(house.keeper.is_at_rest());
    assert_eq!(house.used(), [0, 0, EXTENTS]);
    // A thread that has ended does nothing, either.
    house.keeper.stop();
    assert!(house.keeper.pause(Duration::ZERO));
}

/// Connections whose holder dies while they end.
struct Orphaned {
    holder: Option<std::os::fd::OwnedFd>,
    stands: bool,
}

impl Connections for Orphaned {
    fn stand_still(&mut self) {
        self.stands = true;
        self.holder = None;
    }

    fn go_on(&mut self) -> Result<()> {
        self.stands = false;
        Ok(())
    }
}

#[test]
fn a_hand_over_that_fails_at_any_point_leaves_a_keeper_that_works() {
    let mut house = House::new();
    let nobody = Custody::unheld();
    let mut connections = Orphaned { holder: None, stands: false };
    let error = hand_over("told", &nobody, &house.keeper, &mut connections).unwrap_err();
    assert!(error.to_string().contains("no holder"), "{error}");
    let (ours, theirs) = handover::pair().unwrap();
    let held = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut record = [0; message::BYTES];
            assert!(handover::wait_readable(theirs.as_fd(), Duration::from_secs(60)).unwrap());
            handover::receive(theirs.as_fd(), &mut record).unwrap();
            let all = Message::new(message::Kind::All);
            handover::send(theirs.as_fd(), &all.encode(), None).unwrap();
        });
        Custody::held(ours).unwrap().0
    });
    connections.holder = Some(theirs);
    let error = hand_over("told", &held, &house.keeper, &mut connections).unwrap_err();
    assert!(error.to_string().contains("the holder ended meanwhile"), "{error}");
    assert!(!connections.stands, "they go on");
    let order = house.keeper.give(&orders([0, 0])).unwrap();
    assert_eq!(house.wait(order).state, State::AtRest);
    assert_eq!(house.used(), [0, 0, EXTENTS]);
    for page in House::pages() {
        assert!(house.ask(Command::Read, page).is_ok());
    }
}
