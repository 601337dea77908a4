// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control plane from here: looked at whenever it says that something changed, and
//! found again when it was away. Nothing here starts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use zbus::Connection;

use super::{Event, Inbox};
use crate::bus::client::Client;
use crate::bus::watch::{Told, Watch};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::view::{ControlReply, ControlRequest};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks: what changes all the time is looked at now and then.
const CALM: Duration = Duration::from_millis(500);

/// Reaches the machine's bus, and fills the inbox from there.
///
/// Errors: `Missing` without a system bus.
pub(super) async fn follow(inbox: &Inbox) -> Result<Arc<Client>> {
    let connection = Connection::system().await.map_err(|error| {
        Error::new(Kind::Missing, "cannot reach the system bus").with_source(error)
    })?;
    let client = Arc::new(Client::on(&connection).await?);
    let watch = Watch::new(&connection).await?;
    let runs = Arc::new(AtomicBool::new(watch.is_running()));
    let stale = Arc::new(Notify::new());
    stale.notify_one();
    tokio::spawn(listen(watch, Arc::clone(&runs), Arc::clone(&stale), inbox.clone()));
    // Apart, since messages must be taken while an answer is waited for.
    tokio::spawn(look(Arc::clone(&client), runs, stale, inbox.clone()));
    Ok(client)
}

async fn listen(mut watch: Watch, runs: Arc<AtomicBool>, stale: Arc<Notify>, inbox: Inbox) {
    loop {
        let _ = match watch.next().await {
            Ok(Told::Notice { urgent, text }) => inbox.send(Event::Notice { urgent, text }),
            Ok(Told::Started | Told::Ended | Told::Changed) => {
                runs.store(watch.is_running(), Ordering::Relaxed);
                stale.notify_one();
                Ok(())
            }
            Err(error) => {
                let _ = inbox.send(Event::Over(Err(error)));
                return;
            }
        };
    }
}

async fn look(client: Arc<Client>, runs: Arc<AtomicBool>, stale: Arc<Notify>, inbox: Inbox) {
    // The bus would start a service that is asked.
    let is_running = || runs.load(Ordering::Relaxed);
    loop {
        stale.notified().await;
        let answer = if is_running() { Some(timeout(PATIENCE, ask(&client)).await) } else { None };
        let failed = match answer {
            Some(Ok(Ok(seen))) if is_running() => {
                let _ = inbox.send(seen);
                None
            }
            Some(Ok(Err(error))) if is_running() => Some(error.to_string()),
            Some(Err(_)) if is_running() => Some("sluiced does not answer".to_owned()),
            _ => Some(String::new()),
        };
        if let Some(why) = failed {
            if !why.is_empty() {
                eprintln!("sluice-tray: {why}; see: journalctl -u sluiced");
            }
            let _ = inbox.send(Event::Seen(None, None));
        }
        sleep(CALM).await;
    }
}

async fn ask(client: &Client) -> Result<Event> {
    let ControlReply::State(state) = client.ask(&ControlRequest::State).await? else {
        return Err(Error::new(Kind::Protocol, "sluiced answered something else"));
    };
    let devices = client.devices().await?;
    let on = devices.iter().filter(|device| device.swap_priority.is_some());
    let swap = on.fold(None, |sum: Option<(u64, u64)>, device| {
        let (used, size) = sum.unwrap_or_default();
        Some((used + device.swap_used_bytes, size + device.size_bytes))
    });
    Ok(Event::Seen(Some(state), swap))
}
