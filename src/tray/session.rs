// SPDX-License-Identifier: MIT OR Apache-2.0
//! The desktop session: one tray in each, notifications
//! (`org.freedesktop.Notifications`), and its end.

use std::collections::HashMap;

use futures_lite::StreamExt;
use tokio::sync::mpsc;
use zbus::fdo::RequestNameFlags;
use zbus::zvariant::Value;
use zbus::{Connection, MessageStream};

use super::notices::{Message, Topic};
use super::view::without_markup;
use super::{Event, Inbox};
use crate::engine::error::{Error, Kind, Result};

/// Who owns it is the session's tray.
const NAME: &str = "org.sluice.Tray";
const NOTIFICATIONS: &str = "org.freedesktop.Notifications";

/// Joins the session; `None`: another tray is there.
///
/// Errors: `Missing` without a session bus.
pub(super) async fn join(inbox: &Inbox) -> Result<Option<Connection>> {
    let joined = async {
        let connection = Connection::session().await?;
        // Not in the queue for it, as the builder of connections would be.
        connection.request_name_with_flags(NAME, RequestNameFlags::DoNotQueue.into()).await?;
        zbus::Result::Ok(connection)
    };
    let connection = match joined.await {
        Ok(connection) => connection,
        Err(zbus::Error::NameTaken) => return Ok(None),
        Err(error) => {
            return Err(Error::new(Kind::Missing, "cannot reach the session bus")
                .with_hint("start it in a desktop session (DBUS_SESSION_BUS_ADDRESS)")
                .with_source(error));
        }
    };
    let mut all = MessageStream::from(&connection);
    let inbox = inbox.clone();
    tokio::spawn(async move {
        while let Some(Ok(_)) = all.next().await {}
        let _ = inbox.send(Event::Over(Ok(())));
    });
    Ok(Some(connection))
}

/// Says one after the other: who shows notifications may have to be started first.
pub(super) async fn speak(connection: Connection, mut heard: mpsc::UnboundedReceiver<Message>) {
    let mut before = HashMap::new();
    while let Some(message) = heard.recv().await {
        let replaces = before.get(&(message.topic as u8)).copied().unwrap_or_default();
        match notify(&connection, &message, replaces).await {
            Ok(id) => {
                before.insert(message.topic as u8, id);
            }
            Err(error) => {
                let Message { summary, body, .. } = &message;
                eprintln!("sluice-tray: nobody shows notifications ({error}): {summary}: {body}");
            }
        }
    }
}

async fn notify(connection: &Connection, message: &Message, replaces: u32) -> zbus::Result<u32> {
    let urgency = if message.topic == Topic::Fault { 2_u8 } else { 1 };
    let hints = HashMap::from([
        ("urgency", Value::from(urgency)),
        ("desktop-entry", Value::from("sluice-tray")),
    ]);
    let body = without_markup(&message.body);
    let none: &[&str] = &[];
    let icon = message.topic.icon().name();
    let words = ("Sluice", replaces, icon, &*message.summary, &*body, none, hints, -1_i32);
    let path = "/org/freedesktop/Notifications";
    let asked =
        connection.call_method(Some(NOTIFICATIONS), path, Some(NOTIFICATIONS), "Notify", &words);
    asked.await?.body().deserialize()
}
