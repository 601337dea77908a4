// SPDX-License-Identifier: MIT OR Apache-2.0
//! An index in memory that outlives its store: found again, refused, adopted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::super::index::{Index, PageRun, Place};
use super::super::io::{Command, Failure};
use super::super::layout::{Facts, Layout};
use super::super::recovery::named_slabs;
use super::super::store::Store;
use super::super::units::{ExtentIndex, SlabIndex, SlotIndex};
use super::finish_one;
use super::world::{EXTENTS, World, desk, setups};

/// As a host that maps memory gives it: zeros that outlive every store.
fn leaked(layout: Layout) -> (&'static [AtomicU64], &'static [AtomicU32]) {
    let words = (0..layout.words()).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let checksums = (0..layout.checksums()).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    (words.leak(), checksums.leak())
}

fn facts(names: [&str; 2]) -> Facts {
    let tiers = names.map(|name| (name.to_owned(), 3)).into();
    Facts { checksums: true, fingerprint: 77, tiers }
}

/// Copies one whole index into memory that was given.
fn poured(index: &Index, layout: Layout) -> Index {
    let (words, checksums) = leaked(layout);
    for (n, word) in words.iter().enumerate() {
        word.store(index.raw(n), Ordering::Relaxed);
    }
    for (extent, page) in (0..EXTENTS).flat_map(|e| (0..512).map(move |page| (e, page))) {
        let at = extent as usize * 512 + page as usize;
        checksums[at].store(index.checksum(ExtentIndex(extent), page), Ordering::Relaxed);
    }
    let found = Layout::judge(words, layout.bytes()).unwrap();
    assert_eq!(found, layout);
    Index::over(found, words, checksums).unwrap()
}

#[test]
fn an_index_in_memory_that_was_given_is_found_again_as_it_was_left() {
    let layout = Layout::new(EXTENTS);
    let (words, checksums) = leaked(layout);
    let tiers = facts(["fast", "a name of more than 24 bytes"]);
    let index = Index::create(EXTENTS, &tiers, words, checksums).unwrap();
    let run = PageRun { extent: ExtentIndex(2), first: 500, count: 2 };
    index.settle(run.extent, Place { tier: 1, slot: SlotIndex(9) }).unwrap();
    let pages = index.open(run).unwrap();
    index.commit(pages, [4, 5]);
    drop(index);
    let found = Index::over(Layout::judge(words, layout.bytes()).unwrap(), words, checksums);
    let found = found.unwrap();
    assert_eq!(found.checksum(run.extent, 501), 5);
    assert_eq!(named_slabs(&found).into_iter().collect::<Vec<_>>(), [(1, SlabIndex(0))]);
    let facts = found.facts().unwrap();
    assert_eq!(facts.tiers[1].0, "a name of more than 24 b");
    assert_eq!((facts.fingerprint, facts.checksums), (77, true));
    // Memory for less than the header says is refused before it is touched.
    let short = Layout::judge(words, layout.bytes() - 1).unwrap_err();
    assert!(short.to_string().contains("extents"), "{short}");
    assert!(Index::over(layout, &words[1..], checksums).is_err());
}

#[test]
fn an_index_of_other_tiers_is_refused() {
    let world = World::new(1, 1);
    let (words, checksums) = leaked(Layout::new(EXTENTS));
    for (names, right) in [(["test", "test"], true), (["test", "other"], false)] {
        let index = Index::create(EXTENTS, &facts(names), words, checksums).unwrap();
        let recovered = Store::recover(index, setups(&world.tiers), true);
        assert_eq!(recovered.is_ok(), right, "{names:?}");
        if let Err(error) = recovered {
            assert!(error.to_string().contains("other"), "{error}");
        }
    }
}

#[test]
fn the_first_version_of_the_layout_is_read_and_kept() {
    let mut world = World::new(1, 1);
    let old = Index::of_version_1(EXTENTS);
    world.store = Arc::new(Store::new(old, setups(&world.tiers), true).unwrap());
    world.store.hold_slabs(1, 1).unwrap();
    world.desks = vec![desk(&world.store, &world.tiers)];
    world.start(0, Command::Write, 1000, 5);
    world.settle().unwrap();
    let layout = Layout::version_1(EXTENTS);
    let image = poured(&world.store.index, layout);
    assert_eq!((image.raw(1), image.raw(8 + 1)), (1, 2 << 56));
    let (store, torn) = Store::recover(image, setups(&world.tiers), true).unwrap();
    assert_eq!(torn, []);
    world.store = Arc::new(store);
    world.desks = vec![desk(&world.store, &world.tiers)];
    world.read_all().unwrap();
    assert_eq!(world.store.index.raw(1), 1);
}

#[test]
fn a_torn_page_that_cannot_be_read_is_an_error_until_it_is_written_again() {
    let mut world = World::new(1, 1);
    finish_one(&mut world, Command::Write, 3, Duration::ZERO).unwrap();
    let run = PageRun { extent: ExtentIndex(0), first: 3, count: 1 };
    let open = world.store.index.open(run).unwrap();
    assert_eq!(open.run(), run);
    let survivor = world.store.index.survivor();
    let (store, torn) = Store::recover(survivor, setups(&world.tiers), true).unwrap();
    assert!(torn[0].source.is_some());
    store.adopt_unreadable(&torn[0]);
    world.store = Arc::new(store);
    world.desks = vec![desk(&world.store, &world.tiers)];
    let read = |world: &mut World| finish_one(world, Command::Read, 3, Duration::ZERO);
    assert_eq!(read(&mut world), Err(Failure::Io));
    finish_one(&mut world, Command::Write, 3, Duration::ZERO).unwrap();
    assert_eq!(read(&mut world), Ok(()));
}
