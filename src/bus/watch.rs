// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the service tells everybody, for a client that stays.

use futures_lite::StreamExt;
use zbus::message::{self, Message};
use zbus::names::BusName;
use zbus::{Connection, MatchRule, MessageStream, match_rule};

use super::client::no_bus;
use super::{PATH, SERVICE};
use crate::engine::error::{Error, Kind, Result};

const BUS: &str = "org.freedesktop.DBus";

/// What was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The service runs, maybe another than before.
    Started,
    /// It does not run any more.
    Ended,
    /// A property or a device is another than before.
    Changed,
    /// Something that people should know.
    Notice {
        /// Whether it is about something wrong.
        urgent: bool,
        /// What.
        text: String,
    },
}

/// Listens to the service. [`Watch::next`] must be awaited all the time: messages
/// that nobody takes hold up all others of the connection.
pub struct Watch {
    owners: MessageStream,
    signals: MessageStream,
    /// Only it may speak for the service: any program can send us a signal.
    owner: Option<String>,
}

impl Watch {
    /// Begins to listen. The service is not started by that.
    ///
    /// Errors: `Missing` without a bus.
    pub async fn new(connection: &Connection) -> Result<Self> {
        Self::begin(connection).await.map_err(no_bus)
    }

    async fn begin(connection: &Connection) -> zbus::Result<Self> {
        let signal = || MatchRule::builder().msg_type(message::Type::Signal);
        let named =
            signal().sender(BUS)?.interface(BUS)?.member("NameOwnerChanged")?.add_arg(SERVICE)?;
        let said = signal().sender(SERVICE)?.path_namespace(PATH)?;
        let stream = |rule: match_rule::Builder<'static>| {
            MessageStream::for_match_rule(rule.build(), connection, None)
        };
        // Listens before it asks.
        let (owners, signals) = (stream(named).await?, stream(said).await?);
        let bus = zbus::fdo::DBusProxy::new(connection).await?;
        let owner = match bus.get_name_owner(BusName::try_from(SERVICE)?).await {
            Ok(name) => Some(name.to_string()),
            Err(zbus::fdo::Error::NameHasNoOwner(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { owners, signals, owner })
    }

    /// Whether the service runs, as far as was told.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.owner.is_some()
    }

    /// Waits for the next that is told. It may be given up and awaited anew.
    ///
    /// Errors: `Missing` when the bus is gone.
    pub async fn next(&mut self) -> Result<Told> {
        loop {
            // Who owns the name comes first: what it says may be behind it.
            let message = tokio::select! {
                biased;
                message = self.owners.next() => message,
                message = self.signals.next() => message,
            };
            let gone = || Error::new(Kind::Missing, "the bus is gone");
            let message = message.ok_or_else(gone)?.map_err(no_bus)?;
            if let Some(told) = self.read(&message) {
                return Ok(told);
            }
        }
    }

    fn read(&mut self, message: &Message) -> Option<Told> {
        let header = message.header();
        let (sender, member) = (header.sender()?.as_str(), header.member()?.as_str());
        let body = message.body();
        if sender == BUS {
            let (_name, _before, now): (String, String, String) = body.deserialize().ok()?;
            self.owner = (!now.is_empty()).then_some(now);
            return Some(if self.owner.is_some() { Told::Started } else { Told::Ended });
        }
        if self.owner.as_deref() != Some(sender) {
            return None;
        }
        if member == "Notice" {
            let (urgent, text) = body.deserialize().ok()?;
            return Some(Told::Notice { urgent, text });
        }
        Some(Told::Changed)
    }
}
