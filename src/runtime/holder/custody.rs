// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's side: what it has handed over, and to whom.
//!
//! A store without a holder keeps the list all the same and gives everything to
//! the first one that comes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;

use super::inventory::Inventory;
use super::message::{BYTES, End, Kind, Message, Role, slab_number};
use crate::engine::error::{Error, Kind as ErrorKind};
use crate::engine::tier::Tier;
use crate::engine::units::{SLAB_BYTES, SlabIndex};
use crate::host::handover;

/// How long a holder may take to map and lock what it is given.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long one who does not answer is waited for.
const SHORTLY: Duration = Duration::from_secs(1);

/// Where a descriptor to be kept comes from.
pub enum Source {
    /// It is this.
    Descriptor(OwnedFd),
    /// The tier makes one when it is needed.
    Slab(Arc<dyn Tier>, SlabIndex),
}

impl Source {
    fn with<T>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        match self {
            Self::Descriptor(fd) => use_it(fd.as_fd()),
            Self::Slab(tier, slab) => use_it(tier.export(*slab)?.as_fd()),
        }
    }
}

struct Kept {
    source: Source,
    /// Bytes that the holder locks; 0: none.
    bytes: u64,
}

/// See the module. Shared by the main thread and whoever takes slabs.
pub struct Custody(Mutex<State>);

struct State {
    link: Option<OwnedFd>,
    sequence: u32,
    kept: BTreeMap<(Role, u32), Kept>,
    /// What the holder is told when the store serves; `None`: it does not yet.
    serving: Option<u64>,
}

impl Custody {
    /// Of a store that nobody holds.
    #[must_use]
    pub fn unheld() -> Self {
        Self(Mutex::new(State { link: None, sequence: 0, kept: BTreeMap::new(), serving: None }))
    }

