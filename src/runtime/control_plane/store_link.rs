// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store, over its control socket: never longer than a look.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Inbox, Message};
use crate::engine::arbiter::StoreView;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, SLAB_BYTES};
use crate::engine::view::{Reply, Request, Status, Tier};
use crate::runtime::control_client;

/// Between two looks at an order that is carried out.
const TICK: Duration = Duration::from_millis(250);
/// How long an order may take before it counts as failed: far longer than any
/// GPU's memory takes to be copied to a slow disk.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a store may take to answer once its unit has started.
const CONFIRM: Duration = Duration::from_secs(30);

/// Asks without holding up the inbox.
async fn ask(socket: &Path, request: Request) -> Result<Reply> {
    let socket = socket.to_path_buf();
    let asked = tokio::task::spawn_blocking(move || control_client::ask(&socket, &request)).await;
    asked.unwrap_or_else(|error| {
        Err(Error::new(Kind::Io, "asking the store ended early").with_source(error))
    })
}

/// Looks at the store. `Ok(None)`: none is there. An error says nothing about it.
pub(super) async fn look(socket: &Path) -> Result<Option<Arc<Status>>> {
    match ask(socket, Request::Status {}).await {
        Ok(Reply::Status(status)) => Ok(Some(Arc::from(status))),
        Ok(_) => Err(Error::new(Kind::Protocol, "the store answered something else")),
        Err(error) if error.kind() == Kind::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the arbiter wants to know of it.
pub(super) fn view(status: &Status) -> StoreView {
    let fast = || status.tiers.iter().filter(|tier| tier.kind == "fast");
    let sum = |of: fn(&Tier) -> u64| ByteLen(fast().map(of).sum());
    StoreView {
        held: sum(|tier| tier.held_bytes),
        target: sum(|tier| tier.target_bytes),
        full: sum(|tier| u64::from(tier.slabs_max) * SLAB_BYTES as u64),
        open: fast().any(|tier| tier.open),
        faulty: fast().any(|tier| tier.faulty),
        has_spill: status.economy.spill_bytes.is_some(),
    }
}

/// Waits until a store answers, or none does any more, as its unit says.
///
/// Errors: `TimedOut` if it does not come to that.
pub(super) async fn confirm(socket: &Path, is_there: bool, inbox: &Inbox) -> Result<ByteLen> {
    let until = Instant::now() + CONFIRM;
    loop {
        let seen = look(socket).await?;
        if seen.is_some() == is_there {
            let _ = inbox.send(Message::Seen(seen));
            return Ok(ByteLen(0));
        }
        if Instant::now() >= until {
            let what = if is_there {
                "the store's unit has started, and no store answers"
            } else {
                "the store's unit has stopped, and another store answers"
            };
            let what = format!("{what} at {}", socket.display());
            return Err(Error::new(Kind::TimedOut, what).with_hint("see: sluice status"));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Gives an order and waits until it is carried out; gives the target then in
/// force. What is seen on the way goes to the inbox.
///
/// Errors: the store refused, is gone, or is stuck.
pub(super) async fn order(socket: &Path, order: Request, inbox: &Inbox) -> Result<ByteLen> {
    let closes = matches!(order, Request::CloseGpu { .. });
    // It is not waited for there: a later order would have to wait as well.
    let Reply::Ended(outcome) = ask(socket, order).await? else {
        return Err(Error::new(Kind::Protocol, "the store answered something else"));
    };
    let target = ByteLen(outcome.target_bytes);
    let mut message = outcome.message;
    let until = Instant::now() + PATIENCE;
    loop {
        let Some(status) = look(socket).await? else {
            return Err(Error::new(Kind::Missing, "the store ended before it was done"));
        };
        let seen = view(&status);
        if !status.message.is_empty() {
            message.clone_from(&status.message);
        }
        let is_done = seen.held <= seen.target && seen.target <= target;
        // A GPU is opened by the store's own time; until then nothing is lent.
        let is_open = if closes { !seen.open } else { seen.open || target.0 == 0 };
        let is_done = is_done && is_open;
        // A closed inbox: the process is ending.
        let _ = inbox.send(Message::Seen(Some(status)));
        if is_done {
            return Ok(seen.target);
        }
        if Instant::now() >= until {
            let (held, seconds) = (seen.held, PATIENCE.as_secs());
            let what = format!("{held} of {target} still held after {seconds} s: {message}");
            return Err(Error::new(Kind::TimedOut, what));
        }
        tokio::time::sleep(TICK).await;
    }
}
