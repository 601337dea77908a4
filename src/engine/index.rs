// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index: what must survive the process, and the order in which it changes.
//!
//! Per extent one entry (64 bits, always exactly one place), a map of written
//! pages, a map of open pages (the journal) and a CRC32C per page.
//!
//! # Order of commitment
//! * Write: [`Index::open`] (journal) → data → tier completion →
//!   [`Index::commit`]: checksum, then the written bit (release), then the
//!   journal bit cleared → reply.
//! * Move: copy → tier completion → [`Index::flip`] (one store) → old slot freed.
//! * Trim: [`Index::clear_written`] → entry emptied by the sweep → slot freed.
//!
//! Whatever store is the last before a crash, [`super::recovery`] finds each
//! page that was not being written as its last finished request left it. A page
//! whose journal bit is open is undefined until rewritten and gets no checksum
//! verdict.
//!
//! The journal bit is also the page's write lock: `open` refuses a page that is
//! open, so two writes of one page never overlap and the checksum stored last
//! always belongs to the data stored last.

use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::units::{ExtentIndex, PAGES_PER_EXTENT, SlabIndex, SlotIndex};

/// Identifies an index in memory: "SLUICEIX", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SLUICEIX");
/// Version of the layout below.
pub const VERSION: u64 = 1;

/// Words of one extent's page map.
const MAP_WORDS: usize = PAGES_PER_EXTENT / 64;
/// Header: magic, version, extents, reserved.
const HEADER_WORDS: usize = 8;

/// Where an extent's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tier, by its position in the store's list.
    pub tier: u8,
    /// The slot within that tier.
    pub slot: SlotIndex,
}

impl Place {
    /// As the entry word: tier + 1 in the top byte, the slot in the low half.
    /// 0 is the empty extent.
    pub(super) fn encode(self) -> u64 {
        (u64::from(self.tier) + 1) << 56 | u64::from(self.slot.0)
    }

    fn decode(word: u64) -> Option<Self> {
        let tier = (word >> 56) as u8;
        (tier != 0).then(|| Self { tier: tier - 1, slot: SlotIndex(word as u32) })
    }

    /// The slab of the slot.
    #[must_use]
    pub fn slab(self) -> SlabIndex {
        self.slot.slab()
    }
}

/// A run of pages within one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The extent.
    pub extent: ExtentIndex,
    /// First page, 0..512.
    pub first: u32,
    /// Pages, at least 1, ending within the extent.
    pub count: u32,
}

impl PageRun {
    /// All pages of an extent.
    #[must_use]
    pub fn whole(extent: ExtentIndex) -> Self {
        Self { extent, first: 0, count: PAGES_PER_EXTENT as u32 }
    }

    /// The words of the extent's page map that the run touches, with its bits in each.
    fn masks(self) -> impl DoubleEndedIterator<Item = (usize, u64)> + Clone {
        let end = self.first + self.count;
        (self.first / 64..end.div_ceil(64)).map(move |word| {
            let low = self.first.max(word * 64) - word * 64;
            let high = end.min(word * 64 + 64) - word * 64;
            (word as usize, (u64::MAX >> (64 - (high - low))) << low)
        })
    }
}

/// Proof that a run's pages are open in the journal; [`Index::commit`] or
/// [`Index::abandon`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "open pages stay locked until committed or abandoned"]
pub struct OpenPages(PageRun);

impl OpenPages {
    /// The pages.
    #[must_use]
    pub fn run(&self) -> PageRun {
        self.0
    }
}

/// The index of one device. Shared by all threads; every change is one atomic
/// store in the order the module describes.
#[derive(Debug)]
pub struct Index {
    extents: u32,
    /// Header, entries, written maps, open maps.
    words: Box<[AtomicU64]>,
    /// One per page.
    checksums: Box<[AtomicU32]>,
    /// Stores left before the simulated crash; later ones change nothing.
    #[cfg(test)]
    pub(super) fuel: std::sync::Arc<super::crash::Fuel>,
}

