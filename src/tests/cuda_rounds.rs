// SPDX-License-Identifier: MIT OR Apache-2.0
//! A card that fails in a random way at a random moment under load, with a
//! spill. With a mirror every page that was certain before is right afterwards;
//! without one a page may be an I/O error, and no page is ever wrong.
//!
//! The variable [`ROUNDS`] says how many rounds each test plays (10 without it),
//! [`SEED`] where they begin; what a round does follows from its seed alone, but
//! for how threads interleave.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fake_cuda::Call;
use fake_cuda::control::Word;
use sluice::block::nbd::client::Client;
use sluice::block::nbd::wire::{REPLY_BYTES, Reply, Request as Asked, cmd};
use sluice::engine::view::Request;

use super::World;
use super::cuda_support::served::{Served, spill_in};

const ROUNDS: &str = "SLUICE_FAULT_ROUNDS";
const SEED: &str = "SLUICE_FAULT_SEED";
const PAGE: usize = 4096;
const CLIENTS: usize = 3;
/// Extents that clients write to; they share all of them. The store has 32.
const EXTENTS: u64 = 30;
/// Pages of each client in each extent.
const PAGES: u64 = 4;
/// Requests of each client before the fault and after it.
const BEFORE: u64 = 150;
const AFTER: u64 = 300;
/// Rounds that are played at once.
const AT_ONCE: usize = 3;
/// After so long without an answer, clients whose threads in the store, or its
/// keeper's, may hang are not waited for. Nothing else is concluded from it.
const HANGS: Duration = Duration::from_secs(3);

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// How a card fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A copy call answers an error.
    Copy,
    /// A copy fails at its completion, and the card is lost to the process.
    Completion,
    /// Copies arrive spoiled.
    Corrupt,
    /// Every call on the card fails.
    Lost,
    /// One call of the functions that are not copies fails.
    Function,
    /// Nothing completes for a moment.
    Stall,
    /// A completion never comes.
    Event,
    /// A copy call never returns.
    Call,
}

/// Those that wait for a deadline, or hang, come first: others go on beside them.
const FAULTS: [Fault; 10] = [
    Fault::Call,
    Fault::Event,
    Fault::Copy,
    Fault::Completion,
    Fault::Corrupt,
    Fault::Lost,
    Fault::Function,
    Fault::Stall,
    Fault::Completion,
    Fault::Lost,
];

const FUNCTIONS: [Call; 5] =
    [Call::EventRecord, Call::EventQuery, Call::MemCreate, Call::MemGetInfo, Call::MemUnmap];

const UNSTRUCK: [Word; 6] = [
    Word::CopyFailAt,
    Word::AsyncFailAt,
    Word::CorruptEvery,
    Word::CallFailAt,
    Word::HangEventAt,
    Word::HangCopyAt,
];

impl Fault {
    /// Something may never be answered.
    fn hangs(self) -> bool {
        matches!(self, Self::Event | Self::Call)
    }

    /// Strikes at one of the next operations.
    fn strike(self, world: &World, random: &mut Random) {
        let control = world.control;
        // Not 2, out of memory: of that a tier says that it may pass.
        let code = [999, 719, 700][random.below(3) as usize];
        let at = 1 + random.below(120);
        control.set(Word::FaultDirection, random.below(3));
        match self {
            Self::Copy => {
                control.set(Word::CopyFailCode, code);
                control.set(Word::CopyFailAt, at);
            }
            Self::Completion => {
                control.set(Word::AsyncFailCode, code);
                control.set(Word::AsyncFailAt, at);
            }
            Self::Corrupt => control.set(Word::CorruptEvery, 1 + random.below(40)),
            Self::Lost => {
                control.set(Word::LostCode, code);
                control.set(Word::LostDevices, 1);
            }
            Self::Function => {
                let call = FUNCTIONS[random.below(FUNCTIONS.len() as u64) as usize];
                control.set(Word::CallFails, call as u64);
                control.set(Word::CallFailCode, code);
                control.set(Word::CallFailAt, 1 + random.below(20));
            }
            Self::Stall => {
                control.set(Word::StalledDevices, 1);
                std::thread::sleep(Duration::from_millis(random.below(50)));
                control.set(Word::StalledDevices, 0);
            }
            Self::Event => control.set(Word::HangEventAt, at),
            Self::Call => control.set(Word::HangCopyAt, at),
        }
    }
}

/// What a page may hold.
#[derive(Clone, Debug, Default)]
struct Page {
    /// The last write that was answered with success; 0: none, it is zeros.
    sure: u32,
    /// Writes since then that were not, and may have happened.
    maybe: Vec<u32>,
}

