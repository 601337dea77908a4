// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an index lies in memory (`docs/reference/index-layout.md`): which words
//! are what, in every version that this program can read.
//!
//! All words are 64 bits, in the machine's own byte order: an index never
//! leaves the machine. Version 2, in this order:
//! ```text
//!   header   64 words: see HEADER below
//!   entries  1 word per extent
//!   written  8 words per extent: its map of written pages
//!   journal  8 words per extent: its map of open pages
//!   bad      8 words per extent: its map of pages that could not be read
//!   checksums  512 half words (32 bits) per extent: a CRC32C per page
//! ```
//! Version 1 has no map of bad pages and a header of 8 words, of which magic,
//! version and extents are set, and the flags. An index is used in the layout in which
//! it was found; only a new one has the newest.

use super::error::{Error, Kind, Result};
use super::sync::{AtomicU64, Ordering};
use super::units::PAGES_PER_EXTENT;

/// Identifies an index in memory: "SLUICEIX", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SLUICEIX");
/// The version of a new index.
pub const VERSION: u64 = 2;
/// Words of one extent's page map.
pub(super) const MAP_WORDS: usize = PAGES_PER_EXTENT / 64;

/// Header words of version 1: magic, version, extents, five unused.
const HEADER_1: usize = 8;
/// Header words of version 2.
const HEADER_2: usize = 64;
/// Tiers that a header can name.
const MAX_TIERS: usize = 8;
/// Words of a tier's name, NUL padded.
const NAME_WORDS: usize = 3;

/// Word numbers of the header, version 2. Magic, version and extents are the
/// same in every version.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    pub const EXTENTS: usize = 2;
    /// In every version too.
    pub const FLAGS: usize = 3;
    /// First word of the entries, of the written maps, of the journal, of the
    /// bad maps, of the checksums.
    pub const PARTS: usize = 4;
    pub const FINGERPRINT: usize = 9;
    pub const TIERS: usize = 10;
    /// Three words of name and one of slabs for each tier.
    pub const TIER: usize = 16;
    /// FNV-1a, 64 bits, over all header words before it.
    pub const CHECK: usize = 63;
}

/// Flag: each written page has a checksum.
const CHECKSUMS: u64 = 1;
/// Flag: the spill has a copy of every extent, in the slot of its number.
pub(super) const MIRRORED: u64 = 2;

/// What a header says beside the geometry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether each written page has a checksum.
    pub checksums: bool,
    /// Names the configuration that the index was made for.
    pub fingerprint: u64,
    /// The tiers, in the order that entries count them in: the first 24 bytes
    /// of the name, and how many slabs it could hold. Empty: not said.
    pub tiers: Vec<(String, u32)>,
}

/// Where the parts of an index are, in words from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    version: u64,
    extents: u32,
    pub(super) entries: usize,
    pub(super) written: usize,
    pub(super) journal: usize,
    /// `None`: this version has none.
    pub(super) bad: Option<usize>,
    words: usize,
}

impl Layout {
    /// The newest layout, for a new index.
    #[must_use]
    pub fn new(extents: u32) -> Self {
        Self::of(VERSION, extents, HEADER_2)
    }

    /// The first layout, which had no tiers and no check of its header.
    #[must_use]
    pub fn version_1(extents: u32) -> Self {
        Self::of(1, extents, HEADER_1)
    }

    fn of(version: u64, extents: u32, header: usize) -> Self {
        let all = extents as usize;
        let map = |number: usize| header + all * (1 + number * MAP_WORDS);
        let (bad, words) = if version == 1 { (None, map(2)) } else { (Some(map(2)), map(3)) };
        Self { version, extents, entries: header, written: map(0), journal: map(1), bad, words }
    }

    /// The layout's version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Extents of the device.
    #[must_use]
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// 64-bit words before the checksums.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// Checksums, 32 bits each, after the words.
    #[must_use]
    pub fn checksums(&self) -> usize {
        self.extents as usize * PAGES_PER_EXTENT
    }

