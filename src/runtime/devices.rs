// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's devices, the threads that answer them, and what keeps the two
//! together: a connection that is lost is replaced until the kernel has taken a
//! new one, and no device is disconnected that anybody still uses.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::attach::{self, Device};
use super::hand_over::Connections;
use super::holder::custody::{Custody, Source};
use super::holder::description::{Described, Description, Phase};
use super::holder::message::Role;
use super::io_thread::{self, End, IoThread};
use crate::block::nbd::connection::Reason;
use crate::block::nbd::netlink::{Event, Events, Family, attached_as, was_adopted};
use crate::block::nbd::waker::EventWaker;
use crate::config::Config;
use crate::engine::error;
use crate::engine::orders::Orders;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::ByteLen;
use crate::host::memory::Lock;
use crate::host::{queue, swap};

/// After a connection could not be replaced, before the next try.
const RECONNECT_AGAIN: Duration = Duration::from_secs(1);
/// Times a new connection is offered in one try.
const OFFERS: u32 = 20;
/// Between two offers: the kernel notices a dead socket a little later.
const BETWEEN_OFFERS: Duration = Duration::from_millis(20);
/// How long the kernel may take to notice that connections have ended.
const NOTICED: Duration = Duration::from_secs(2);

/// One device and its thread.
struct Served {
    device: Device,
    /// Bytes of the store's address space.
    window: Range<u64>,
    thread: Option<IoThread>,
    /// Which of the threads that served this device is `thread`.
    generation: u64,
    /// When to offer the kernel another connection.
    reconnect_at: Option<Instant>,
}

/// A thread that has a connection to give.
struct Offer {
    thread: IoThread,
    generation: u64,
    server: OwnedFd,
    kernel_end: OwnedFd,
}

/// All devices of a store.
pub struct Devices {
    store: Arc<Store>,
    family: Family,
    ends: Sender<End>,
    ended: Receiver<End>,
    /// Readable when a thread has ended.
    pub bell: Arc<EventWaker>,
    stop: Arc<EventWaker>,
    list: Vec<Served>,
    generations: u64,
    custody: Arc<Custody>,
    /// What the next store is told.
    description: Description,
}

impl Devices {
    /// Attaches every device that the configuration asks for, or none.
    pub fn attach(
        store: &Arc<Store>,
        family: Family,
        config: &Config,
        custody: Arc<Custody>,
        mut description: Description,
    ) -> Result<Self> {
        let sizes = config.swap.device_sizes(ByteLen(store.device_bytes()));
        for (number, size) in sizes.iter().enumerate() {
            let backend = attach::new_backend(number)?;
            description.devices.push(Described { backend, index: None, size_bytes: size.0 });
        }
        let mut devices = Self::none(store, family, custody, description)?;
        // Before the kernel is told of any: whoever takes over finds them by
        // their identifiers.
        devices.describe(Phase::Arming)?;
        for number in 0..sizes.len() {
            if let Err(error) = devices.attach_one(number, config) {
                // Nothing can be swapped to them yet.
                if let Err(also) = devices.disconnect() {
                    tracing::error!("{also:#}");
                }
                return Err(error);
            }
        }
        devices.describe(Phase::Arming)?;
        Ok(devices)
    }

    /// Takes over the devices that a dead store described: each gets a new
    /// connection as soon as the kernel takes one, now or in
    /// [`Devices::look_after`]. One that was never attached is attached.
    pub fn adopt(
        store: &Arc<Store>,
        family: Family,
        config: &Config,
        custody: Arc<Custody>,
        description: Description,
    ) -> Result<Self> {
        let mut devices = Self::none(store, family, custody, description)?;
        for number in 0..devices.description.devices.len() {
            let Described { backend, index, size_bytes } =
                devices.description.devices[number].clone();
            let found = match index {
                Some(index) => Some(index),
                None => attached_as(Path::new("/"), &backend)?.first().map(|(index, _)| *index),
            };
            let Some(index) = found else {
                devices.attach_one(number, config)?;
                continue;
            };
            devices.description.devices[number].index = Some(index);
            let device = Device::new(index, ByteLen(size_bytes), backend);
            let window = devices.window(number);
            let reconnect_at = Some(Instant::now());
            devices.list.push(Served { device, window, thread: None, generation: 0, reconnect_at });
        }
        Ok(devices)
    }

