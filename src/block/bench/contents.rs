// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a page holds: a function of its number, how often it was written, and
//! the run. A page that is old, torn, in the wrong place or from an earlier run
//! differs from what belongs there. Writing and checking cost about as much as
//! copying, so that the generator measures the server and not itself.

use std::fmt;

use crate::engine::units::PAGE_BYTES;

const WORDS: usize = PAGE_BYTES / 8;
/// The first word of every page the generator writes: `SLUICEBN`.
const MARK: u64 = 0x4e42_4543_4955_4c53;

/// Pseudo-random words; a page is these, each combined with the page's own seed.
static NOISE: [u64; WORDS] = noise();

const fn noise() -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut at = 0;
    while at < WORDS {
        words[at] = mixed(at as u64 + 1);
        at += 1;
    }
    words
}

/// A bijection in which every input bit changes half of the output (the
/// finaliser of the splitmix64 generator).
const fn mixed(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Names one state of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its number on the target.
    pub number: u64,
    /// How often it was written.
    pub version: u32,
    /// The run that wrote it.
    pub run: u32,
}

impl Page {
    fn seed(self) -> u64 {
        mixed(mixed(self.number) ^ (u64::from(self.version) << 32) ^ u64::from(self.run))
    }

    fn head(self) -> [u64; 3] {
        [MARK, self.number, u64::from(self.version) << 32 | u64::from(self.run)]
    }

    /// Writes the page's contents into `bytes`.
    ///
    /// # Panics
    /// If `bytes` is not one page.
    pub fn fill(self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), PAGE_BYTES);
        let seed = self.seed();
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (word, noise) in words.iter_mut().zip(&NOISE) {
            *word = (seed ^ noise).to_le_bytes();
        }
        for (word, head) in words.iter_mut().zip(self.head()) {
            *word = head.to_le_bytes();
        }
    }

    /// Whether `bytes` are the page's contents.
    #[must_use]
    pub fn is(self, bytes: &[u8]) -> bool {
        let seed = self.seed();
        let (words, rest) = bytes.as_chunks::<8>();
        if words.len() != WORDS || !rest.is_empty() {
            return false;
        }
        let head = self.head();
        // No early exit: a loop without one is done many words at a time.
        let mut difference = 0;
        for (word, noise) in words[head.len()..].iter().zip(&NOISE[head.len()..]) {
            difference |= u64::from_le_bytes(*word) ^ seed ^ noise;
        }
        for (word, head) in words.iter().zip(head) {
            difference |= u64::from_le_bytes(*word) ^ head;
        }
        difference == 0
    }
}

/// The whole page that `bytes` hold, if the generator wrote them.
#[must_use]
pub fn recognise(bytes: &[u8]) -> Option<Page> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    if word(0)? != MARK {
        return None;
    }
    let last = word(2)?;
    let page = Page { number: word(1)?, version: (last >> 32) as u32, run: last as u32 };
    page.is(bytes).then_some(page)
}

/// Says how `found` differs from `expected`, for a person.
pub struct Difference<'a> {
    /// What belongs there.
    pub expected: Page,
    /// What was read.
    pub found: &'a [u8],
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page { number, version, run } = self.expected;
        write!(f, "page {number}: wrote version {version}, read ")?;
        match recognise(self.found) {
            Some(page) if page.run != run => write!(f, "what an earlier run wrote"),
            Some(page) if page.number != number => {
                write!(f, "page {} (version {})", page.number, page.version)
            }
            Some(page) => write!(f, "version {}", page.version),
            None if self.found.iter().all(|byte| *byte == 0) => write!(f, "zeros"),
            None => {
                let mut right = vec![0; PAGE_BYTES];
                self.expected.fill(&mut right);
                let wrong: Vec<usize> =
                    (0..PAGE_BYTES).filter(|at| self.found.get(*at) != right.get(*at)).collect();
                let first = wrong.first().copied().unwrap_or_default();
                write!(f, "{} wrong bytes, the first at {first}", wrong.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(page: Page) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        page.fill(&mut bytes);
        bytes
    }

    fn page() -> impl Strategy<Value = Page> {
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(number, version, run)| Page {
            number,
            version,
            run,
        })
    }

    proptest! {
        #[test]
        fn a_page_is_itself_and_no_other(a in page(), b in page()) {
            prop_assert!(a.is(&filled(a)));
            prop_assert_eq!(recognise(&filled(a)), Some(a));
            prop_assert_eq!(a.is(&filled(b)), a == b);
        }

        #[test]
        fn one_wrong_bit_anywhere_is_seen(a in page(), at in 0..PAGE_BYTES, bit in 0_u32..8) {
            let mut bytes = filled(a);
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(!a.is(&bytes));
            prop_assert_eq!(recognise(&bytes), None);
        }

        #[test]
        fn a_page_torn_between_two_versions_is_seen(
            a in page(), at in 1..PAGE_BYTES / 512
        ) {
            let newer = Page { version: a.version.wrapping_add(1), ..a };
            let mut bytes = filled(a);
            bytes[..at * 512].copy_from_slice(&filled(newer)[..at * 512]);
            prop_assert!(!a.is(&bytes) && !newer.is(&bytes));
        }
    }

    #[test]
    fn a_difference_says_what_was_found() {
        let expected = Page { number: 7, version: 3, run: 1 };
        let text = |found: &[u8]| Difference { expected, found }.to_string();
        let stale = Page { version: 2, ..expected };
        assert_eq!(text(&filled(stale)), "page 7: wrote version 3, read version 2");
        let other = Page { number: 8, ..expected };
        assert_eq!(text(&filled(other)), "page 7: wrote version 3, read page 8 (version 3)");
        let old = Page { run: 0, ..expected };
        assert_eq!(text(&filled(old)), "page 7: wrote version 3, read what an earlier run wrote");
        assert_eq!(text(&[0; PAGE_BYTES]), "page 7: wrote version 3, read zeros");
        let mut broken = filled(expected);
        broken[4000] ^= 1;
        assert_eq!(text(&broken), "page 7: wrote version 3, read 1 wrong bytes, the first at 4000");
    }
}