    /// Bytes of the whole index.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.words * 8 + self.checksums() * 4) as u64
    }

    /// Judges the header of what claims to be an index in `bytes` bytes of
    /// memory, of which `words` are the first. Changes nothing.
    ///
    /// Errors: `Protocol` if it is none, is damaged, or has an unknown version.
    pub fn judge(words: &[AtomicU64], bytes: u64) -> Result<Self> {
        let at = |n: usize| words.get(n).map_or(0, |word| word.load(Ordering::Acquire));
        let magic = at(word::MAGIC);
        if magic != MAGIC {
            return Err(distrust(format!("the index begins with {magic:#x}, not {MAGIC:#x}")));
        }
        let (version, extents) = (at(word::VERSION), at(word::EXTENTS));
        let extents = u32::try_from(extents)
            .map_err(|_| distrust(format!("the index says it has {extents} extents")))?;
        let layout = match version {
            1 => Self::version_1(extents),
            2 => Self::new(extents),
            other => {
                return Err(distrust(format!(
                    "the index has layout {other}, this program reads 1 to {VERSION}"
                )));
            }
        };
        if layout.bytes() > bytes {
            return Err(distrust(format!(
                "the index says {extents} extents, which take {} bytes; it has {bytes}",
                layout.bytes()
            )));
        }
        if version == 2 {
            let (said, found) = (at(word::CHECK), check(words));
            if said != found {
                return Err(distrust(format!(
                    "the index's header is damaged: its check is {said:#x}, not {found:#x}"
                )));
            }
            let parts = [0, 1, 2, 3, 4].map(|n| at(word::PARTS + n));
            if parts != layout.parts() {
                return Err(distrust(format!("the index has its parts at words {parts:?}")));
            }
        }
        Ok(layout)
    }

    fn parts(&self) -> [u64; 5] {
        let bad = self.bad.unwrap_or(self.words);
        [self.entries, self.written, self.journal, bad, self.words].map(|word| word as u64)
    }

    pub(super) fn has_flag(words: &[AtomicU64], flag: u64) -> bool {
        words[word::FLAGS].load(Ordering::Acquire) & flag != 0
    }

    /// Sets a flag of an index that holds nothing yet: a crash between the flag
    /// and the check leaves a header that is refused.
    pub(super) fn set_flag(&self, words: &[AtomicU64], flag: u64) {
        if Self::has_flag(words, flag) {
            return;
        }
        words[word::FLAGS].fetch_or(flag, Ordering::Release);
        if self.version != 1 {
            words[word::CHECK].store(check(words), Ordering::Release);
        }
    }

    /// Writes the header of an empty index. The check is last: a header that was
    /// not finished is none.
    pub(super) fn write(&self, words: &[AtomicU64], facts: &Facts) {
        let set = |n: usize, value: u64| words[n].store(value, Ordering::Release);
        set(word::MAGIC, MAGIC);
        set(word::VERSION, self.version);
        set(word::EXTENTS, self.extents.into());
        if self.version == 1 {
            return;
        }
        for (n, part) in self.parts().into_iter().enumerate() {
            set(word::PARTS + n, part);
        }
        set(word::FLAGS, if facts.checksums { CHECKSUMS } else { 0 });
        set(word::FINGERPRINT, facts.fingerprint);
        set(word::TIERS, facts.tiers.len().min(MAX_TIERS) as u64);
        for (n, (name, slabs)) in facts.tiers.iter().take(MAX_TIERS).enumerate() {
            let at = word::TIER + n * (NAME_WORDS + 1);
            for (part, value) in name_words(name).into_iter().enumerate() {
                set(at + part, value);
            }
            set(at + NAME_WORDS, (*slabs).into());
        }
        set(word::CHECK, check(words));
    }

    /// What the header says beside the geometry; `None`: its version says nothing.
    #[must_use]
    pub(super) fn facts(&self, words: &[AtomicU64]) -> Option<Facts> {
        if self.version == 1 {
            return None;
        }
        let at = |n: usize| words[n].load(Ordering::Acquire);
        let count = (at(word::TIERS) as usize).min(MAX_TIERS);
        let tiers = (0..count).map(|n| {
            let start = word::TIER + n * (NAME_WORDS + 1);
            let bytes: Vec<u8> = (0..NAME_WORDS)
                .flat_map(|part| at(start + part).to_le_bytes())
                .take_while(|byte| *byte != 0)
                .collect();
            (String::from_utf8_lossy(&bytes).into_owned(), at(start + NAME_WORDS) as u32)
        });
        Some(Facts {
            checksums: at(word::FLAGS) & CHECKSUMS != 0,
            fingerprint: at(word::FINGERPRINT),
            tiers: tiers.collect(),
        })
    }
}

/// As much of a tier's name as a header holds.
#[must_use]
pub(super) fn shown_name(name: &str) -> &str {
    let mut end = name.len().min(NAME_WORDS * 8);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

fn name_words(name: &str) -> [u64; NAME_WORDS] {
    let mut bytes = [0; NAME_WORDS * 8];
    let shown = shown_name(name).as_bytes();
    bytes[..shown.len()].copy_from_slice(shown);
    std::array::from_fn(|n| u64::from_le_bytes(*bytes[n * 8..].first_chunk().unwrap_or(&[0; 8])))
}

/// FNV-1a over the header words before the check.
fn check(words: &[AtomicU64]) -> u64 {
    let bytes = words[..word::CHECK].iter().flat_map(|w| w.load(Ordering::Acquire).to_le_bytes());
    fingerprint(bytes)
}

/// FNV-1a, 64 bits: tells one text from another, protects from no one.
pub fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn distrust(what: String) -> Error {
    Error::new(Kind::Protocol, what)
        .with_hint("the pages stay where they are; recover with the version that wrote the index")
}
