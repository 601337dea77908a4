// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve`: a store on a Unix socket for any NBD client, without
//! privileges and without the kernel. Its contents end with it.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::assembly::Plan;
use super::choice::Choice;
use super::control::{Answer, ControlSocket};
use super::holder::custody::Custody;
use super::holder::rebuild::Making;
use super::io_thread::{self, MAX_PAYLOAD};
use super::keeper::{self, Keeper};
use super::orders::Desk;
use super::status;
use crate::block::nbd::connection;
use crate::block::nbd::handshake::Export;
use crate::block::nbd::listener::{Listener, Options, Server};
use crate::block::nbd::waker::EventWaker;
use crate::config::schema::Durability;
use crate::config::{Cuda, ServeOptions, Vulkan};
use crate::engine::error::{Error, Kind};
use crate::engine::io::BlockIo;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::ByteLen;
use crate::engine::view::{Reply, Request, State, Status};
use crate::host::memory::Lock;
use crate::host::signals::Signals;
use crate::host::{armour, handover};
use crate::tier::spill::Prepare;

/// How long a client may take to say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A store that is being served. Ends when dropped.
pub struct Serving {
    server: Option<Server>,
    store: Arc<Store>,
    durability: Durability,
    desk: Desk,
    keeper: Keeper,
}

impl Serving {
    /// Builds the store and listens. With a `holder`, what it has is taken over,
    /// and all that is made is handed to it, so that pages outlive this process.
    pub fn start(options: &ServeOptions, holder: Option<OwnedFd>) -> Result<Self> {
        let Choice { tiers, why } =
            Choice::make(options.tier, &options.cuda, &options.vulkan, options.size);
        let mut plan = Plan {
            size: options.size,
            min_size: None,
            tier: options.tier,
            fast: tiers,
            closed: Vec::new(),
            why,
            tier_size: options.size,
            reserve: ByteLen(0),
            spill: options.spill.clone(),
            checksums: options.checksums,
            durability: options.durability,
            lock: Lock::None,
        };
        let bell = Arc::new(EventWaker::new()?);
        let no_preparation: Prepare = Arc::new(|| {});
        let ring = Arc::clone(&bell) as Arc<dyn Wake>;
        let store = match holder {
            None => plan.build(&no_preparation, ring)?,
            Some(link) => held(link, &mut plan, &no_preparation, ring)?,
        };
        let keeper = Keeper::start(&store, bell, &plan.orders(), plan.lock)?;
        keeper.wait_until_ready();
        let listener = Listener::bind(Options {
            path: options.socket.clone(),
            export: Export {
                name: options.name.clone(),
                description: format!("sluice {}", plan.tier.name()),
                bytes: options.size.0,
                max_payload: MAX_PAYLOAD,
            },
            max_clients: options.max_clients as usize,
            handshake_deadline: HANDSHAKE,
            connection: connection::Options::default(),
        })?;
        let shared = Arc::clone(&store);
        let server = listener.serve(move |waker| {
            let bytes = 0..shared.device_bytes();
            // Called on the client's own thread.
            let mut part =
                io_thread::session(&shared, bytes, Lock::None, waker).map_err(into_engine_error)?;
            part.enter();
            Ok(part)
        })?;
        let (durability, desk) = (plan.durability, Desk::new(plan.orders(), plan.orders()));
        Ok(Self { server: Some(server), store, durability, desk, keeper })
    }

    /// Answers whoever asks on the control socket.
    fn answer(&mut self, control: &mut ControlSocket) {
        self.desk.answer(control, &self.keeper);
        control.serve(&mut |request| match request {
            Request::Status {} => Answer::Now(Reply::Status(Box::new(self.status()))),
            order => self.desk.decide(&order, &self.store, &self.keeper),
        });
    }

    fn status(&self) -> Status {
        let connections = self.server.as_ref().map_or(0, Server::connections);
        status::snapshot(
            &self.store,
            status::Facts {
                state: State::Serving,
                devices: Vec::new(),
                connections,
                buffers: (connections as usize * io_thread::ARENA_BYTES + keeper::BUFFER_BYTES)
                    as u64,
                progress: self.keeper.progress(),
                durability: self.durability,
                configuration: None,
                message: String::new(),
            },
        )
    }
}

/// A store that the process at the other end of `link` holds.
fn held(
    link: OwnedFd,
    plan: &mut Plan,
    prepare: &Prepare,
    ring: Arc<dyn Wake>,
) -> Result<Arc<Store>> {
    let (custody, found) = Custody::held(link)?;
    let custody = Arc::new(custody);
    let making = Making { plan, custody: &custody, prepare, ring, told: None, openings: None };
    if found.index.is_none() {
        return making.fresh("serve");
    }
    let (store, torn) = making.recovered(found)?;
    tracing::warn!(
        "took over from a server that is dead: {} torn pages adopted, {} unreadable",
        torn.adopted,
        torn.unreadable
    );
    Ok(store)
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// The listener's factory speaks the adapters' error type.
fn into_engine_error(error: anyhow::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(other) => Error::new(Kind::NoSpace, format!("{other:#}")),
    }
}

/// Serves until SIGTERM or SIGINT. `holder`: the number of the link to the
/// process that holds this one's pages, which started it.
pub fn run(options: &ServeOptions, holder: Option<i32>) -> Result<()> {
    let tier = options.tier;
    for (name, fits, given) in [
        ("cuda", tier.may_be_cuda(), options.cuda != Cuda::default()),
        ("vulkan", tier.may_be_vulkan(), options.vulkan != Vulkan::default()),
    ] {
        if given && !fits {
            let tier = tier.name();
            let text = format!("--{name}-device or --{name}-library with --tier {tier}");
            return Err(Error::new(Kind::Invalid, text)
                .with_hint(format!("leave them out, or use --tier {name}"))
                .into());
        }
    }
    let holder = holder
        .map(|number| {
            handover::inherited(number)
                .with_context(|| format!("--held {number}: there is no holder"))
        })
        .transpose()?;
    let signals = Signals::block()?;
    // One descriptor per slab and client, as far as this user may.
    if let Err(error) = armour::raise_nofile(u64::from(u16::MAX)) {
        tracing::debug!("{error:#}");
    }
    let mut control = options.control.as_deref().map(ControlSocket::bind).transpose()?;
    let mut serving = Serving::start(options, holder)?;
    let socket = options.socket.display();
    // Nobody needs to read this; a closed standard output is no failure.
    let _ = write!(
        std::io::stdout(),
        "serving {} of {} on {socket}\n\
         try: nbdinfo 'nbd+unix:///{}?socket={socket}'\n\
         its contents are gone when this ends (Ctrl-C)\n",
        options.size,
        options.tier.name(),
        options.name
    );
    loop {
        let bell = Arc::clone(serving.keeper.bell());
        let mut fds =
            vec![PollFd::new(&signals, PollFlags::IN), PollFd::new(&*bell, PollFlags::IN)];
        let mut due = serving.desk.due();
        if let Some(control) = &control {
            fds.extend(control.poll_fds());
            due = due.into_iter().chain(control.due()).min();
        }
        let wait = due.map(|at| at.saturating_duration_since(Instant::now()));
        let _ = poll(&mut fds, wait.and_then(|wait| Timespec::try_from(wait).ok()).as_ref());
        bell.clear();
        if signals.take() {
            drop(serving);
            return Ok(());
        }
        if let Some(control) = &mut control {
            serving.answer(control);
        }
    }
}
