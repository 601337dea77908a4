// SPDX-License-Identifier: MIT OR Apache-2.0
//! logind (`org.freedesktop.login1`): has it wait before the machine sleeps.
//! How long it waits at most is its own setting, `InhibitDelayMaxSec`.

use std::os::fd::OwnedFd;

use zbus::Connection;
use zbus::zvariant;

/// The service's name on the bus.
pub const SERVICE: &str = "org.freedesktop.login1";
/// Its object.
pub const PATH: &str = "/org/freedesktop/login1";
/// The interface of its signals `PrepareForSleep` and `PrepareForShutdown`.
pub const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Has logind wait before sleep and shutdown, until what this gives is closed.
pub async fn hold_sleep(connection: &Connection) -> zbus::Result<OwnedFd> {
    let words = ("sleep:shutdown", "sluiced", "GPU memory is given back before sleep", "delay");
    let reply =
        connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "Inhibit", &words).await?;
    let held: zvariant::OwnedFd = reply.body().deserialize()?;
    Ok(held.into())
}