    fn none(
        store: &Arc<Store>,
        family: Family,
        custody: Arc<Custody>,
        description: Description,
    ) -> Result<Self> {
        let (ends, ended) = channel();
        Ok(Self {
            store: Arc::clone(store),
            family,
            ends,
            ended,
            bell: Arc::new(EventWaker::new()?),
            stop: Arc::new(EventWaker::new()?),
            list: Vec::new(),
            generations: 0,
            custody,
            description,
        })
    }

    /// The part of the store's address space that is one device's.
    fn window(&self, number: usize) -> Range<u64> {
        let devices = &self.description.devices;
        let start = devices[..number].iter().map(|device| device.size_bytes).sum();
        start..start + devices[number].size_bytes
    }

    fn attach_one(&mut self, number: usize, config: &Config) -> Result<()> {
        let (server, kernel_end) = attach::sockets()?;
        self.custody.keep_socket(number as u32, server.try_clone()?);
        let window = self.window(number);
        let (thread, generation) = self.serve(number, &window, server)?;
        let Described { backend, size_bytes, .. } = self.description.devices[number].clone();
        let size = ByteLen(size_bytes);
        let family = &mut self.family;
        let device = attach::attach(family, &config.nbd, number as u32, size, backend, kernel_end)?;
        tracing::info!("{} of {size} is attached", device.path.display());
        self.description.devices[number].index = Some(device.index);
        let thread = Some(thread);
        self.list.push(Served { device, window, thread, generation, reconnect_at: None });
        Ok(())
    }

    /// Tells the next store how far this one is.
    pub fn describe(&mut self, phase: Phase) -> Result<()> {
        self.description.phase = phase;
        let (memory, bytes) = self.description.write()?;
        self.custody.keep(Role::Description, 0, Source::Descriptor(memory), bytes)
    }

    /// Tells the next store what its keeper is to do from the start.
    pub fn describe_orders(&mut self, orders: &Orders) -> Result<()> {
        self.description.set_orders(orders);
        self.describe(self.description.phase)
    }

    /// Puts a new thread in each one's place, for a tier whose device was opened
    /// since: what a thread does with a driver for the first time may wait for
    /// memory that only these threads can free, so the new ones have done it
    /// before the earlier ones end. The kernel sends again what was in flight.
    ///
    /// Errors: no new threads could be made; the earlier ones go on.
    pub fn renew_threads(&mut self) -> Result<()> {
        let mut links = self.family.events()?;
        let earlier = std::mem::replace(&mut self.stop, Arc::new(EventWaker::new()?));
        let offers: Result<Vec<_>> = (0..self.list.len()).map(|n| self.prepare(n)).collect();
        // Of those that were made before a failure nobody has the other end.
        let offers = offers.inspect_err(|_| self.stop = Arc::clone(&earlier))?;
        earlier.wake();
        let mut ended = Vec::new();
        for (number, served) in self.list.iter_mut().enumerate() {
            if let Some(thread) = served.thread.take() {
                thread.join();
                ended.push(served.device.index);
            }
            self.custody.cut(number as u32);
        }
        wait_until_dead(&mut links, ended);
        for (number, offer) in offers.into_iter().enumerate() {
            self.list[number].reconnect_at = match self.give(number, offer) {
                Ok(true) => None,
                Ok(false) => Some(Instant::now()),
                Err(error) => {
                    tracing::error!("{}: {error:#}", self.list[number].device.path.display());
                    Some(Instant::now())
                }
            };
        }
        Ok(())
    }

    /// Makes every device a swap area and switches it on, but for those that are
    /// on already. After an error some may be on: drain.
    pub fn swap_on(&self, config: &Config) -> Result<()> {
        let entries = swap::entries(Path::new("/"))?;
        for served in &self.list {
            let device = &served.device;
            if entries.iter().any(|entry| entry.path == device.path && !entry.deleted) {
                continue;
            }
            attach::swap_on(config, device)?;
            let priority = config.swap.priority;
            tracing::info!("{} is swap of priority {priority}", device.path.display());
        }
        Ok(())
    }

