// SPDX-License-Identifier: MIT OR Apache-2.0
//! A `BlockIo` over plain memory that finishes requests in any order, holds
//! them back on demand, and checks that its caller keeps the contract.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluice::block::nbd::waker::EventWaker;
use sluice::engine::io::{BlockIo, Command, Failure, Finished, Idle, Ticket};
use sluice::engine::tier::{HostMemory, Wake};

use super::{Dice, PAGE};

/// Page-aligned memory.
struct Aligned {
    base: *mut u8,
    layout: std::alloc::Layout,
}

// SAFETY: it is plain memory; who touches which part when is settled by tickets.
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).unwrap();
        // SAFETY: the layout has a size, all tests ask for at least a page.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!base.is_null());
        Self { base, layout }
    }

    fn range(&self, at: u32, bytes: u32) -> *mut u8 {
        assert!(at as usize + bytes as usize <= self.layout.size());
        // SAFETY: within the allocation, as just checked.
        unsafe { self.base.add(at as usize) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.base, self.layout) };
    }
}

impl HostMemory for Aligned {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn zero(&self, at: u32, bytes: u32) {
        // SAFETY: in range, and the ticket's owner called.
        unsafe { self.range(at, bytes).write_bytes(0, bytes as usize) };
    }

    fn crc32c(&self, _at: u32, _bytes: u32) -> u32 {
        unreachable!("the server does not checksum")
    }

    fn is_all_ones(&self, _at: u32, _bytes: u32) -> bool {
        unreachable!("the server does not compare")
    }
}

/// What several connections share: the bytes, and what goes wrong with them.
pub struct Disk {
    bytes: Mutex<Vec<u8>>,
    /// Offsets whose requests do not finish.
    held: Mutex<BTreeSet<u64>>,
    /// Offsets whose requests fail.
    failing: Mutex<BTreeMap<u64, Failure>>,
    /// Requests started and not finished, over all connections.
    open: AtomicUsize,
}

impl Disk {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(vec![0; bytes]),
            held: Mutex::default(),
            failing: Mutex::default(),
            open: AtomicUsize::new(0),
        })
    }

    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }

    pub fn hold(&self, offset: u64) {
        self.held.lock().unwrap().insert(offset);
    }

    pub fn let_go(&self) {
        self.held.lock().unwrap().clear();
    }

    pub fn fail(&self, offset: u64, failure: Failure) {
        self.failing.lock().unwrap().insert(offset, failure);
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until exactly `count` requests are open.
    pub fn await_open(&self, count: usize) {
        while self.open() != count {
            std::thread::yield_now();
        }
    }
}

/// When requests finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// All that can, at the next drive.
    Prompt,
    /// A random few at each drive, in random order; must be polled.
    Shuffled(u64),
    /// In the background, one by one in random order, ringing the waker.
    Woken(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved,
    Started { command: Command, offset: u64, bytes: u64 },
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    host: u32,
    payload: u32,
}

/// One connection's view of a [`Disk`].
pub struct MemoryIo {
    disk: Arc<Disk>,
    aligned: Arc<Aligned>,
    memory: Arc<dyn HostMemory>,
    page_taken: Vec<bool>,
    places: Vec<Place>,
    queue: VecDeque<u32>,
    dice: Dice,
    style: Style,
    bell: Option<Bell>,
}

/// Rings the waker from another thread whenever a request may finish.
struct Bell {
    requests: std::sync::mpsc::SyncSender<()>,
    allowed: Arc<AtomicUsize>,
}

impl MemoryIo {
    pub const MAX_REQUESTS: usize = 32;
    pub const MAX_PAYLOAD: u32 = 1 << 20;
    const MEMORY: usize = 2 << 20;

    pub fn new(disk: Arc<Disk>, style: Style, waker: Arc<EventWaker>) -> Self {
        let aligned = Arc::new(Aligned::new(Self::MEMORY));
        let (seed, bell) = match style {
            Style::Prompt => (1, None),
            Style::Shuffled(seed) => (seed, None),
            Style::Woken(seed) => (seed, Some(Bell::new(waker))),
        };
        Self {
            disk,
            memory: aligned.clone(),
            aligned,
            page_taken: vec![false; Self::MEMORY / PAGE],
            places: vec![Place { state: State::Free, host: 0, payload: 0 }; Self::MAX_REQUESTS],
            queue: VecDeque::with_capacity(Self::MAX_REQUESTS),
            dice: Dice(seed | 1 << 40),
            style,
            bell,
        }
    }

    fn pages(place: &Place) -> std::ops::Range<usize> {
        let first = place.host as usize / PAGE;
        first..first + (place.payload as usize).div_ceil(PAGE)
    }

