// SPDX-License-Identifier: MIT OR Apache-2.0
//! systemd (`org.freedesktop.systemd1`): starts and stops the store's unit, and
//! waits for the end of the job.

use futures_lite::StreamExt;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, MatchRule, MessageStream, message};

use crate::engine::error::{Error, Kind, Result};

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// What to do with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Start it.
    Start,
    /// Stop it.
    Stop,
}

/// Has systemd do it, and waits until it is done. Waiting may be given up; the
/// job goes on.
///
/// Errors: `Missing` without systemd on the bus, `Io` if the job failed.
pub async fn run(connection: &Connection, unit: &str, job: Job) -> Result<()> {
    let (method, word) = match job {
        Job::Start => ("StartUnit", "start"),
        Job::Stop => ("StopUnit", "stop"),
    };
    let failed = |error: zbus::Error| {
        Error::new(Kind::Missing, format!("systemd does not {word} {unit}"))
            .with_hint(format!("see: systemctl status {unit}"))
            .with_source(error)
    };
    let result = wait(connection, unit, method).await.map_err(failed)?;
    if result == "done" {
        return Ok(());
    }
    let what = format!("systemd could not {word} {unit}: the job ended with {result:?}");
    Err(Error::new(Kind::Io, what).with_hint(format!("see: journalctl -u {unit}")))
}

async fn wait(connection: &Connection, unit: &str, method: &str) -> zbus::Result<String> {
    let rule = MatchRule::builder()
        .msg_type(message::Type::Signal)
        .sender(SERVICE)?
        .interface(MANAGER)?
        .member("JobRemoved")?
        .build();
    // Listens before it asks: a job may be over before its reply is read.
    let mut removed = MessageStream::for_match_rule(rule, connection, None).await?;
    connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "Subscribe", &()).await.ok();
    let reply = connection
        .call_method(Some(SERVICE), PATH, Some(MANAGER), method, &(unit, "replace"))
        .await?;
    let job: OwnedObjectPath = reply.body().deserialize()?;
    while let Some(signal) = removed.next().await {
        let signal = signal?;
        let body = signal.body();
        let (_id, ended, _unit, result): (u32, OwnedObjectPath, String, String) =
            body.deserialize()?;
        if ended == job {
            return Ok(result);
        }
    }
    Err(zbus::Error::InputOutput(std::sync::Arc::new(std::io::ErrorKind::ConnectionAborted.into())))
}