    /// Their nodes.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.list.iter().map(|served| served.device.path.clone()).collect()
    }

    /// Node and size of each, and the heartbeat of the thread that serves it.
    pub fn iter(&self) -> impl Iterator<Item = (&Device, Option<&IoThread>)> {
        self.list.iter().map(|served| (&served.device, served.thread.as_ref()))
    }

    /// When something here wants attention without being woken.
    pub fn due(&self) -> Option<Instant> {
        self.list.iter().filter_map(|served| served.reconnect_at).min()
    }

    /// Deals with threads that ended and connections to be replaced. Gives what
    /// a person should know, if anything.
    pub fn look_after(&mut self) -> Option<String> {
        let mut message = None;
        while let Ok(end) = self.ended.try_recv() {
            message = self.thread_ended(&end).or(message);
        }
        for number in 0..self.list.len() {
            if self.list[number].reconnect_at.is_some_and(|at| at <= Instant::now()) {
                message = Some(self.reconnect(number));
            }
        }
        message
    }

    fn thread_ended(&mut self, end: &End) -> Option<String> {
        let served = self.list.get_mut(end.device)?;
        if end.generation != served.generation {
            // An offer that the kernel did not take.
            return None;
        }
        if let Some(thread) = served.thread.take() {
            thread.join();
        }
        // A thread that panicked did not end its connection, and there is a copy.
        self.custody.cut(end.device as u32);
        let path = served.device.path.display();
        if end.reason == Some(Reason::Disconnected) {
            let message = format!("{path} was disconnected by somebody else");
            tracing::error!("{message}; what was swapped to it cannot be read");
            return Some(message);
        }
        served.reconnect_at = Some(Instant::now());
        let (reason, stuck) = (end.reason, end.stuck);
        Some(format!("{path}: connection ended ({reason:?}), {stuck} requests never answered"))
    }

    /// Offers the kernel a new connection; it sends again what was in flight.
    fn reconnect(&mut self, number: usize) -> String {
        let path = self.list[number].device.path.display().to_string();
        // Logging may wait for memory that comes back only when this is done.
        match self.offer(number) {
            Ok(()) => {
                self.list[number].reconnect_at = None;
                tracing::warn!("{path} lost its connection and is served again");
                format!("{path} lost its connection and is served again")
            }
            Err(error) => {
                self.list[number].reconnect_at = Some(Instant::now() + RECONNECT_AGAIN);
                tracing::error!("{path} is not served: {error:#}; its pages are kept");
                format!("{path} is not served: {error:#}")
            }
        }
    }

    fn offer(&mut self, number: usize) -> Result<()> {
        for _ in 0..OFFERS {
            let offer = self.prepare(number)?;
            if self.give(number, offer)? {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_OFFERS);
        }
        anyhow::bail!("the kernel takes no new connection")
    }

    /// A thread that waits for the kernel to take the other end of its socket.
    fn prepare(&mut self, number: usize) -> Result<Offer> {
        let window = self.list[number].window.clone();
        let (ours, kernel_end) = attach::sockets()?;
        let server = ours.try_clone()?;
        let (thread, generation) = self.serve(number, &window, ours)?;
        Ok(Offer { thread, generation, server, kernel_end })
    }

    /// Offers the kernel a connection; false: it did not take it, and its thread
    /// has ended.
    fn give(&mut self, number: usize, offer: Offer) -> Result<bool> {
        let Offer { thread, generation, server, kernel_end } = offer;
        self.custody.keep_socket(number as u32, server.try_clone()?);
        let device = &self.list[number].device;
        let sockets = [kernel_end.as_fd()];
        let told = self.family.reconfigure(device.index, &device.backend, &sockets);
        drop(kernel_end);
        let taken = is_taken(told, server.as_fd());
        if matches!(taken, Ok(true)) {
            let served = &mut self.list[number];
            (served.thread, served.generation) = (Some(thread), generation);
            return Ok(true);
        }
        if taken.is_err() {
            // Who could not be asked may have it: it must end all the same.
            self.custody.cut(number as u32);
        }
        // Its socket has no other end any more, so it ends by itself.
        thread.join();
        Ok(taken?)
    }

    fn serve(
        &mut self,
        device: usize,
        window: &Range<u64>,
        server: OwnedFd,
    ) -> Result<(IoThread, u64)> {
        self.generations += 1;
        let generation = self.generations;
        let waker = Arc::new(EventWaker::new()?);
        let part =
            io_thread::session(&self.store, window.clone(), Lock::Required, Arc::clone(&waker))?;
        let report = io_thread::Report {
            device,
            generation,
            ends: self.ends.clone(),
            bell: Arc::clone(&self.bell),
        };
        let thread = IoThread::spawn(part, waker, server, Arc::clone(&self.stop), report)?;
        Ok((thread, generation))
    }

    /// Claims every device for us alone. An error names one that somebody still
    /// uses: swap, a filesystem, a mapping. While the claim is held nobody can.
    pub fn claim(&self) -> Result<Vec<File>> {
        Ok(self
            .list
            .iter()
            .map(|served| queue::claim(&served.device.path))
            .collect::<crate::engine::error::Result<_>>()?)
    }

    /// Disconnects every device and ends its thread; the first failure, when all
    /// have been tried. Claim them first.
    pub fn disconnect(&mut self) -> Result<()> {
        let mut result = Ok(());
        for served in &self.list {
            match self.family.disconnect(served.device.index) {
                Ok(()) => tracing::info!("{} is detached", served.device.path.display()),
                Err(error) => result = result.and(Err(error).context("a device stays attached")),
            }
        }
        self.stop.wake();
        for served in &mut self.list {
            if let Some(thread) = served.thread.take() {
                thread.join();
            }
        }
        result
    }

    /// A new channel to the kernel's nbd driver.
    pub fn family() -> Result<Family> {
        Ok(Family::open(Path::new("/"))?)
    }

    /// The driver's events.
    pub fn events(&self) -> Result<Events> {
        Ok(self.family.events()?)
    }
}