impl Index {
    /// An empty index of `extents` extents: nothing written, nothing placed.
    #[must_use]
    pub fn new(extents: u32) -> Self {
        let n = extents as usize;
        let words: Box<[AtomicU64]> =
            (0..HEADER_WORDS + n * (1 + 2 * MAP_WORDS)).map(|_| AtomicU64::new(0)).collect();
        for (word, value) in words.iter().zip([MAGIC, VERSION, u64::from(extents)]) {
            word.store(value, Ordering::Relaxed);
        }
        Self {
            extents,
            words,
            checksums: (0..n * PAGES_PER_EXTENT).map(|_| AtomicU32::new(0)).collect(),
            #[cfg(test)]
            fuel: std::sync::Arc::default(),
        }
    }

    /// Extents of the device.
    #[must_use]
    pub fn extents(&self) -> u32 {
        self.extents
    }

    /// Bytes of memory the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.words.len() * 8 + self.checksums.len() * 4) as u64
    }

    fn entry(&self, extent: ExtentIndex) -> &AtomicU64 {
        &self.words[HEADER_WORDS + extent.0 as usize]
    }

    fn written(&self, extent: ExtentIndex) -> &[AtomicU64] {
        let at = HEADER_WORDS + self.extents as usize + extent.0 as usize * MAP_WORDS;
        &self.words[at..at + MAP_WORDS]
    }

    fn journal(&self, extent: ExtentIndex) -> &[AtomicU64] {
        let all = self.extents as usize;
        let at = HEADER_WORDS + all * (1 + MAP_WORDS) + extent.0 as usize * MAP_WORDS;
        &self.words[at..at + MAP_WORDS]
    }

    fn checksum_cell(&self, extent: ExtentIndex, page: u32) -> &AtomicU32 {
        &self.checksums[extent.0 as usize * PAGES_PER_EXTENT + page as usize]
    }

    /// Stands before every store that persists: where a test's crash happens.
    #[cfg_attr(not(test), allow(clippy::unused_self))]
    fn step(&self) {
        #[cfg(test)]
        self.fuel.burn();
    }

    /// The entry as it is stored, for recovery to judge.
    pub(super) fn entry_word(&self, extent: ExtentIndex) -> u64 {
        self.entry(extent).load(Ordering::Acquire)
    }

    /// Where the extent's pages are; `None`: nowhere, all pages read as zeros.
    #[must_use]
    pub fn place(&self, extent: ExtentIndex) -> Option<Place> {
        Place::decode(self.entry(extent).load(Ordering::Acquire))
    }

    /// Gives an empty extent its place. `Err` with the winner's if another
    /// request was first. The caller holds a pin.
    pub fn settle(&self, extent: ExtentIndex, place: Place) -> Result<(), Place> {
        self.step();
        match self.entry(extent).compare_exchange(
            0,
            place.encode(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(()),
            // The pin keeps the sweep away, so the entry cannot be empty again.
            Err(word) => Err(Place::decode(word).unwrap_or(place)),
        }
    }

    /// Changes the place, or empties the extent. The caller owns the extent.
    pub fn flip(&self, extent: ExtentIndex, place: Option<Place>) {
        self.step();
        self.entry(extent).store(place.map_or(0, Place::encode), Ordering::Release);
    }

    /// Opens the journal for the run's pages, all or none. `None`: one of them
    /// is being written by another request.
    pub fn open(&self, run: PageRun) -> Option<OpenPages> {
        let journal = self.journal(run.extent);
        for (n, (word, mask)) in run.masks().enumerate() {
            self.step();
            // Acquire: the previous writer's checksum is visible before ours.
            let before = journal[word].fetch_or(mask, Ordering::Acquire);
            if before & mask != 0 {
                // Give back only what this call set.
                journal[word].fetch_and(!(mask & !before), Ordering::Relaxed);
                for (word, mask) in run.masks().take(n) {
                    journal[word].fetch_and(!mask, Ordering::Relaxed);
                }
                return None;
            }
        }
        Some(OpenPages(run))
    }

    /// Ends a write whose data is complete in the tier: `checksums` yields one
    /// CRC32C per page in order.
    pub fn commit(&self, pages: OpenPages, checksums: impl IntoIterator<Item = u32>) {
        let OpenPages(run) = pages;
        for (page, checksum) in (run.first..run.first + run.count).zip(checksums) {
            self.step();
            // Release: a reader that sees the new checksum beside old data also
            // sees that a write began meanwhile, and takes it for no corruption.
            self.checksum_cell(run.extent, page).store(checksum, Ordering::Release);
        }
        for (word, mask) in run.masks() {
            self.step();
            self.written(run.extent)[word].fetch_or(mask, Ordering::Release);
        }
        self.close(run);
    }

    /// Ends a write that failed: the journal is closed, nothing else changes,
    /// so a page that was written before reads as its old data or as a
    /// checksum failure, never as wrong data.
    pub fn abandon(&self, pages: OpenPages) {
        let OpenPages(run) = pages;
        self.close(run);
    }

    fn close(&self, run: PageRun) {
        for (word, mask) in run.masks() {
            self.step();
            self.journal(run.extent)[word].fetch_and(!mask, Ordering::Release);
        }
    }

    /// True if any page of the run is being written.
    #[must_use]
    pub fn any_open(&self, run: PageRun) -> bool {
        let journal = self.journal(run.extent);
        run.masks().any(|(word, mask)| journal[word].load(Ordering::Acquire) & mask != 0)
    }

    /// True if the page holds data; false: it reads as zeros.
    #[must_use]
    pub fn is_written(&self, extent: ExtentIndex, page: u32) -> bool {
        let word = self.written(extent)[(page / 64) as usize].load(Ordering::Acquire);
        word >> (page % 64) & 1 != 0
    }

    /// The page's CRC32C as committed last.
    #[must_use]
    pub fn checksum(&self, extent: ExtentIndex, page: u32) -> u32 {
        self.checksum_cell(extent, page).load(Ordering::Acquire)
    }

    /// The run's pages in order as runs of equal state: first page, pages, written.
    pub fn runs(&self, run: PageRun) -> impl Iterator<Item = (u32, u32, bool)> {
        let written = self.written(run.extent);
        let end = run.first + run.count;
        let mut at = run.first;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let first = at;
            let bits =
                |page: u32| written[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64);
            let state = bits(at) & 1 != 0;
            while at < end {
                let word = bits(at);
                let same = if state { word.trailing_ones() } else { word.trailing_zeros() };
                let left = (64 - at % 64).min(end - at);
                at += same.min(left);
                if same < left {
                    break;
                }
            }
            // A concurrent trim may flip the bit between two loads.
            at = at.max(first + 1);
            Some((first, at - first, state))
        })
    }

    /// The run's pages read as zeros from here on.
    pub fn clear_written(&self, run: PageRun) {
        for (word, mask) in run.masks() {
            self.step();
            self.written(run.extent)[word].fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// Written pages of the extent.
    #[must_use]
    pub fn written_pages(&self, extent: ExtentIndex) -> u32 {
        self.written(extent).iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
    }

    /// True if no page is written or being written: the extent may be emptied
    /// by whoever owns it.
    #[must_use]
    pub fn is_vacant(&self, extent: ExtentIndex) -> bool {
        self.written_pages(extent) == 0 && !self.any_open(PageRun::whole(extent))
    }

    /// Pages whose journal entry is open.
    pub fn open_pages(&self, extent: ExtentIndex) -> impl Iterator<Item = u32> {
        self.journal(extent).iter().enumerate().flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Acquire);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word as u32 * 64 + bit)
        })
    }

    /// At recovery, of a page that was open: its contents, whatever they are,
    /// have this checksum from now on.
    pub fn adopt(&self, extent: ExtentIndex, page: u32, checksum: u32) {
        self.checksum_cell(extent, page).store(checksum, Ordering::Relaxed);
        self.close(PageRun { extent, first: page, count: 1 });
    }

    /// The header's magic, version and extents, for recovery to judge.
    #[must_use]
    pub fn header(&self) -> (u64, u64, u64) {
        let word = |n: usize| self.words[n].load(Ordering::Acquire);
        (word(0), word(1), word(2))
    }

    /// What memory holds at this moment, as a crash would leave it.
    #[cfg(test)]
    pub(super) fn survivor(&self) -> Self {
        let copy = Self::new(self.extents);
        for (to, from) in copy.words.iter().zip(&self.words) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        for (to, from) in copy.checksums.iter().zip(&self.checksums) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        copy
    }

    /// Overwrites one raw word, to test that recovery refuses nonsense.
    #[cfg(test)]
    pub(super) fn corrupt(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
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
}