    fn perform(&self, place: &Place) -> Result<(), Failure> {
        let State::Started { command, offset, bytes } = place.state else {
            unreachable!("only started requests are queued")
        };
        if let Some(&failure) = self.disk.failing.lock().unwrap().get(&offset) {
            return Err(failure);
        }
        let mut disk = self.disk.bytes();
        if command == Command::Flush {
            return Ok(());
        }
        let end = offset + bytes;
        if end > disk.len() as u64 || !(offset | bytes).is_multiple_of(PAGE as u64) {
            return Err(Failure::OutOfRange);
        }
        let range = &mut disk[offset as usize..end as usize];
        let host = self.aligned.range(place.host, place.payload);
        // SAFETY: a started ticket's memory is the store's.
        let host = unsafe { std::slice::from_raw_parts_mut(host, place.payload as usize) };
        match command {
            Command::Read => host.copy_from_slice(range),
            Command::Write => range.copy_from_slice(host),
            Command::Trim | Command::WriteZeroes => range.fill(0),
            Command::Flush => {}
        }
        Ok(())
    }
}

impl Bell {
    fn new(waker: Arc<EventWaker>) -> Self {
        let (requests, inbox) = std::sync::mpsc::sync_channel(MemoryIo::MAX_REQUESTS * 4);
        let allowed = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&allowed);
        std::thread::spawn(move || {
            for () in inbox {
                std::thread::sleep(Duration::from_micros(20));
                counter.fetch_add(1, Ordering::SeqCst);
                waker.wake();
            }
        });
        Self { requests, allowed }
    }
}

impl BlockIo for MemoryIo {
    fn device_bytes(&self) -> u64 {
        self.disk.bytes().len() as u64
    }

    fn memory(&self) -> &Arc<dyn HostMemory> {
        &self.memory
    }

    fn max_requests(&self) -> usize {
        Self::MAX_REQUESTS
    }

    fn max_payload(&self) -> u32 {
        Self::MAX_PAYLOAD
    }

    fn reserve(&mut self, payload: u32) -> Option<Ticket> {
        let token = self.places.iter().position(|place| place.state == State::Free)?;
        let pages = (payload as usize).div_ceil(PAGE);
        let mut free = 0;
        let first = (0..self.page_taken.len()).find_map(|page| {
            free = if self.page_taken[page] { 0 } else { free + 1 };
            (free >= pages.max(1)).then(|| page + 1 - pages.max(1))
        })?;
        self.page_taken[first..first + pages].fill(true);
        let host = (first * PAGE) as u32;
        self.places[token] = Place { state: State::Reserved, host, payload };
        Some(Ticket { token: token as u32, host })
    }

    fn start(&mut self, token: u32, command: Command, offset: u64, bytes: u64) {
        let place = &mut self.places[token as usize];
        assert_eq!(place.state, State::Reserved, "started without being reserved");
        if matches!(command, Command::Read | Command::Write) {
            assert_eq!(u64::from(place.payload), bytes, "started with another length");
        }
        place.state = State::Started { command, offset, bytes };
        self.queue.push_back(token);
        self.disk.open.fetch_add(1, Ordering::SeqCst);
        if let Some(bell) = &self.bell {
            // A full channel only means that enough rings are on their way.
            let _ = bell.requests.try_send(());
        }
    }

    fn drive(&mut self, _now: Duration, finished: &mut Vec<Finished>) {
        let mut tries = match self.style {
            Style::Prompt => self.queue.len(),
            Style::Shuffled(_) => self.dice.below(self.queue.len() + 1),
            Style::Woken(_) => self.bell.as_ref().unwrap().allowed.swap(0, Ordering::SeqCst),
        };
        for _ in 0..self.queue.len() {
            if tries == 0 {
                return;
            }
            let at = match self.style {
                Style::Prompt => 0,
                _ => self.dice.below(self.queue.len()),
            };
            let Some(token) = self.queue.remove(at) else { return };
            let place = self.places[token as usize];
            if let State::Started { offset, .. } = place.state
                && self.disk.held.lock().unwrap().contains(&offset)
            {
                self.queue.push_back(token);
                if let Some(bell) = &self.bell {
                    let _ = bell.requests.try_send(());
                }
                continue;
            }
            tries -= 1;
            let result = self.perform(&place);
            self.places[token as usize].state = State::Finished;
            self.disk.open.fetch_sub(1, Ordering::SeqCst);
            finished.push(Finished { token, result });
        }
        // Rings for requests that found nothing to do are kept for later ones.
        if let (Style::Woken(_), Some(bell)) = (self.style, &self.bell) {
            bell.allowed.fetch_add(tries, Ordering::SeqCst);
        }
    }

    /// Everything here has begun already.
    fn cancel(&mut self) {}

    fn release(&mut self, token: u32) {
        let place = self.places[token as usize];
        let ours = matches!(place.state, State::Reserved | State::Finished);
        assert!(ours, "released in state {:?}", place.state);
        self.page_taken[Self::pages(&place)].fill(false);
        let host = self.aligned.range(place.host, place.payload);
        // SAFETY: nobody may use a released ticket's memory; if the server does
        // after this, the client sees the poison.
        unsafe { host.write_bytes(0xdd, place.payload as usize) };
        self.places[token as usize].state = State::Free;
    }

    fn idle(&self) -> Idle {
        match self.style {
            _ if self.queue.is_empty() => Idle::Empty,
            Style::Woken(_) => Idle::Woken,
            _ => Idle::Poll,
        }
    }
}