    /// Of a store that the process at the other end of `link` started; and what
    /// that one holds.
    pub fn held(link: OwnedFd) -> Result<(Self, Inventory)> {
        handover::send(link.as_fd(), &Message::new(Kind::Hello).encode(), None)
            .context("the holder cannot be asked")?;
        let mut inventory = Inventory::default();
        let mut record = [0; BYTES];
        loop {
            let (bytes, passed) = receive(link.as_fd(), &mut record, PATIENCE)?;
            let Some(message) = Message::decode(&record[..bytes]) else {
                anyhow::ensure!(bytes > 0, "the holder ended while it was asked");
                continue;
            };
            match (message.kind, passed) {
                (Kind::Item, Some(fd)) => inventory.add(&message, fd),
                (Kind::All, _) => break,
                _ => {}
            }
        }
        let custody = Self::unheld();
        custody.lock().link = Some(link);
        Ok((custody, inventory))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the holder has already, so that another one would get it too.
    pub fn note(&self, role: Role, number: u32, source: Source, bytes: u64) {
        self.lock().kept.insert((role, number), Kept { source, bytes });
    }

    /// Hands something over; when this returns it outlives this process, if
    /// anybody holds it at all. Waits for the holder.
    ///
    /// Errors: the holder has no room for it or cannot lock it. It is not kept.
    pub fn keep(&self, role: Role, number: u32, source: Source, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        let earlier = state.kept.insert((role, number), Kept { source, bytes });
        let given = state.give(role, number);
        if given.is_err() {
            match earlier {
                Some(earlier) => state.kept.insert((role, number), earlier),
                None => state.kept.remove(&(role, number)),
            };
        }
        given
    }

    /// Hands the server's end of a device's connection over, in place of the
    /// one before, which is shut down. Only a help: nothing is waited for.
    pub fn keep_socket(&self, device: u32, socket: OwnedFd) {
        let mut state = self.lock();
        state.cut(device);
        state.tell(&Message::about(Kind::Keep, Role::Socket, device), Some(socket.as_fd()));
        let kept = Kept { source: Source::Descriptor(socket), bytes: 0 };
        state.kept.insert((Role::Socket, device), kept);
    }

    /// Ends a device's connection, whoever has a copy of its socket.
    pub fn cut(&self, device: u32) {
        self.lock().cut(device);
    }

    /// Takes back a slab's, or anything's, keeping.
    pub fn forget(&self, role: Role, number: u32) {
        let mut state = self.lock();
        if state.kept.remove(&(role, number)).is_some() {
            state.tell(&Message::about(Kind::Forget, role, number), None);
        }
    }

    /// The same for all of a role from a number on.
    pub fn forget_from(&self, role: Role, first: u32) {
        let kept = self.lock().kept.range((role, first)..).map(|(key, _)| *key).collect::<Vec<_>>();
        for (_, number) in kept.into_iter().filter(|(of, _)| *of == role) {
            self.forget(role, number);
        }
    }

    /// Has the holder let go of what was found and is of no use.
    pub fn let_go(&self, inventory: &Inventory) {
        let mut state = self.lock();
        let slabs = inventory.slabs.keys().filter_map(|(tier, slab)| slab_number(*tier, *slab));
        let things = slabs.map(|number| (Role::Slab, number)).chain([
            (Role::Index, 0),
            (Role::Description, 0),
            (Role::Spill, 0),
        ]);
        for (role, number) in things {
            state.tell(&Message::about(Kind::Forget, role, number), None);
        }
    }

    /// Takes everything back: nothing is in use any more.
    pub fn forget_all(&self) {
        let all: Vec<_> = self.lock().kept.keys().copied().collect();
        for (role, number) in all {
            self.forget(role, number);
        }
    }

    /// The store serves; the next one would need `memory` bytes to start.
    pub fn serving(&self, memory: u64) {
        let mut state = self.lock();
        state.serving = Some(memory);
        state.tell_serving();
    }

    /// Says how this store is about to end. False: nobody heard it.
    pub fn goodbye(&self, end: End, code: u32, why: &str) -> bool {
        let mut message = Message::new(Kind::Goodbye).saying(why);
        (message.code, message.number) = (end as i32, code);
        let state = self.lock();
        let Some(link) = &state.link else { return false };
        // Many things may have been taken back just before; this must arrive.
        let _ = handover::wait_writable(link.as_fd(), PATIENCE);
        handover::send(link.as_fd(), &message.encode(), None).is_ok()
    }

    /// Whether somebody holds this store. Notices who is gone.
    pub fn is_held(&self) -> bool {
        let mut state = self.lock();
        if state.link.as_ref().is_some_and(|link| handover::is_gone(link.as_fd())) {
            state.link = None;
        }
        state.link.is_some()
    }

    /// A copy of the link to wait on: its end is the holder's.
    pub fn watch(&self) -> Option<OwnedFd> {
        self.lock().link.as_ref().and_then(|link| link.try_clone().ok())
    }

    /// Gives everything to one who wants to hold, unless somebody does.
    ///
    /// Errors: it is somebody else's process, or it did not take everything.
    pub fn take_holder(&self, link: OwnedFd) -> Result<()> {
        let (pid, user) = handover::peer(link.as_fd())?;
        let ours = rustix::process::geteuid().as_raw();
        anyhow::ensure!(
            user == ours || user == 0,
            "process {pid} of user {user} wants to hold the store of user {ours}"
        );
        if self.is_held() {
            let mut taken = Message::new(Kind::Taken);
            let holder = self.watch().and_then(|link| handover::peer(link.as_fd()).ok());
            taken.number = holder.map_or(0, |(pid, _)| pid);
            handover::send(link.as_fd(), &taken.encode(), None)?;
            return Ok(());
        }
        let mut state = self.lock();
        state.link = Some(link);
        let all: Vec<_> = state.kept.keys().copied().collect();
        for (role, number) in all {
            if let Err(error) = state.give(role, number) {
                state.link = None;
                return Err(error.context("the new holder did not take everything"));
            }
        }
        anyhow::ensure!(state.link.is_some(), "the new holder ended");
        // Also of a store that could not say so before: it has handed over everything.
        state.serving.get_or_insert(0);
        state.tell_serving();
        Ok(())
    }
}

impl State {
    /// Gives one thing to the holder and waits for its answer.
    fn give(&mut self, role: Role, number: u32) -> Result<()> {
        let (Some(link), Some(kept)) = (&self.link, self.kept.get(&(role, number))) else {
            return Ok(());
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Message::about(Kind::Keep, role, number);
        (message.sequence, message.bytes) = (self.sequence, kept.bytes);
        let answered = kept
            .source
            .with(|fd| ask(link.as_fd(), &message, fd))
            .with_context(|| format!("{role:?} {number:#x} cannot be handed to the holder"))?;
        match answered {
            None => {
                // It is dead: whoever comes next gets everything.
                self.link = None;
                Ok(())
            }
            Some(0) => Ok(()),
            Some(errno) => Err(Error::new(
                ErrorKind::NoSpace,
                format!("the holder cannot keep {role:?} {number:#x} of {} bytes", kept.bytes),
            )
            .with_hint("raise LimitNOFILE and LimitMEMLOCK of the unit")
            .with_source(std::io::Error::from_raw_os_error(errno))
            .into()),
        }
    }

    /// Says something that needs no answer, to one who listens soon.
    fn tell(&mut self, message: &Message, passed: Option<BorrowedFd<'_>>) {
        if let Some(link) = &self.link
            && handover::wait_writable(link.as_fd(), SHORTLY).is_ok()
            && let Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) =
                handover::send(link.as_fd(), &message.encode(), passed)
        {
            self.link = None;
        }
    }

