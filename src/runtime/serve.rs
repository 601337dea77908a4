// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve`: a store on a Unix socket for any NBD client, without
//! privileges and without the kernel. Its contents end with it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, poll};

use super::assembly::Plan;
use super::io_thread::{self, MAX_PAYLOAD};
use super::keeper::{Keeper, Orders};
use crate::block::nbd::connection;
use crate::block::nbd::handshake::Export;
use crate::block::nbd::listener::{Listener, Options, Server};
use crate::block::nbd::waker::EventWaker;
use crate::config::ServeOptions;
use crate::engine::store::Store;
use crate::engine::tier::Wake;
use crate::engine::units::ByteLen;
use crate::host::armour;
use crate::host::memory::Lock;
use crate::host::signals::Signals;

/// How long a client may take to say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A store that is being served. Ends when dropped.
pub struct Serving {
    server: Option<Server>,
    /// The store, for status.
    pub store: Arc<Store>,
    _keeper: Keeper,
}

impl Serving {
    /// Builds the store and listens.
    pub fn start(options: &ServeOptions) -> Result<Self> {
        let plan = Plan {
            size: options.size,
            tier: options.tier,
            tier_size: options.size,
            reserve: ByteLen(0),
            spill: options.spill.clone(),
            checksums: options.checksums,
            lock: Lock::None,
        };
        let bell = Arc::new(EventWaker::new()?);
        let no_preparation: crate::tier::spill::Prepare = Arc::new(|| {});
        let store = plan.build(&no_preparation, Arc::clone(&bell) as Arc<dyn Wake>)?;
        let orders =
            Orders { target_slabs: plan.fast_slabs(), reserve: plan.reserve, lock: Lock::None };
        let keeper = Keeper::start(&store, bell, orders)?;
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
            io_thread::session(&shared, bytes, Lock::None, waker).map_err(into_engine_error)
        })?;
        Ok(Self { server: Some(server), store, _keeper: keeper })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// The listener's factory speaks the adapters' error type.
fn into_engine_error(error: anyhow::Error) -> crate::engine::error::Error {
    use crate::engine::error::{Error, Kind};
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(other) => Error::new(Kind::NoSpace, format!("{other:#}")),
    }
}

/// Serves until SIGTERM or SIGINT.
pub fn run(options: &ServeOptions) -> Result<()> {
    let signals = Signals::block()?;
    // One descriptor per slab and client, as far as this user may.
    if let Err(error) = armour::raise_nofile(u64::from(u16::MAX)) {
        tracing::debug!("{error:#}");
    }
    let serving = Serving::start(options)?;
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
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if signals.take() {
            drop(serving);
            return Ok(());
        }
    }
}
