// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store and the one after it, with a holder's vault between them.

mod deaths;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::custody::{Custody, Source};
use super::inventory::Inventory;
use super::message::{BYTES, Kind, Message, Role};
use super::rebuild::{Making, Torn, is_distrust, stay_closed};
use super::vault::Vault;
use crate::block::nbd::waker::EventWaker;
use crate::config::TierKind;
use crate::config::schema::Durability;
use crate::engine::index::Index;
use crate::engine::io::{BlockIo, Command, Finished};
use crate::engine::layout::{Facts, Layout};
use crate::engine::orders::{Orders, Targets};
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::ByteLen;
use crate::host::handover;
use crate::host::memory::Lock;
use crate::host::shared_memory::SharedMemory;
use crate::runtime::assembly::{FastTier, Plan};
use crate::runtime::io_thread::{self, Part};

const FOREVER: Duration = Duration::from_secs(60);

/// A holder without a process: answers until its store is gone.
fn hold(link: OwnedFd, mut vault: Vault) -> JoinHandle<Vault> {
    std::thread::spawn(move || {
        let mut record = [0; BYTES];
        loop {
            assert!(handover::wait_readable(link.as_fd(), FOREVER).unwrap());
            let (bytes, passed) = handover::receive(link.as_fd(), &mut record).unwrap();
            if bytes == 0 {
                return vault;
            }
            let message = Message::decode(&record[..bytes]).unwrap();
            match message.kind {
                Kind::Hello => {
                    for thing in vault.iter().filter(|thing| thing.role != Role::Socket) {
                        let item = Message::about(Kind::Item, thing.role, thing.number);
                        handover::send(link.as_fd(), &item.encode(), Some(thing.fd())).unwrap();
                    }
                    handover::send(link.as_fd(), &Message::new(Kind::All).encode(), None).unwrap();
                }
                Kind::Keep => {
                    let mut answer = Message::about(Kind::Answer, message.role, message.number);
                    answer.sequence = message.sequence;
                    // A test may lock little: what is locked is the vault's own test.
                    let kept = vault.keep(message.role, message.number, passed.unwrap(), 0);
                    answer.code = kept.err().map_or(0, rustix::io::Errno::raw_os_error);
                    let _ = handover::send(link.as_fd(), &answer.encode(), None);
                }
                Kind::Forget => vault.forget(message.role, message.number),
                _ => {}
            }
        }
    })
}

/// A store's custody, what it found, and its holder.
fn meet(vault: Vault) -> (Arc<Custody>, Inventory, JoinHandle<Vault>) {
    let (ours, theirs) = handover::pair().unwrap();
    let holder = hold(theirs, vault);
    let (custody, inventory) = Custody::held(ours).unwrap();
    (Arc::new(custody), inventory, holder)
}

fn plan() -> Plan {
    Plan {
        size: ByteLen(64 << 20),
        min_size: None,
        tier: TierKind::Ram,
        fast: vec![FastTier::Ram],
        closed: Vec::new(),
        why: None,
        durability: Durability::Writeback,
        tier_size: ByteLen(64 << 20),
        reserve: ByteLen(0),
        spill: None,
        checksums: true,
        lock: Lock::None,
    }
}

struct Silent;

impl Wake for Silent {
    fn wake(&self) {}
}

