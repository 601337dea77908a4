// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that does what the kernel does: what was not answered when the
//! connection was lost is sent again on the next. It knows what each of its
//! pages must hold.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice::block::nbd::client::Client;
use sluice::engine::error::{Error, Kind};

const PAGE: usize = 4096;
/// How long a store may take to come back: a GPU is opened anew.
const PATIENCE: Duration = Duration::from_secs(120);

/// See the module.
pub struct Reconnecting {
    socket: PathBuf,
    client: Option<Client>,
    first: usize,
    /// How often each page was written; 0: never.
    versions: Vec<u64>,
    random: u64,
    /// Requests that were sent again.
    pub resent: u64,
    /// The longest that one request took, from first sent to answered.
    pub longest: Duration,
}

impl Reconnecting {
    /// A client that owns `pages` pages from page `first` on.
    pub fn new(socket: &Path, first: usize, pages: usize) -> Self {
        Self {
            socket: socket.to_owned(),
            client: None,
            first,
            versions: vec![0; pages],
            random: first as u64 + 1,
            resent: 0,
            longest: Duration::ZERO,
        }
    }

    /// One write of a page, or one read of another that must be right.
    pub fn step(&mut self) {
        let at = self.roll() as usize % self.versions.len();
        if self.roll().is_multiple_of(2) {
            self.versions[at] += 1;
            let (offset, data) = self.page(at);
            self.until_answered(|client| client.write(offset, &data));
        } else {
            self.verify(at);
        }
    }

    /// Reads every page; how many were ever written.
    pub fn verify_all(&mut self) -> usize {
        (0..self.versions.len()).for_each(|at| self.verify(at));
        self.versions.iter().filter(|version| **version > 0).count()
    }

    fn verify(&mut self, at: usize) {
        let (offset, expected) = self.page(at);
        let mut found = vec![0xee; PAGE];
        self.until_answered(|client| client.read(offset, &mut found));
        let (page, version) = (self.first + at, self.versions[at]);
        assert!(found == expected, "page {page} is not its version {version}");
    }

    /// The page's place and what it holds: every word tells page and version.
    fn page(&self, at: usize) -> (u64, Vec<u8>) {
        let (page, version) = ((self.first + at) as u64, self.versions[at]);
        let mut data = vec![0; PAGE];
        if version > 0 {
            for (number, word) in (0u64..).zip(data.chunks_exact_mut(8)) {
                let value =
                    (page << 32 ^ version << 9 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        (page * PAGE as u64, data)
    }

    fn until_answered(&mut self, mut ask: impl FnMut(&mut Client) -> Result<(), Error>) {
        let begun = Instant::now();
        loop {
            let result = match &mut self.client {
                Some(client) => ask(client),
                None => Err(Error::new(Kind::Missing, "not connected")),
            };
            let Err(error) = result else { break };
            // A store that answers with an error has lost a page: closing is no answer.
            let lost = error.to_string().contains("closed the connection");
            assert!(self.client.is_none() || lost, "{error}");
            self.resent += u64::from(self.client.is_some());
            assert!(begun.elapsed() < PATIENCE, "no store came back in {} s", PATIENCE.as_secs());
            self.client = Client::connect(&self.socket, "").ok();
            if self.client.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.longest = self.longest.max(begun.elapsed());
    }

    /// xorshift64: the same order of pages in each run.
    fn roll(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