impl Page {
    fn may_be(&self, generation: u32) -> bool {
        self.sure == generation || self.maybe.contains(&generation)
    }
}

/// One client's pages, and what it is at.
struct Book {
    client: u64,
    pages: Vec<Page>,
    /// The page of the request under way.
    open: Option<usize>,
}

impl Book {
    fn new(client: u64) -> Self {
        Self { client, pages: vec![Page::default(); (EXTENTS * PAGES) as usize], open: None }
    }

    /// The number of a page on the device.
    fn number(&self, page: usize) -> u64 {
        let (extent, within) = (page as u64 / PAGES, page as u64 % PAGES);
        extent * 512 + within * CLIENTS as u64 + self.client
    }

    /// What a page is filled with.
    fn word(&self, page: usize, generation: u32) -> [u8; 8] {
        let named = (self.number(page) << 32) | u64::from(generation);
        if generation == 0 { [0; 8] } else { named.to_le_bytes() }
    }

    /// Fails the test if `found` is none of what the page may be.
    fn judge(&self, page: usize, found: &[u8]) {
        let first: [u8; 8] = found[..8].try_into().unwrap();
        let generation = u64::from_le_bytes(first) as u32;
        let is_whole = found.chunks(8).all(|word| word == first);
        assert!(
            is_whole && first == self.word(page, generation) && self.pages[page].may_be(generation),
            "page {} is WRONG: it begins {first:x?} (all alike: {is_whole}) and may be {:?}",
            self.number(page),
            self.pages[page]
        );
    }
}

/// A client under load; its thread, unless it hangs with the card.
struct Load {
    book: Arc<Mutex<Book>>,
    done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Load {
    fn start(client: Client, number: u64, seed: u64, asked: Arc<AtomicU64>, waits: bool) -> Self {
        let book = Arc::new(Mutex::new(Book::new(number)));
        let done = Arc::<AtomicBool>::default();
        let (theirs, ended) = (Arc::clone(&book), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            work(client, &theirs, Random(seed), &asked, waits);
            ended.store(true, Ordering::Release);
        });
        Self { book, done, thread }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) || self.thread.is_finished()
    }
}

/// Asks and judges. Where answers may be waited for, the first error is enough.
fn work(
    mut client: Client,
    book: &Mutex<Book>,
    mut random: Random,
    asked: &AtomicU64,
    waits: bool,
) {
    let mut generation = 0;
    for _ in 0..BEFORE + AFTER {
        let page = random.below(EXTENTS * PAGES) as usize;
        let mut now = book.lock().unwrap();
        let offset = now.number(page) * PAGE as u64;
        now.open = Some(page);
        let result = if random.below(2) == 0 {
            generation += 1;
            now.pages[page].maybe.push(generation);
            let data = now.word(page, generation).repeat(PAGE / 8);
            drop(now);
            let result = client.write(offset, &data);
            now = book.lock().unwrap();
            if result.is_ok() {
                now.pages[page] = Page { sure: generation, maybe: Vec::new() };
            }
            result
        } else {
            drop(now);
            let mut found = vec![0; PAGE];
            let result = client.read(offset, &mut found);
            now = book.lock().unwrap();
            if result.is_ok() {
                now.judge(page, &found);
            }
            result
        };
        now.open = None;
        drop(now);
        asked.fetch_add(1, Ordering::Relaxed);
        if waits && result.is_err() {
            asked.fetch_add(BEFORE, Ordering::Relaxed);
            return;
        }
    }
}

/// Reads pages, all at a time: one that can be had of nobody is waited for as long
/// as all of them.
fn read_all(client: Client, offsets: &[u64]) -> Vec<Option<Vec<u8>>> {
    let mut stream = client.into_stream();
    let mut found = vec![None; offsets.len()];
    for (cookie, offset) in (0..).zip(offsets) {
        let bytes = PAGE as u32;
        let asked = Asked { flags: 0, kind: cmd::READ, cookie, offset: *offset, bytes };
        stream.write_all(&asked.encode()).unwrap();
    }
    for _ in offsets {
        let mut head = [0; REPLY_BYTES];
        stream.read_exact(&mut head).unwrap();
        let reply = Reply::parse(&head).unwrap();
        if reply.error == 0 {
            let mut page = vec![0; PAGE];
            stream.read_exact(&mut page).unwrap();
            found[reply.cookie as usize] = Some(page);
        }
    }
    found
}