fn making<T>(custody: &Arc<Custody>, make: impl FnOnce(Making<'_>) -> T) -> T {
    let prepare: crate::tier::spill::Prepare = Arc::new(|| {});
    make(Making {
        plan: &mut plan(),
        custody,
        prepare: &prepare,
        ring: Arc::new(Silent),
        told: None,
        openings: None,
    })
}

fn part(store: &Arc<Store>) -> Part {
    let waker = Arc::new(EventWaker::new().unwrap());
    io_thread::session(store, 0..store.device_bytes(), Lock::None, waker).unwrap()
}

/// Writes a page filled with `byte`, or reads it and gives its first byte.
fn page(part: &mut Part, command: Command, page: u64, byte: u8) -> u8 {
    let ticket = part.reserve(4096).unwrap();
    let memory = part.memory();
    let at = ticket.host as usize;
    assert!(at + 4096 <= memory.bytes());
    let base = memory.base();
    if command == Command::Write {
        // SAFETY: inside the memory; the request is not started yet.
        unsafe { std::ptr::write_bytes(base.add(at), byte, 4096) };
    }
    part.start(ticket.token, command, page * 4096, 4096);
    let mut finished: Vec<Finished> = Vec::with_capacity(part.max_requests());
    while finished.is_empty() {
        part.drive(Duration::ZERO, &mut finished);
    }
    assert_eq!(finished[0].result, Ok(()));
    // SAFETY: inside the memory; the request has finished.
    let first = unsafe { base.add(at).read() };
    part.release(ticket.token);
    first
}

#[test]
fn a_store_finds_what_the_one_before_it_wrote() {
    let (custody, found, holder) = meet(Vault::new());
    assert!(found.index.is_none());
    let store = making(&custody, |making| making.fresh("text")).unwrap();
    let mut first = part(&store);
    for (number, byte) in [(0, 7), (511, 8), (9000, 9)] {
        page(&mut first, Command::Write, number, byte);
    }
    let (_kernel, server) = handover::pair().unwrap();
    custody.keep_socket(0, server);
    drop((first, store, custody));

    let (custody, found, holder) = meet(holder.join().unwrap());
    assert_eq!(found.slabs.keys().copied().collect::<Vec<_>>(), [(0, 0)]);
    let (store, torn) = making(&custody, |making| making.recovered(found)).unwrap();
    assert_eq!(torn, Torn::default());
    let mut second = part(&store);
    for (number, byte) in [(0, 7), (511, 8), (9000, 9), (1, 0)] {
        assert_eq!(page(&mut second, Command::Read, number, 0), byte, "page {number}");
    }
    page(&mut second, Command::Write, 1, 6);
    drop((second, store, custody));

    // The third finds what the second wrote: its notes are as good as the first's.
    let (custody, found, holder) = meet(holder.join().unwrap());
    let (store, _) = making(&custody, |making| making.recovered(found)).unwrap();
    assert_eq!(page(&mut part(&store), Command::Read, 1, 0), 6);
    custody.forget_all();
    drop((store, custody));
    assert!(!holder.join().unwrap().holds_pages());
}

#[test]
fn a_slab_that_nobody_kept_is_no_reason_to_guess() {
    let (custody, _, holder) = meet(Vault::new());
    let store = making(&custody, |making| making.fresh("text")).unwrap();
    page(&mut part(&store), Command::Write, 0, 7);
    drop((store, custody));
    let mut vault = holder.join().unwrap();
    vault.forget(Role::Slab, 0);
    let (custody, found, _holder) = meet(vault);
    let error = making(&custody, |making| making.recovered(found)).unwrap_err();
    assert!(is_distrust(&error), "{error:#}");
    assert!(error.to_string().contains("slab 0 of tier 0, which nobody kept"), "{error:#}");
}

#[test]
fn a_holder_that_comes_later_gets_everything_and_a_second_one_is_refused() {
    let custody = Arc::new(Custody::unheld());
    let store = making(&custody, |making| making.fresh("text")).unwrap();
    page(&mut part(&store), Command::Write, 0, 7);
    assert!(!custody.is_held());
    let (ours, theirs) = handover::pair().unwrap();
    let holder = hold(theirs, Vault::new());
    custody.take_holder(ours).unwrap();
    assert!(custody.is_held());

    let (ours, theirs) = handover::pair().unwrap();
    custody.take_holder(ours).unwrap();
    let mut record = [0; BYTES];
    let (bytes, _) = handover::receive(theirs.as_fd(), &mut record).unwrap();
    let said = Message::decode(&record[..bytes]).unwrap();
    assert_eq!((said.kind, said.number), (Kind::Taken, std::process::id()));

    drop((store, custody));
    let (custody, found, _holder) = meet(holder.join().unwrap());
    let (store, _) = making(&custody, |making| making.recovered(found)).unwrap();
    assert_eq!(page(&mut part(&store), Command::Read, 0, 0), 7);
}

#[test]
fn a_holder_that_dies_is_noticed_and_costs_nothing_at_once() {
    let (custody, _, _holder) = meet(Vault::new());
    let (ours, theirs) = handover::pair().unwrap();
    let dying = Arc::new(Custody::unheld());
    let answered = hold(theirs, Vault::new());
    dying.take_holder(ours).unwrap();
    assert!(dying.is_held() && custody.is_held());
    let text = |text| Source::Descriptor(crate::host::shared_memory::text("test", text).unwrap());
    dying.keep(Role::Description, 0, text("one"), 0).unwrap();
    drop(dying);
    let mut vault = answered.join().unwrap();
    assert!(vault.find(Role::Description, 0).is_some());
    vault.cut_sockets();
    // A link whose other end is closed: kept in the list, for whoever comes next.
    let (ours, theirs) = handover::pair().unwrap();
    drop(theirs);
    let alone = Custody::unheld();
    alone.take_holder(ours).unwrap();
    alone.keep(Role::Description, 0, text("two"), 0).unwrap();
    assert!(!alone.is_held());
}

#[test]
fn a_tier_stays_closed_if_it_was_told_to_and_nothing_of_it_is_held() {
    let facts = Facts {
        tiers: vec![("cuda:0".into(), 4), ("cuda:1".into(), 8), ("spill".into(), 20)],
        ..Facts::default()
    };
    let layout = Layout::new(32);
    let memory = SharedMemory::create("index", layout.bytes(), Lock::None).unwrap();
    let words = &memory.words()[..layout.words()];
    let index = Index::create(32, &facts, words, memory.half_words_after(layout.words())).unwrap();
    let orders = |targets, close| Orders { targets, reserve: ByteLen(0), close };
    let all = || orders(Targets::Total(ByteLen(0)), true);
    let mut held = Inventory::default();
    let closed = |told: &Orders, held: &Inventory| {
        stay_closed(Some(told), &index, held).into_iter().take(2).collect::<Vec<_>>()
    };
    assert_eq!(closed(&all(), &held), [Some(4), Some(8)]);
    let first = Targets::Each(vec![ByteLen(0), ByteLen(64 << 20)]);
    assert_eq!(closed(&orders(first, true), &held), [Some(4), None]);
    // Drained, and no more than that.
    assert_eq!(closed(&orders(Targets::Total(ByteLen(0)), false), &held), []);
    assert!(stay_closed(None, &index, &held).is_empty());
    // It died before the last slab of the second was given back.
    let (slab, _) = handover::pair().unwrap();
    held.slabs.insert((1, 3), slab);
    assert_eq!(closed(&all(), &held), [Some(4), None]);
    // An index that does not say what its tiers could hold.
    assert!(stay_closed(Some(&all()), &Index::new(32), &held).is_empty());
}
