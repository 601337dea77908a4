// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line's way to the control plane.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::bus::client::Client;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::view::{ControlReply, ControlRequest};

/// How long a look may take, which nobody is asked for a password for.
const LOOK: Duration = Duration::from_secs(2);

/// Asks `sluiced`. Errors: as [`Client::ask`].
pub fn ask(request: &ControlRequest) -> Result<ControlReply> {
    runtime()?.block_on(async { Client::connect().await?.ask(request).await })
}

/// Takes a lease, which ends when the descriptor is closed. Errors: as
/// [`Client::reserve`].
pub fn reserve(bytes: u64, deadline: Duration) -> Result<OwnedFd> {
    runtime()?.block_on(async { Client::connect().await?.reserve(bytes, deadline).await })
}

/// What `sluiced` goes by, which is not started for it, and is not waited for if it
/// hangs: a person looks at a machine in trouble. Errors: as [`Client::settings`];
/// `TimedOut` if there is no answer in time.
pub fn settings() -> Result<BTreeMap<String, String>> {
    let asked = async { Client::connect().await?.settings().await };
    runtime()?.block_on(async {
        tokio::time::timeout(LOOK, asked).await.unwrap_or_else(|_| {
            let what = format!("sluiced has not answered for {} s", LOOK.as_secs());
            Err(Error::new(Kind::TimedOut, what).with_hint("see: journalctl -u sluiced"))
        })
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Io, "cannot wait for the bus").with_source(error))
}
