// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's devices, the threads that answer them, and what keeps the two
//! together: a connection that is lost is replaced until the kernel has taken a
//! new one, and no device is disconnected that anybody still uses.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::attach::{self, Device};
use super::io_thread::{self, End, IoThread};
use crate::block::nbd::connection::Reason;
use crate::block::nbd::netlink::{Family, was_adopted};
use crate::block::nbd::waker::EventWaker;
use crate::config::Config;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::ByteLen;
use crate::host::memory::Lock;
use crate::host::queue;

/// After a connection could not be replaced, before the next try.
const RECONNECT_AGAIN: Duration = Duration::from_secs(1);
/// Times a new connection is offered in one try.
const OFFERS: u32 = 20;
/// Between two offers: the kernel notices a dead socket a little later.
const BETWEEN_OFFERS: Duration = Duration::from_millis(20);

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
}

impl Devices {
    /// Attaches every device that the configuration asks for, or none.
    pub fn attach(store: &Arc<Store>, family: Family, config: &Config) -> Result<Self> {
        let (ends, ended) = channel();
        let mut devices = Self {
            store: Arc::clone(store),
            family,
            ends,
            ended,
            bell: Arc::new(EventWaker::new()?),
            stop: Arc::new(EventWaker::new()?),
            list: Vec::new(),
            generations: 0,
        };
        let mut start = 0;
        for (number, size) in config.swap.device_sizes().into_iter().enumerate() {
            let window = start..start + size.0;
            start = window.end;
            if let Err(error) = devices.attach_one(number, size, window, config) {
                // Nothing can be swapped to them yet.
                if let Err(also) = devices.disconnect() {
                    tracing::error!("{also:#}");
                }
                return Err(error);
            }
        }
        Ok(devices)
    }

    fn attach_one(
        &mut self,
        number: usize,
        size: ByteLen,
        window: Range<u64>,
        config: &Config,
    ) -> Result<()> {
        let (server, kernel_end) = attach::sockets()?;
        let (thread, generation) = self.serve(number, &window, server)?;
        let device =
            attach::attach(&mut self.family, &config.nbd, number as u32, size, kernel_end)?;
        tracing::info!("{} of {size} is attached", device.path.display());
        let thread = Some(thread);
        self.list.push(Served { device, window, thread, generation, reconnect_at: None });
        Ok(())
    }

    /// Makes every device a swap area and switches it on. After an error some
    /// may be on: drain.
    pub fn swap_on(&self, config: &Config) -> Result<()> {
        for served in &self.list {
            let device = &served.device;
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
        let window = self.list[number].window.clone();
        for _ in 0..OFFERS {
            let (ours, kernel_end) = attach::sockets()?;
            let watched = ours.try_clone()?;
            let (thread, generation) = self.serve(number, &window, ours)?;
            let device = &self.list[number].device;
            let sockets = [kernel_end.as_fd()];
            let told = self.family.reconfigure(device.index, &device.backend, &sockets);
            drop(kernel_end);
            if told.is_ok() && was_adopted(watched.as_fd())? {
                let served = &mut self.list[number];
                (served.thread, served.generation) = (Some(thread), generation);
                return Ok(());
            }
            // Its socket has no other end any more, so it ends by itself.
            thread.join();
            told?;
            std::thread::sleep(BETWEEN_OFFERS);
        }
        anyhow::bail!("the kernel takes no new connection")
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
    pub fn events(&self) -> Result<crate::block::nbd::netlink::Events> {
        Ok(self.family.events()?)
    }
}
