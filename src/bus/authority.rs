// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may do what: polkit is asked about the *caller*, by its name on the bus,
//! which nobody else can have (`org.freedesktop.PolicyKit1`). It fails closed: no
//! polkit, no answer or a strange one is a refusal.
//!
//! Root is not asked about. polkit says yes to root by definition, and so it is
//! yes where there is no polkit.

use std::collections::HashMap;
use std::time::Duration;

use zbus::Connection;
use zbus::message::{Flags, Header};
use zbus::zvariant::Value;

use crate::engine::error::{Error, Kind, Result};

/// How long polkit may take when nobody is asked for a password.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long a person may take over it.
const PATIENCE_WITH_PEOPLE: Duration = Duration::from_secs(300);

/// What a caller may or may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Switch on and off, suspend and resume, reserve.
    Toggle,
    /// Set the target.
    Target,
}

impl Permission {
    /// The action's name, as in the policy file.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::Toggle => "org.sluice.toggle",
            Self::Target => "org.sluice.target",
        }
    }
}

/// Whether the sender of a call has the permission.
///
/// Errors: `Denied` if not, or if it cannot be found out.
pub async fn check(
    connection: &Connection,
    header: &Header<'_>,
    permission: Permission,
) -> Result<()> {
    let action = permission.action();
    let Some(sender) = header.sender() else {
        return Err(Error::new(Kind::Denied, format!("{action}: a call without a sender")));
    };
    if is_root(connection, sender.as_str()).await {
        return Ok(());
    }
    let with_people = header.primary().flags().contains(Flags::AllowInteractiveAuth);
    let patience = if with_people { PATIENCE_WITH_PEOPLE } else { PATIENCE };
    let asked = ask_polkit(connection, sender.as_str(), action, with_people);
    let denied = |why: &str| Error::new(Kind::Denied, format!("{action} is refused: {why}"));
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok((true, _))) => Ok(()),
        Ok(Ok((false, true))) => Err(denied("polkit wants a password")
            .with_hint("ask from a desktop session or a terminal with a polkit agent, or as root")),
        Ok(Ok((false, false))) => Err(denied("polkit says no to this user").with_hint(format!(
            "ask as root, or allow it: pkaction --verbose --action-id {action}"
        ))),
        Ok(Err(error)) => Err(denied("polkit cannot be asked")
            .with_hint("ask as root, or see: systemctl status polkit")
            .with_source(error)),
        Err(_) => Err(denied("polkit does not answer")
            .with_hint("ask as root, or see: systemctl status polkit")),
    }
}

async fn is_root(connection: &Connection, sender: &str) -> bool {
    let asked = connection
        .call_method(
            Some("org.freedesktop.DBus"),
            "/org/freedesktop/DBus",
            Some("org.freedesktop.DBus"),
            "GetConnectionUnixUser",
            &sender,
        )
        .await;
    matches!(asked.map(|reply| reply.body().deserialize::<u32>()), Ok(Ok(0)))
}

/// Whether it is allowed, else whether a password would make it so.
async fn ask_polkit(
    connection: &Connection,
    sender: &str,
    action: &str,
    with_people: bool,
) -> zbus::Result<(bool, bool)> {
    let subject = ("system-bus-name", HashMap::from([("name", Value::from(sender))]));
    let words = (subject, action, HashMap::<&str, &str>::new(), u32::from(with_people), "");
    let reply = connection
        .call_method(
            Some("org.freedesktop.PolicyKit1"),
            "/org/freedesktop/PolicyKit1/Authority",
            Some("org.freedesktop.PolicyKit1.Authority"),
            "CheckAuthorization",
            &words,
        )
        .await?;
    let (allowed, challenge, _details): (bool, bool, HashMap<String, String>) =
        reply.body().deserialize()?;
    Ok((allowed, challenge))
}
