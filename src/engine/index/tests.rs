// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index by itself: runs, the journal as a lock, lost pages.

use super::*;

#[test]
fn a_run_covers_exactly_its_pages() {
    for (first, count) in [(0, 1), (0, 64), (63, 2), (5, 507), (64, 64), (511, 1), (0, 512)] {
        let run = PageRun { extent: ExtentIndex(0), first, count };
        let pages: Vec<u32> = run
            .masks()
            .flat_map(|(w, m)| {
                (0..64).filter(move |b| m >> b & 1 != 0).map(move |b| w as u32 * 64 + b)
            })
            .collect();
        assert_eq!(pages, (first..first + count).collect::<Vec<_>>());
    }
}

#[test]
fn a_page_being_written_refuses_a_second_writer_and_keeps_the_first() {
    let index = Index::new(1);
    let run = |first, count| PageRun { extent: ExtentIndex(0), first, count };
    let held = index.open(run(100, 10)).unwrap();
    assert!(index.open(run(0, 512)).is_none());
    assert!(index.open(run(109, 1)).is_none());
    assert!(index.any_open(run(100, 10)));
    // The refused attempts left nothing behind.
    let other = index.open(run(110, 402)).unwrap();
    index.abandon(other);
    index.commit(held, 0..10);
    assert!(!index.any_open(run(0, 512)));
    assert_eq!(index.written_pages(ExtentIndex(0)), 10);
    assert_eq!(index.checksum(ExtentIndex(0), 109), 9);
}

#[test]
fn runs_split_by_state_and_cover_everything() {
    let index = Index::new(1);
    let run = |first, count| PageRun { extent: ExtentIndex(0), first, count };
    for (first, count) in [(3, 1), (60, 10), (256, 256)] {
        let pages = index.open(run(first, count)).unwrap();
        index.commit(pages, std::iter::repeat(1));
    }
    let got: Vec<_> = index.runs(run(0, 512)).collect();
    assert_eq!(
        got,
        [
            (0, 3, false),
            (3, 1, true),
            (4, 56, false),
            (60, 10, true),
            (70, 186, false),
            (256, 256, true)
        ]
    );
    assert_eq!(index.runs(run(65, 2)).collect::<Vec<_>>(), [(65, 2, true)]);
}

#[test]
fn the_first_to_settle_an_extent_wins() {
    let index = Index::new(1);
    let place = |slot| Place { tier: 0, slot: SlotIndex(slot) };
    assert_eq!(index.settle(ExtentIndex(0), place(4)), Ok(()));
    assert_eq!(index.settle(ExtentIndex(0), place(9)), Err(place(4)));
    assert_eq!(index.place(ExtentIndex(0)), Some(place(4)));
    index.flip(ExtentIndex(0), None);
    assert_eq!(index.place(ExtentIndex(0)), None);
}

#[test]
fn a_lost_page_stays_lost_until_it_is_written_again() {
    let index = Index::new(1);
    let run = |first, count| PageRun { extent: ExtentIndex(0), first, count };
    let pages = index.open(run(60, 10)).unwrap();
    index.commit(pages, 0..10);
    let mut lost = [0; MAP_WORDS];
    lost[1] = 1 << 2;
    index.mark_bad(ExtentIndex(0), &lost);
    assert!(index.any_bad(run(66, 1)) && index.any_bad(run(0, 512)));
    assert!(!index.any_bad(run(60, 6)) && !index.any_bad(run(67, 400)));
    assert_eq!(index.bad_pages(ExtentIndex(0)), 1);
    let sound: Vec<_> = runs_in(&index.sound_map(ExtentIndex(0))).collect();
    assert_eq!(sound, [(60, 6), (67, 3)]);
    let pages = index.open(run(66, 1)).unwrap();
    index.commit(pages, [1]);
    assert!(!index.any_bad(run(0, 512)));
    // A page that nobody wrote is not lost.
    index.clear_written(run(0, 512));
    index.mark_bad(ExtentIndex(0), &lost);
    assert!(!index.any_bad(run(0, 512)));
}

#[test]
fn an_extent_is_covered_by_a_run_that_has_all_its_written_pages() {
    let index = Index::new(1);
    let run = |first, count| PageRun { extent: ExtentIndex(0), first, count };
    assert!(index.is_covered_by(run(5, 1)));
    let pages = index.open(run(60, 10)).unwrap();
    index.commit(pages, 0..10);
    assert!(index.is_covered_by(run(60, 10)) && index.is_covered_by(run(0, 512)));
    assert!(!index.is_covered_by(run(60, 9)) && !index.is_covered_by(run(61, 451)));
}
