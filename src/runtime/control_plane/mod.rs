// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluiced`, the control plane: watches the machine and its clients, asks the
//! engine's arbiter, and carries out what it decides.
//!
//! One thread, one inbox: everything that happens is a [`Message`], taken one by
//! one ([`daemon`]). [`sources`] fill the inbox, [`executor`] empties what the
//! arbiter asks for. Contracts:
//!
//! - *Expendable*: it may end at any moment. What a person asked for is on disk
//!   ([`wishes`]) before it is carried out; all else is asked anew at the start.
//! - *Not in the way*: it asks the store over its control socket and is never
//!   asked by it. No page waits for this process.

pub mod client;
pub mod daemon;
mod executor;
mod leases;
mod metrics;
mod neighbours;
mod settings;
mod sources;
mod store_link;
mod wishes;

use std::sync::Arc;

use crate::bus::manager::Pending;
use crate::engine::arbiter::Event;
use crate::engine::view::Status;

/// Something happened.
enum Message {
    /// For the arbiter.
    Event(Event),
    /// The store was looked at; `None`: none answers.
    Seen(Option<Arc<Status>>),
    /// A client calls.
    Called(Pending),
    /// The configuration is to be read anew.
    Reload,
    /// The process is to end.
    Stop,
}

/// Where messages go.
type Inbox = tokio::sync::mpsc::UnboundedSender<Message>;