/// Reads every page, as another client; each is one that it may be. Without a
/// fault of its own a mirror's page is there at the third time at the latest:
/// one read may have waited for the card, and one for its extent to move.
fn all_are_right(served: &Served, loads: &[Load], mirror: bool) {
    let books: Vec<_> = loads.iter().map(|load| load.book.lock().unwrap()).collect();
    let mut left: Vec<(&Book, usize)> = Vec::new();
    for book in &books {
        let pages = (0..book.pages.len()).filter(|page| book.open != Some(*page));
        left.extend(pages.map(|page| (&**book, page)));
    }
    for _ in 0..if mirror { 3 } else { 1 } {
        let offsets: Vec<u64> =
            left.iter().map(|(book, page)| book.number(*page) * PAGE as u64).collect();
        let mut found = read_all(served.client(), &offsets).into_iter();
        left.retain(|(book, page)| match found.next().flatten() {
            Some(found) => {
                book.judge(*page, &found);
                false
            }
            None => true,
        });
    }
    for (book, page) in left {
        let is_certain = book.pages[page].maybe.is_empty();
        assert!(!mirror || !is_certain, "page {} is LOST", book.number(page));
    }
}

/// One card, one store, one fault.
fn play(round: u64, seed: u64, spill: &Path, mirror: bool) {
    let fault = FAULTS[(round % FAULTS.len() as u64) as usize];
    let mut random = Random(seed);
    let begun = Instant::now();
    println!("round {round}: seed {seed}, {fault:?}");
    let world = World::new();
    world.control.set(Word::NotReadyAnswers, random.below(3));
    let control = world.folder.path().join("orders");
    let spill = spill.to_str().unwrap();
    let mut arguments = vec!["--size", "64M", "--spill", spill, "--control"];
    arguments.push(control.to_str().unwrap());
    arguments.extend(mirror.then_some("--mirror"));
    let mut served = world.try_serve(&arguments).unwrap_or_else(|ended| panic!("{}", ended.stderr));
    let asked = Arc::<AtomicU64>::default();
    let loads: Vec<Load> = (0..CLIENTS as u64)
        .map(|number| {
            let waits = fault.hangs();
            Load::start(served.client(), number, random.next(), Arc::clone(&asked), waits)
        })
        .collect();
    while asked.load(Ordering::Relaxed) < CLIENTS as u64 * BEFORE {
        std::thread::yield_now();
    }
    if random.below(2) == 0 {
        // In the middle of moving everything away.
        let drain = Request::Drain { deadline_ms: Some(0) };
        sluice::runtime::ask(&control, &drain).unwrap();
    }
    fault.strike(&world, &mut random);
    let at_work = || loads.iter().filter(|load| !load.is_done()).count();
    // A call that never returns is one client's, or the keeper's.
    let hangs = || fault == Fault::Call && world.control.get(Word::HangCopyAt) == 0;
    let (mut answered, mut since) = (0, Instant::now());
    while at_work() > 0 && !(hangs() && (at_work() == 1 || since.elapsed() > HANGS)) {
        std::thread::sleep(Duration::from_millis(5));
        let now = asked.load(Ordering::Relaxed);
        if now != answered {
            (answered, since) = (now, Instant::now());
        }
    }
    // One that has not struck would strike while a new client's lane is tried
    // out, which refuses the client and is not what this is about.
    for word in UNSTRUCK {
        world.control.set(word, 0);
    }
    all_are_right(&served, &loads, mirror);
    let mut client = served.client();
    // An extent that nobody had, and the store as it was.
    let fresh = vec![7; PAGE];
    client.write(EXTENTS << 21, &fresh).unwrap();
    assert!(served.is_alive());
    assert_eq!(world.control.get(Word::Misuses), 0);
    end(served, loads);
    println!("round {round}: over after {:.1} s", begun.elapsed().as_secs_f64());
}

/// With the store the last of the clients ends.
fn end(served: Served, loads: Vec<Load>) {
    drop(served);
    for load in loads {
        load.thread.join().expect("a client met a wrong page");
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}

fn rounds(mirror: bool) {
    let (rounds, first) = (number(ROUNDS, 10), number(SEED, 1));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                    let spill = spill_in(folder.path());
                    loop {
                        let round = next.fetch_add(1, Ordering::Relaxed) as u64;
                        if round >= rounds {
                            break;
                        }
                        play(round, first.wrapping_add(round), &spill, mirror);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("a round failed; its seed is above");
        }
    });
}

#[test]
fn a_card_that_fails_at_any_moment_costs_a_mirror_no_page() {
    rounds(true);
}

#[test]
fn a_card_that_fails_at_any_moment_makes_no_page_wrong() {
    rounds(false);
}