    fn tell_serving(&mut self) {
        if let Some(bytes) = self.serving {
            let mut message = Message::new(Kind::Serving);
            message.bytes = bytes;
            self.tell(&message, None);
        }
    }

    fn cut(&mut self, device: u32) {
        if let Some(earlier) = self.kept.remove(&(Role::Socket, device))
            && let Source::Descriptor(socket) = earlier.source
        {
            handover::cut(&socket);
            self.tell(&Message::about(Kind::Forget, Role::Socket, device), None);
        }
    }
}

/// Sends a request and waits for its answer; `None`: the holder is gone.
fn ask(link: BorrowedFd<'_>, message: &Message, passed: BorrowedFd<'_>) -> Result<Option<i32>> {
    let deadline = Instant::now() + PATIENCE;
    let left = || deadline.saturating_duration_since(Instant::now());
    loop {
        match handover::send(link, &message.encode(), Some(passed)) {
            Ok(()) => break,
            Err(Errno::AGAIN) if !left().is_zero() => {
                handover::wait_writable(link, left())?;
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut record = [0; BYTES];
    loop {
        let (bytes, _) = receive(link, &mut record, left())?;
        if bytes == 0 {
            return Ok(None);
        }
        // An answer to a request that was given up is read and passed over.
        if let Some(answer) = Message::decode(&record[..bytes])
            && (answer.kind, answer.sequence) == (Kind::Answer, message.sequence)
        {
            return Ok(Some(answer.code));
        }
    }
}

fn receive(
    link: BorrowedFd<'_>,
    record: &mut [u8],
    patience: Duration,
) -> Result<handover::Received> {
    if !handover::wait_readable(link, patience)? {
        return Err(Error::new(
            ErrorKind::TimedOut,
            format!("the holder does not answer within {} s", PATIENCE.as_secs()),
        )
        .with_hint("is it stopped? kill -CONT it; if it is killed, another one takes over")
        .into());
    }
    match handover::receive(link, record) {
        Ok(received) => Ok(received),
        Err(Errno::AGAIN) => Ok((0, None)),
        Err(errno) => Err(errno).context("the holder's link failed"),
    }
}

/// What a slab's memory costs the holder to keep in RAM.
#[must_use]
pub fn locked_bytes(can_be_locked: bool) -> u64 {
    if can_be_locked { SLAB_BYTES as u64 } else { 0 }
}
