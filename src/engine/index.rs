// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index: what must survive the process, and the order in which it changes.
//!
//! Per extent one entry (64 bits, always exactly one place), a map of written
//! pages, a map of open pages (the journal), a map of bad pages (written, and
//! lost by the tier that had them: no read of one succeeds until it is written
//! again) and a CRC32C per page.
//!
//! # Order of commitment
//! * Write: [`Index::open`] (journal) → data → tier completion →
//!   [`Index::commit`]: checksum, then the written bit (release), then the bad
//!   bit cleared, then the journal bit cleared → reply.
//! * Move: copy → tier completion → bad bits of what could not be copied →
//!   [`Index::flip`] (one store) → old slot freed.
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

use super::error::Error;
use super::layout::{self, Facts, Layout, MAP_WORDS, distrust};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::units::{ExtentIndex, PAGES_PER_EXTENT, SlabIndex, SlotIndex};

/// A map of an extent's pages at one moment, one bit a page.
pub type PageMap = [u64; MAP_WORDS];

/// The runs of set pages in a map: first page, pages.
pub fn runs_in(map: &PageMap) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let set = |page: u32| map[(page / 64) as usize] >> (page % 64) & 1 != 0;
        while at < PAGES_PER_EXTENT as u32 && !set(at) {
            at += 1;
        }
        let first = at;
        while at < PAGES_PER_EXTENT as u32 && set(at) {
            at += 1;
        }
        (at > first).then(|| (first, at - first))
    })
}

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
    pub(super) fn masks(self) -> impl DoubleEndedIterator<Item = (usize, u64)> + Clone {
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
    layout: Layout,
    /// Header, entries, written maps, open maps, bad maps.
    words: Memory<AtomicU64>,
    /// One per page.
    checksums: Memory<AtomicU32>,
    /// Bad maps of a layout that has none: forgotten with the process, and found
    /// again by their checksums.
    bad_aside: Box<[AtomicU64]>,
    /// Stores left before the simulated crash; later ones change nothing.
    #[cfg(test)]
    pub(super) fuel: std::sync::Arc<super::crash::Fuel>,
}

/// Where an index lies.
#[derive(Debug)]
enum Memory<T: 'static> {
    /// In this process, and gone with it.
    Own(Box<[T]>),
    /// In memory that outlives it.
    Given(&'static [T]),
}

impl<T> std::ops::Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(own) => own,
            Self::Given(given) => given,
        }
    }
}

impl Index {
    /// An empty index of `extents` extents, in this process's memory: nothing
    /// written, nothing placed.
    #[must_use]
    pub fn new(extents: u32) -> Self {
        Self::own(Layout::new(extents))
    }

    fn own(layout: Layout) -> Self {
        let words: Box<[_]> = (0..layout.words()).map(|_| AtomicU64::new(0)).collect();
        layout.write(&words, &Facts::default());
        let checksums = (0..layout.checksums()).map(|_| AtomicU32::new(0)).collect();
        Self::of(layout, Memory::Own(words), Memory::Own(checksums))
    }

    fn of(layout: Layout, words: Memory<AtomicU64>, checksums: Memory<AtomicU32>) -> Self {
        let aside = if layout.bad.is_some() { 0 } else { layout.extents() as usize * MAP_WORDS };
        Self {
            layout,
            words,
            checksums,
            bad_aside: (0..aside).map(|_| AtomicU64::new(0)).collect(),
            #[cfg(test)]
            fuel: std::sync::Arc::default(),
        }
    }

    /// Makes an empty index in zeroed memory of the newest layout
    /// ([`Layout::new`]), which may outlive the process.
    ///
    /// Errors: `Protocol` if the memory has not the layout's lengths.
    pub fn create(
        extents: u32,
        facts: &Facts,
        words: &'static [AtomicU64],
        checksums: &'static [AtomicU32],
    ) -> Result<Self, Error> {
        let index = Self::given(Layout::new(extents), words, checksums)?;
        index.layout.write(&index.words, facts);
        Ok(index)
    }

