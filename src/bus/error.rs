// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as they travel on the bus: `org.sluice.Sluice1.Error.KIND` with two
//! strings, what failed and the next step.

use zbus::message::{Header, Message};
use zbus::names::ErrorName;

use crate::engine::error::{Error, Kind};

/// An error of the service, on its way to a caller.
#[derive(Debug)]
pub struct BusError(Error);

impl From<Error> for BusError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl zbus::DBusError for BusError {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        let hint = self.0.hint().unwrap_or_default();
        Message::error(call, self.name())?.build(&(self.0.to_string(), hint))
    }

    fn name(&self) -> ErrorName<'_> {
        let name = match self.0.kind() {
            Kind::Denied => "org.sluice.Sluice1.Error.Denied",
            Kind::Invalid => "org.sluice.Sluice1.Error.Invalid",
            Kind::Missing => "org.sluice.Sluice1.Error.Missing",
            Kind::Busy => "org.sluice.Sluice1.Error.Busy",
            Kind::NoSpace => "org.sluice.Sluice1.Error.NoSpace",
            Kind::TimedOut => "org.sluice.Sluice1.Error.TimedOut",
            _ => "org.sluice.Sluice1.Error.Failed",
        };
        ErrorName::from_static_str_unchecked(name)
    }

    fn description(&self) -> Option<&str> {
        None
    }
}

/// What a client makes of an error that came back, for `what` it asked.
#[must_use]
pub fn received(what: &str, error: zbus::Error) -> Error {
    let zbus::Error::MethodError(name, _, message) = &error else {
        return Error::new(Kind::Io, format!("{what}: the bus failed")).with_source(error);
    };
    let name = name.as_str();
    if let Some(kind) = name.strip_prefix("org.sluice.Sluice1.Error.") {
        let kind = match kind {
            "Denied" => Kind::Denied,
            "Invalid" => Kind::Invalid,
            "Missing" => Kind::Missing,
            "Busy" => Kind::Busy,
            "NoSpace" => Kind::NoSpace,
            "TimedOut" => Kind::TimedOut,
            _ => Kind::Io,
        };
        let (text, hint) = message
            .body()
            .deserialize::<(String, String)>()
            .unwrap_or_else(|_| (error.to_string(), String::new()));
        let received = Error::new(kind, text);
        return if hint.is_empty() { received } else { received.with_hint(hint) };
    }
    match name {
        "org.freedesktop.DBus.Error.ServiceUnknown"
        | "org.freedesktop.DBus.Error.NameHasNoOwner"
        | "org.freedesktop.DBus.Error.Spawn.ServiceNotFound" => {
            Error::new(Kind::Missing, format!("{what}: sluiced does not run"))
                .with_hint("start it: systemctl start sluiced")
                .with_source(error)
        }
        "org.freedesktop.DBus.Error.AccessDenied" => {
            Error::new(Kind::Denied, format!("{what}: the bus does not let this user ask"))
                .with_source(error)
        }
        _ => Error::new(Kind::Io, format!("{what}: no answer from sluiced"))
            .with_hint("see: journalctl -u sluiced")
            .with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_name_on_the_bus() {
        for (kind, name) in [
            (Kind::Denied, "Denied"),
            (Kind::Invalid, "Invalid"),
            (Kind::Missing, "Missing"),
            (Kind::Busy, "Busy"),
            (Kind::NoSpace, "NoSpace"),
            (Kind::TimedOut, "TimedOut"),
            (Kind::Io, "Failed"),
            (Kind::Protocol, "Failed"),
        ] {
            let error = BusError::from(Error::new(kind, "what").with_hint("next"));
            let full = zbus::DBusError::name(&error).to_string();
            assert_eq!(full, format!("org.sluice.Sluice1.Error.{name}"));
        }
    }
}