impl Connections for Devices {
    fn stand_still(&mut self) {
        self.stop.wake();
        for (number, served) in self.list.iter_mut().enumerate() {
            served.reconnect_at = None;
            if let Some(thread) = served.thread.take() {
                thread.join();
            }
            self.custody.cut(number as u32);
        }
    }

    /// Each device gets a new connection in [`Devices::look_after`].
    fn go_on(&mut self) -> Result<()> {
        self.stop = Arc::new(EventWaker::new()?);
        for served in &mut self.list {
            served.reconnect_at = Some(Instant::now());
        }
        Ok(())
    }
}

/// Whether the kernel took the other end of `server`, whatever it `told`: it takes
/// it before it answers, and an answer can be lost. Ask once our own copy of that
/// end is closed.
fn is_taken(told: error::Result<()>, server: BorrowedFd<'_>) -> error::Result<bool> {
    if was_adopted(server)? { Ok(true) } else { told.map(|()| false) }
}

/// Waits for the kernel to see that the connections of these devices are dead:
/// before, it takes no others.
fn wait_until_dead(links: &mut Events, mut devices: Vec<u32>) {
    let deadline = Instant::now() + NOTICED;
    while !devices.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&*links, PollFlags::IN)];
        let timeout = Timespec::try_from(left).ok();
        if left.is_zero() || poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let Ok(events) = links.take() else { return };
        if events.contains(&Event::Missed) {
            return;
        }
        devices.retain(|device| !events.contains(&Event::LinkDead(*device)));
    }
    // It says so a moment before it acts by it.
    std::thread::sleep(BETWEEN_OFFERS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::error::{Error, Kind};

    fn lost_answer() -> crate::engine::error::Result<()> {
        Err(Error::new(Kind::Io, "no answer to a netlink request"))
    }

    #[test]
    fn a_connection_that_the_kernel_took_is_taken_also_when_its_answer_was_lost() {
        let (server, kernel_end) = attach::sockets().unwrap();
        assert!(is_taken(lost_answer(), server.as_fd()).unwrap());
        assert!(is_taken(Ok(()), server.as_fd()).unwrap());
        drop(kernel_end);
        assert!(!is_taken(Ok(()), server.as_fd()).unwrap());
        assert_eq!(is_taken(lost_answer(), server.as_fd()).unwrap_err().kind(), Kind::Io);
    }
}