    /// The index that memory holds already. Judge it with [`Layout::judge`] to
    /// learn where its two parts are.
    ///
    /// Errors: `Protocol` if the memory has not the layout's lengths.
    pub fn over(
        layout: Layout,
        words: &'static [AtomicU64],
        checksums: &'static [AtomicU32],
    ) -> Result<Self, Error> {
        Self::given(layout, words, checksums)
    }

    fn given(
        layout: Layout,
        words: &'static [AtomicU64],
        checksums: &'static [AtomicU32],
    ) -> Result<Self, Error> {
        if words.len() < layout.words() || checksums.len() < layout.checksums() {
            return Err(distrust(format!(
                "an index of {} words and {} checksums in memory for {} and {}",
                layout.words(),
                layout.checksums(),
                words.len(),
                checksums.len()
            )));
        }
        let (words, checksums) = (&words[..layout.words()], &checksums[..layout.checksums()]);
        Ok(Self::of(layout, Memory::Given(words), Memory::Given(checksums)))
    }

    /// Extents of the device.
    #[must_use]
    pub fn extents(&self) -> u32 {
        self.layout.extents()
    }

    /// Bytes of memory the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.words.len() * 8 + self.checksums.len() * 4) as u64
    }

    fn entry(&self, extent: ExtentIndex) -> &AtomicU64 {
        &self.words[self.layout.entries + extent.0 as usize]
    }

    /// The extent's map in a part of the words.
    fn map(&self, part: usize, extent: ExtentIndex) -> &[AtomicU64] {
        let at = part + extent.0 as usize * MAP_WORDS;
        &self.words[at..at + MAP_WORDS]
    }

    fn written(&self, extent: ExtentIndex) -> &[AtomicU64] {
        self.map(self.layout.written, extent)
    }

    fn journal(&self, extent: ExtentIndex) -> &[AtomicU64] {
        self.map(self.layout.journal, extent)
    }

    fn bad(&self, extent: ExtentIndex) -> &[AtomicU64] {
        match self.layout.bad {
            Some(part) => self.map(part, extent),
            None => &self.bad_aside[extent.0 as usize * MAP_WORDS..][..MAP_WORDS],
        }
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

    /// Names another place that has the extent's pages as well. True: done, by
    /// this caller or another. The caller holds a pin; the old place stays
    /// untouched until somebody owns the extent.
    pub fn divert(&self, extent: ExtentIndex, from: Place, to: Place) -> bool {
        self.step();
        let (from, to) = (from.encode(), to.encode());
        let changed =
            self.entry(extent).compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok() || changed == Err(to)
    }

    /// Notes for recovery that the spill has a copy of every extent.
    pub fn set_mirrored(&self) {
        self.layout.set_flag(&self.words, layout::MIRRORED);
    }

    /// True if the spill has a copy of every extent.
    #[must_use]
    pub fn is_mirrored(&self) -> bool {
        Layout::has_flag(&self.words, layout::MIRRORED)
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
        self.clear_bad(run);
        self.close(run);
    }

    /// What the run's pages hold now is what they were given last.
    fn clear_bad(&self, run: PageRun) {
        for (word, mask) in run.masks() {
            let bad = &self.bad(run.extent)[word];
            // Nearly always there is nothing to clear.
            if bad.load(Ordering::Relaxed) & mask != 0 {
                self.step();
                bad.fetch_and(!mask, Ordering::Release);
            }
        }
    }

    /// Notes that these pages are lost. The caller owns the extent, or has
    /// opened the pages.
    pub fn mark_bad(&self, extent: ExtentIndex, pages: &PageMap) {
        for (bad, mask) in self.bad(extent).iter().zip(pages) {
            if *mask != 0 {
                self.step();
                bad.fetch_or(*mask, Ordering::Release);
            }
        }
    }

    /// Ends a write that failed after its extent had left its old place: what
    /// the run's pages held is gone.
    pub fn abandon_lost(&self, pages: OpenPages) {
        let mut lost: PageMap = [0; MAP_WORDS];
        for (word, mask) in pages.run().masks() {
            lost[word] = mask;
        }
        self.mark_bad(pages.run().extent, &lost);
        self.abandon(pages);
    }

    /// Notes that all the extent holds outside the run is lost; how many pages
    /// that were not before. The caller owns the extent.
    pub fn lose_outside(&self, run: PageRun) -> u32 {
        let mut lost = self.sound_map(run.extent);
        for (word, mask) in run.masks() {
            lost[word] &= !mask;
        }
        self.mark_bad(run.extent, &lost);
        lost.iter().map(|word| word.count_ones()).sum()
    }

    /// True if a written page of the run is lost.
    #[must_use]
    pub fn any_bad(&self, run: PageRun) -> bool {
        let (bad, written) = (self.bad(run.extent), self.written(run.extent));
        run.masks().any(|(word, mask)| {
            let lost = bad[word].load(Ordering::Acquire) & mask;
            lost != 0 && lost & written[word].load(Ordering::Acquire) != 0
        })
    }

    /// Written pages that are lost.
    #[must_use]
    pub fn bad_pages(&self, extent: ExtentIndex) -> u32 {
        let (bad, written) = (self.bad(extent), self.written(extent));
        bad.iter()
            .zip(written)
            .map(|(b, w)| (b.load(Ordering::Acquire) & w.load(Ordering::Acquire)).count_ones())
            .sum()
    }

    /// The pages that hold data that can be read: written and not lost.
    #[must_use]
    pub fn sound_map(&self, extent: ExtentIndex) -> PageMap {
        let (bad, written) = (self.bad(extent), self.written(extent));
        std::array::from_fn(|n| {
            written[n].load(Ordering::Acquire) & !bad[n].load(Ordering::Acquire)
        })
    }

    /// True if every written page of the extent is in the run.
    #[must_use]
    pub fn is_covered_by(&self, run: PageRun) -> bool {
        let mut written: PageMap =
            std::array::from_fn(|n| self.written(run.extent)[n].load(Ordering::Acquire));
        for (word, mask) in run.masks() {
            written[word] &= !mask;
        }
        written.iter().all(|word| *word == 0)
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
        let run = PageRun { extent, first: page, count: 1 };
        self.checksum_cell(extent, page).store(checksum, Ordering::Relaxed);
        self.clear_bad(run);
        self.close(run);
    }

    /// The same of one whose contents cannot be read: it is bad until rewritten.
    pub(super) fn adopt_unreadable(&self, extent: ExtentIndex, page: u32) {
        let mut map = PageMap::default();
        map[(page / 64) as usize] = 1 << (page % 64);
        self.mark_bad(extent, &map);
        self.close(PageRun { extent, first: page, count: 1 });
    }

    /// Judges the header again: is it still the index that it was taken for?
    pub(super) fn judge(&self) -> Result<(), Error> {
        let found = Layout::judge(&self.words, self.memory_bytes())?;
        if found == self.layout {
            return Ok(());
        }
        Err(distrust(format!(
            "the index says {} extents in memory for {}",
            found.extents(),
            self.extents()
        )))
    }

    /// What the header says beside the geometry; `None`: nothing, an old version.
    #[must_use]
    pub fn facts(&self) -> Option<Facts> {
        self.layout.facts(&self.words)
    }

    /// What memory holds at this moment, as a crash would leave it.
    #[cfg(test)]
    pub(super) fn survivor(&self) -> Self {
        let copy = Self::own(self.layout);
        for (to, from) in copy.words.iter().zip(self.words.iter()) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        for (to, from) in copy.checksums.iter().zip(self.checksums.iter()) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        for (to, from) in copy.bad_aside.iter().zip(self.bad_aside.iter()) {
            to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        copy
    }

    /// An empty index as the first version made it.
    #[cfg(test)]
    pub(super) fn of_version_1(extents: u32) -> Self {
        Self::own(Layout::version_1(extents))
    }

    /// One raw word.
    #[cfg(test)]
    pub(super) fn raw(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::SeqCst)
    }

    /// Overwrites one raw word, to test that recovery refuses nonsense.
    #[cfg(test)]
    pub(super) fn corrupt(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[path = "index/tests.rs"]
mod tests;
