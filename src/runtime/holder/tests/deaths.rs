// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holders that die at the worst moment, and tiers that cannot hand a slab over.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::super::kept_tier::KeptTier;
use super::super::message::End;
use super::*;
use crate::engine::error::{Error, Kind as ErrorKind, Result};
use crate::engine::tier::{Lane, LaneSetup, Tier};
use crate::engine::units::SlabIndex;
use crate::tier::ram::{Pinning, RamTier};

/// A holder that takes what it is given until `is_last` says so of a record, and
/// dies without an answer to that.
fn hold_until(
    link: OwnedFd,
    is_last: impl Fn(&Message) -> bool + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut record = [0; BYTES];
        loop {
            assert!(handover::wait_readable(link.as_fd(), FOREVER).unwrap());
            let (bytes, _passed) = handover::receive(link.as_fd(), &mut record).unwrap();
            let message = Message::decode(&record[..bytes]).expect("the store lives");
            if is_last(&message) {
                return;
            }
            if message.kind == Kind::Keep {
                let mut answer = Message::about(Kind::Answer, message.role, message.number);
                answer.sequence = message.sequence;
                handover::send(link.as_fd(), &answer.encode(), None).unwrap();
            }
        }
    })
}

#[test]
fn half_of_what_a_holder_has_is_no_store() {
    let (ours, theirs) = handover::pair().unwrap();
    let dying = std::thread::spawn(move || {
        let mut record = [0; BYTES];
        assert!(handover::wait_readable(theirs.as_fd(), FOREVER).unwrap());
        handover::receive(theirs.as_fd(), &mut record).unwrap();
        let index = crate::host::shared_memory::text("test", "an index").unwrap();
        let item = Message::about(Kind::Item, Role::Index, 0);
        handover::send(theirs.as_fd(), &item.encode(), Some(index.as_fd())).unwrap();
        // It dies: neither the slabs nor the word that this was all are ever sent.
    });
    let error = Custody::held(ours).err().expect("half an inventory is refused");
    assert!(error.to_string().contains("the holder ended while it was asked"), "{error:#}");
    dying.join().unwrap();
}

#[test]
fn a_holder_that_dies_while_it_is_given_everything_is_none_and_the_next_one_gets_all() {
    let custody = Arc::new(Custody::unheld());
    let store = making(&custody, |making| making.fresh("text")).unwrap();
    page(&mut part(&store), Command::Write, 0, 7);
    let (ours, theirs) = handover::pair().unwrap();
    // Half of it: the index comes before the slabs.
    let dying = hold_until(theirs, |message| message.role == Role::Slab);
    let error = custody.take_holder(ours).unwrap_err();
    assert!(error.to_string().contains("the new holder ended"), "{error:#}");
    dying.join().unwrap();
    assert!(!custody.is_held());
    assert_eq!(page(&mut part(&store), Command::Read, 0, 0), 7);

    let (ours, theirs) = handover::pair().unwrap();
    let holder = hold(theirs, Vault::new());
    custody.take_holder(ours).unwrap();
    drop((store, custody));
    let (custody, found, _holder) = meet(holder.join().unwrap());
    let (store, _) = making(&custody, |making| making.recovered(found)).unwrap();
    assert_eq!(page(&mut part(&store), Command::Read, 0, 0), 7);
}

#[test]
fn a_holder_that_dies_during_a_hand_over_is_seen_before_the_store_ends() {
    let custody = Arc::new(Custody::unheld());
    let store = making(&custody, |making| making.fresh("text")).unwrap();
    page(&mut part(&store), Command::Write, 0, 7);
    let (ours, theirs) = handover::pair().unwrap();
    let dying = hold_until(theirs, |message| message.kind == Kind::Goodbye);
    custody.take_holder(ours).unwrap();
    // It hears that the store is about to end, and dies of all moments now.
    assert!(custody.goodbye(End::HandingOver, 0, "told to reload"));
    dying.join().unwrap();
    assert!(!custody.is_held(), "a store that ends now takes its pages along");
    // What is said to nobody is not said.
    assert!(!custody.goodbye(End::HandingOver, 0, "told to reload"));
    assert_eq!(page(&mut part(&store), Command::Read, 0, 0), 7);
}

/// RAM whose slabs cannot always be handed over.
struct Shy {
    ram: RamTier,
    refuses: Arc<AtomicBool>,
}

impl Shy {
    fn new(slabs: u32) -> (Self, Arc<AtomicBool>) {
        let refuses = Arc::new(AtomicBool::new(true));
        let ram = RamTier::new(slabs, Pinning::Pageable, Box::new(|| Ok(u64::MAX)));
        (Self { ram, refuses: Arc::clone(&refuses) }, refuses)
    }
}

impl Tier for Shy {
    fn name(&self) -> &str {
        self.ram.name()
    }

    fn max_slabs(&self) -> u32 {
        self.ram.max_slabs()
    }

    fn take(&self, slab: SlabIndex) -> Result<()> {
        self.ram.take(slab)
    }

    fn release(&self, slab: SlabIndex) -> Result<()> {
        self.ram.release(slab)
    }

    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Io, "the driver hands nothing over"));
        }
        self.ram.export(slab)
    }

    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        self.ram.import(slab, memory)
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        self.ram.lane(setup)
    }
}

#[test]
fn a_slab_that_cannot_be_handed_over_is_not_taken_and_can_be_later() {
    let (custody, _, holder) = meet(Vault::new());
    let (shy, refuses) = Shy::new(2);
    let tier = KeptTier::new(Arc::new(shy), 0, Arc::clone(&custody), None, false);
    let error = tier.take(SlabIndex(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    for part in ["slab 1 of tier ram cannot be kept", "the driver hands nothing over"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // The tier has it back: taking it anew is not taking it twice.
    refuses.store(false, Ordering::Relaxed);
    tier.take(SlabIndex(1)).unwrap();
    drop((tier, custody));
    let vault = holder.join().unwrap();
    assert_eq!(vault.iter().map(|thing| thing.number).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_new_holder_that_cannot_get_a_slab_is_none_until_it_can() {
    let custody = Arc::new(Custody::unheld());
    let (shy, refuses) = Shy::new(1);
    let tier = KeptTier::new(Arc::new(shy), 0, Arc::clone(&custody), None, false);
    // Nobody holds this store, so nothing is handed over yet.
    tier.take(SlabIndex(0)).unwrap();
    let (ours, theirs) = handover::pair().unwrap();
    let first = hold(theirs, Vault::new());
    let error = custody.take_holder(ours).unwrap_err();
    assert!(format!("{error:#}").contains("the driver hands nothing over"), "{error:#}");
    assert!(!custody.is_held(), "it lacks a slab");
    assert_eq!(first.join().unwrap().slabs(), 0);
    refuses.store(false, Ordering::Relaxed);
    let (ours, theirs) = handover::pair().unwrap();
    let second = hold(theirs, Vault::new());
    custody.take_holder(ours).unwrap();
    assert!(custody.is_held());
    drop((tier, custody));
    assert_eq!(second.join().unwrap().slabs(), 1);
}
