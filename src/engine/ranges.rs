// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contiguous runs of pages in one I/O thread's host memory: a bitmap, first
//! fit from a moving start. Private to the thread, so plain integers.

/// Free and taken pages of a host memory, numbers only.
#[derive(Debug)]
pub(super) struct Ranges {
    taken: Box<[u64]>,
    pages: u32,
    next: u32,
}

impl Ranges {
    /// All of `pages` free.
    pub(super) fn new(pages: u32) -> Self {
        Self { taken: vec![0; pages.div_ceil(64) as usize].into(), pages, next: 0 }
    }

    /// Takes `count` contiguous pages (0 gives page 0 and takes nothing).
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        if count == 0 {
            return Some(0);
        }
        let at = self.find(self.next, self.pages, count).or_else(|| {
            let end = self.pages.min(self.next.saturating_add(count - 1));
            self.find(0, end, count)
        })?;
        self.set(at, count, true);
        self.next = if at + count >= self.pages { 0 } else { at + count };
        Some(at)
    }

    /// Gives a run back.
    pub(super) fn give(&mut self, at: u32, count: u32) {
        self.set(at, count, false);
    }

    fn find(&self, from: u32, to: u32, count: u32) -> Option<u32> {
        let mut run = 0;
        let mut page = from;
        while page < to {
            let word = self.taken[(page / 64) as usize];
            if run == 0 && page.is_multiple_of(64) && word == u64::MAX {
                page += 64;
                continue;
            }
            run = if word >> (page % 64) & 1 == 0 { run + 1 } else { 0 };
            page += 1;
            if run == count {
                return Some(page - count);
            }
        }
        None
    }

    fn set(&mut self, at: u32, count: u32, taken: bool) {
        for page in at..at + count {
            let bit = 1 << (page % 64);
            let word = &mut self.taken[(page / 64) as usize];
            debug_assert_eq!(*word & bit != 0, !taken, "page {page} given or taken twice");
            if taken {
                *word |= bit;
            } else {
                *word &= !bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_memory_comes_back(
            steps in proptest::collection::vec((1u32..40, any::<bool>()), 1..200)
        ) {
            let mut ranges = Ranges::new(200);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (count, give) in steps {
                if give && !held.is_empty() {
                    let (at, count) = held.remove(count as usize % held.len());
                    ranges.give(at, count);
                } else if let Some(at) = ranges.take(count) {
                    prop_assert!(at + count <= 200);
                    for &(a, c) in &held {
                        prop_assert!(at + count <= a || a + c <= at);
                    }
                    held.push((at, count));
                } else {
                    let mut map = [false; 200];
                    for &(a, c) in &held {
                        map[a as usize..(a + c) as usize].fill(true);
                    }
                    let longest = map.split(|taken| *taken).map(<[bool]>::len).max();
                    prop_assert!(longest.unwrap_or(0) < count as usize, "a fitting run was missed");
                }
            }
            for (at, count) in held {
                ranges.give(at, count);
            }
            prop_assert_eq!(ranges.take(200), Some(0));
        }
    }
}
