// SPDX-License-Identifier: MIT OR Apache-2.0
//! One worker's book of its blocks: what each must hold, which have a request
//! open, and which comes next. Pure, and allocates nothing after `new`.

use super::contents::Page;
use super::plan::{Pattern, Plan};

/// A block that was never written in this run, so nothing is known of it.
const UNWRITTEN: u32 = 0;
/// Set in the version of a block whose last write failed: it may hold the old or the new.
const UNKNOWN: u32 = 1 << 31;
/// How often an open block is passed over before the batch ends short.
const TRIES: u32 = 16;

/// The blocks of one worker: every `stride`th one, beginning with `first`.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The first block's number on the target.
    pub first: u64,
    /// From one block to the next.
    pub stride: u64,
    /// How many.
    pub count: u64,
}

/// A request to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The block, by its number in the book.
    pub index: usize,
    /// Whether to write it, else read it.
    pub write: bool,
    /// What a write puts there; for a read, what must be there, or `None` if
    /// that is not known.
    pub version: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Book {
    share: Share,
    versions: Vec<u32>,
    open: Vec<bool>,
    pages_per_block: u64,
    write_percent: u64,
    pattern: Pattern,
    run: u32,
    random: u64,
    cursor: usize,
}

impl Book {
    /// A book of `share`; `seed` makes the workers differ, `run` the runs.
    #[must_use]
    pub fn new(share: Share, plan: &Plan, seed: u64, run: u32) -> Self {
        let count = share.count as usize;
        Self {
            share,
            versions: vec![UNWRITTEN; count],
            open: vec![false; count],
            pages_per_block: plan.pages_per_block(),
            write_percent: plan.write_percent.into(),
            pattern: plan.pattern,
            run,
            random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            cursor: 0,
        }
    }

    /// The next request of the measurement, now open. `None`: the blocks tried
    /// all have a request open already.
    pub fn next_request(&mut self) -> Option<Pick> {
        let index = self.free_block()?;
        let draw = ((self.draw() >> 32) * 100) >> 32;
        let known = self.versions[index];
        // A read of a block never written tells nothing: write it first, if we write at all.
        let write = self.write_percent > 0 && (draw < self.write_percent || known == UNWRITTEN);
        Some(self.start(index, write))
    }

    /// The next write of a fill, now open; `None` when every block was given out once.
    pub fn next_fill(&mut self) -> Option<Pick> {
        if self.cursor == self.versions.len() {
            return None;
        }
        self.cursor += 1;
        Some(self.start(self.cursor - 1, true))
    }

    /// Starts the measurement's own order after a fill.
    pub fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// Closes a request. A failed write leaves its block unknown.
    pub fn close(&mut self, pick: Pick, failed: bool) {
        self.open[pick.index] = false;
        if pick.write && failed {
            self.versions[pick.index] |= UNKNOWN;
        }
    }

    /// First byte of a block on the target.
    #[must_use]
    pub fn offset(&self, index: usize, block_bytes: u32) -> u64 {
        self.block(index) * u64::from(block_bytes)
    }

    /// The state `version` of page `within` of a block.
    #[must_use]
    pub fn page(&self, index: usize, within: u64, version: u32) -> Page {
        let number = self.block(index) * self.pages_per_block + within;
        Page { number, version, run: self.run }
    }

    fn block(&self, index: usize) -> u64 {
        self.share.first + index as u64 * self.share.stride
    }

    fn start(&mut self, index: usize, write: bool) -> Pick {
        self.open[index] = true;
        let known = self.versions[index];
        let version = if write {
            self.versions[index] = (known & !UNKNOWN) + 1;
            Some(self.versions[index])
        } else {
            (known != UNWRITTEN && known & UNKNOWN == 0).then_some(known)
        };
        Pick { index, write, version }
    }

    fn free_block(&mut self) -> Option<usize> {
        let count = self.versions.len();
        match self.pattern {
            Pattern::Sequential => {
                let index = self.cursor % count;
                if self.open[index] {
                    return None;
                }
                self.cursor = index + 1;
                Some(index)
            }
            Pattern::Random => (0..TRIES).find_map(|_| {
                let index = ((u128::from(self.draw()) * count as u128) >> 64) as usize;
                (!self.open[index]).then_some(index)
            }),
        }
    }

    /// The xorshift64* generator.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Pace;
    use super::*;

    fn plan(write_percent: u32, pattern: Pattern) -> Plan {
        Plan {
            targets: vec![],
            names: vec![],
            rounds: 1,
            connections: 1,
            depth: 1,
            write_percent,
            block_bytes: 8192,
            seconds: 1,
            span: None,
            pattern,
            pace: Pace::Full,
            fill: false,
            destroy_contents: false,
        }
    }

    fn book(count: u64, write_percent: u32, pattern: Pattern) -> Book {
        let share = Share { first: 10, stride: 3, count };
        Book::new(share, &plan(write_percent, pattern), 0, 5)
    }

    #[test]
    fn an_open_block_is_never_given_out_twice() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            let mut book = book(8, 50, pattern);
            let mut open = std::collections::HashMap::new();
            for step in 0..10_000 {
                match book.next_request() {
                    Some(pick) => assert!(open.insert(pick.index, pick).is_none()),
                    None => assert!(!open.is_empty()),
                }
                if step % 3 != 0 {
                    let first = open.keys().min().copied();
                    if let Some(pick) = first.and_then(|index| open.remove(&index)) {
                        book.close(pick, false);
                    }
                }
            }
        }
    }

    #[test]
    fn reads_expect_what_was_written_last() {
        let mut book = book(4, 50, Pattern::Random);
        let mut written = [0; 4];
        let (mut reads, mut writes) = (0, 0);
        for _ in 0..1000 {
            let pick = book.next_request().unwrap();
            if pick.write {
                assert_eq!(pick.version, Some(written[pick.index] + 1));
                written[pick.index] += 1;
                writes += 1;
            } else {
                assert_eq!(pick.version, Some(written[pick.index]));
                reads += 1;
            }
            book.close(pick, false);
        }
        assert!((400..600).contains(&reads) && reads + writes == 1000, "{reads} reads");
    }

    #[test]
    fn a_failed_write_leaves_its_block_unknown_until_it_is_written_again() {
        let mut book = book(1, 50, Pattern::Sequential);
        let first = book.next_request().unwrap();
        assert!(first.write);
        book.close(first, true);
        for _ in 0..100 {
            let pick = book.next_request().unwrap();
            book.close(pick, false);
            if pick.write {
                assert_ne!(pick.version, first.version);
                return;
            }
            assert_eq!(pick.version, None);
        }
        panic!("half of the requests are writes");
    }

    #[test]
    fn only_reading_never_writes_and_expects_nothing() {
        let mut book = book(4, 0, Pattern::Random);
        for _ in 0..100 {
            let pick = book.next_request().unwrap();
            assert_eq!((pick.write, pick.version), (false, None));
            book.close(pick, false);
        }
    }

    #[test]
    fn a_fill_writes_every_block_once_at_its_own_place() {
        let mut book = book(3, 0, Pattern::Sequential);
        let picks: Vec<Pick> = std::iter::from_fn(|| book.next_fill()).collect();
        assert!(picks.iter().all(|pick| pick.write && pick.version == Some(1)));
        let offsets: Vec<u64> = picks.iter().map(|pick| book.offset(pick.index, 8192)).collect();
        assert_eq!(offsets, [10 * 8192, 13 * 8192, 16 * 8192]);
        assert_eq!(book.page(1, 1, 9), Page { number: 27, version: 9, run: 5 });
    }
}
