// SPDX-License-Identifier: MIT OR Apache-2.0
//! What fills the inbox: the store, the power supply, logind, memory pressure,
//! signals (what others do with GPUs: [`super::neighbours`]). Each looks at the truth as a
//! whole; a change is only a reason to look.

use std::path::PathBuf;
use std::time::Duration;

use futures_lite::StreamExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use zbus::{Connection, MatchRule, MessageStream, message};

use super::neighbours::Watched;
use super::{Inbox, Message, store_link};
use crate::engine::arbiter::{Event, Power};
use crate::power::{logind, pressure, supplies, uevent, upower};

/// Between two looks at the store; also how soon a store that came is seen.
const STORE: Duration = Duration::from_secs(2);
/// While it lends from a GPU: each look is also one at what others do with it, and a game
/// that starts takes its memory within seconds.
const LENDING: Duration = Duration::from_secs(1);
/// On battery each wake-up costs.
const ON_BATTERY: u32 = 5;
/// Between two looks at the power that nothing announced.
const POWER: Duration = Duration::from_secs(60);
/// How long `UPower` may take before the kernel's word is taken.
const UPOWER: Duration = Duration::from_secs(5);
/// Between two looks at memory pressure: the kernel's average moves every two.
const PRESSURE: Duration = Duration::from_secs(2);

/// Looks at the store for as long as the inbox is there.
pub(super) async fn store(socket: PathBuf, watched: watch::Receiver<Watched>, inbox: Inbox) {
    let mut last = None;
    while !inbox.is_closed() {
        match store_link::look(&socket).await {
            Ok(seen) => {
                last = None;
                let _ = inbox.send(Message::Seen(seen));
            }
            Err(error) => {
                let text = error.to_string();
                if last.as_ref() != Some(&text) {
                    tracing::warn!("cannot look at the store: {text}");
                    last = Some(text);
                }
            }
        }
        let pause = pause(&watched.borrow());
        tokio::time::sleep(pause).await;
    }
}

fn pause(watched: &Watched) -> Duration {
    let pause = if watched.lending().is_some() { LENDING } else { STORE };
    if watched.on_battery { pause * ON_BATTERY } else { pause }
}

/// Looks at the power whenever `UPower` or the kernel says that it changed.
pub(super) async fn power(connection: Connection, root: PathBuf, inbox: Inbox) {
    let mut said =
        signals(&connection, upower::SERVICE, Some("org.freedesktop.DBus.Properties")).await;
    let mut announced = uevent::listen()
        .map_err(|error| tracing::warn!("{error}; power is looked at every {} s", POWER.as_secs()))
        .ok();
    let mut last = None;
    while !inbox.is_closed() {
        let power = look_at_power(&connection, &root).await;
        if last != Some(power) {
            tracing::debug!("power: {power:?}");
            last = Some(power);
            let _ = inbox.send(Message::Event(Event::PowerChanged(power)));
        }
        tokio::select! {
            () = next(&mut said) => {}
            () = next_announced(&mut announced) => {}
            () = tokio::time::sleep(POWER) => {}
        }
    }
}

/// Waits for the next announcement; for ever where there are none.
async fn next_announced(announced: &mut Option<mpsc::Receiver<()>>) {
    if let Some(changes) = announced {
        if changes.recv().await.is_some() {
            return;
        }
        *announced = None;
    }
    std::future::pending::<()>().await;
}

async fn look_at_power(connection: &Connection, root: &std::path::Path) -> Power {
    match tokio::time::timeout(UPOWER, upower::read(connection)).await {
        Ok(Ok(power)) => power,
        Ok(Err(error)) => {
            tracing::debug!("no UPower, the kernel's word is taken: {error}");
            supplies::read(root)
        }
        Err(_) => {
            tracing::warn!("UPower does not answer, the kernel's word is taken");
            supplies::read(root)
        }
    }
}

/// Passes on what logind says about sleep and shutdown.
pub(super) async fn sleep(connection: Connection, inbox: Inbox) {
    let Some(mut said) = signals(&connection, logind::SERVICE, Some(logind::MANAGER)).await else {
        return;
    };
    while let Some(Ok(signal)) = said.next().await {
        let header = signal.header();
        let member = header.member().map(zbus::names::MemberName::as_str);
        let body = signal.body();
        let event = match (member, body.deserialize::<bool>()) {
            (Some("PrepareForSleep"), Ok(true)) => Event::SleepBegan,
            (Some("PrepareForSleep"), Ok(false)) => Event::SleepEnded,
            (Some("PrepareForShutdown"), Ok(true)) => Event::ShutdownBegan,
            (Some("PrepareForShutdown"), Ok(false)) => Event::ShutdownCancelled,
            _ => continue,
        };
        tracing::info!("logind: {event:?}");
        let _ = inbox.send(Message::Event(event));
    }
}

/// Looks at memory pressure while somebody wants to know; the value is the
/// threshold in percent.
pub(super) async fn memory(root: PathBuf, mut wanted: watch::Receiver<Option<u8>>, inbox: Inbox) {
    let mut pressed = false;
    while !inbox.is_closed() {
        let threshold = *wanted.borrow_and_update();
        let Some(threshold) = threshold else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        match pressure::read(&root) {
            Ok(Some(percent)) => {
                let now = pressure::weigh(pressed, percent, threshold);
                if now != pressed {
                    pressed = now;
                    let _ = inbox.send(Message::Event(Event::MemoryPressed(now)));
                }
            }
            // Without the count the machine must be taken for short of memory.
            Ok(None) => {
                tracing::warn!("control.idle_target has no effect: this kernel counts no pressure");
                let _ = inbox.send(Message::Event(Event::MemoryPressed(true)));
                return;
            }
            Err(error) => tracing::warn!("{error}"),
        }
        tokio::time::sleep(PRESSURE).await;
    }
}

/// Passes signals on: SIGHUP reads the configuration anew, SIGTERM and SIGINT end.
pub(super) fn process_signals(inbox: &Inbox) -> std::io::Result<()> {
    for (kind, reload) in [
        (SignalKind::hangup(), true),
        (SignalKind::terminate(), false),
        (SignalKind::interrupt(), false),
    ] {
        let mut signals = signal(kind)?;
        let inbox = inbox.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let _ = inbox.send(if reload { Message::Reload } else { Message::Stop });
            }
        });
    }
    Ok(())
}

/// The signals of a service; `None` where the bus does not pass them on.
async fn signals(
    connection: &Connection,
    service: &'static str,
    interface: Option<&'static str>,
) -> Option<MessageStream> {
    let rule = || -> zbus::Result<MatchRule<'static>> {
        let rule = MatchRule::builder().msg_type(message::Type::Signal).sender(service)?;
        Ok(match interface {
            Some(interface) => rule.interface(interface)?.build(),
            None => rule.build(),
        })
    };
    let stream = match rule() {
        Ok(rule) => MessageStream::for_match_rule(rule, connection, None).await,
        Err(error) => Err(error),
    };
    stream.map_err(|error| tracing::warn!("cannot listen to {service}: {error}")).ok()
}

/// Waits for the next signal; for ever where there are none.
async fn next(stream: &mut Option<MessageStream>) {
    if let Some(signals) = stream {
        if signals.next().await.is_some() {
            return;
        }
        *stream = None;
    }
    std::future::pending::<()>().await;
}
