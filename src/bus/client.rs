// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of the service, for the command line and the desktop.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::time::Duration;

use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::zvariant::{self, DynamicType, OwnedObjectPath, OwnedValue};
use zbus::{Connection, Proxy};

use super::error::received;
use super::manager::AS_CONFIGURED;
use super::{PATH, SERVICE, device};
use crate::engine::arbiter::{Explanation, Input, Rule};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::view::{ControlReply, ControlRequest, ControlState, Device};

/// How long an answer may take; a person may be asked for a password.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long properties may take, for which nobody is asked.
const AT_ONCE: Duration = Duration::from_secs(5);

pub(super) fn no_bus(error: zbus::Error) -> Error {
    Error::new(Kind::Missing, "cannot reach the system bus").with_source(error)
}

fn silent(method: &str) -> Error {
    Error::new(Kind::TimedOut, format!("{method}: sluiced does not answer"))
        .with_hint("see: journalctl -u sluiced")
}

/// The service, from a client's side.
pub struct Client {
    proxy: Proxy<'static>,
}

impl Client {
    /// Reaches the system bus.
    ///
    /// Errors: `Missing` where there is none.
    pub async fn connect() -> Result<Self> {
        Self::on(&Connection::system().await.map_err(no_bus)?).await
    }

    /// On a bus that is reached already.
    pub async fn on(connection: &Connection) -> Result<Self> {
        let proxy = zbus::proxy::Builder::<Proxy<'static>>::new(connection)
            .destination(SERVICE)
            .and_then(|builder| builder.path(PATH))
            .and_then(|builder| builder.interface(SERVICE))
            .map_err(no_bus)?
            .cache_properties(CacheProperties::No)
            .build()
            .await
            .map_err(no_bus)?;
        Ok(Self { proxy })
    }

    async fn call<R>(
        &self,
        method: &'static str,
        body: &(impl serde::Serialize + DynamicType + Sync),
        patience: Duration,
    ) -> Result<R>
    where
        R: for<'d> zvariant::DynamicDeserialize<'d>,
    {
        let flags = MethodFlags::AllowInteractiveAuth.into();
        let called = self.proxy.call_with_flags(method, flags, body);
        match tokio::time::timeout(patience, called).await {
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Err(error)) => Err(received(method, error)),
            Ok(Ok(None)) | Err(_) => Err(silent(method)),
        }
    }

    /// Asks the service.
    ///
    /// Errors: `Missing` where it does not run, `Denied` where polkit refuses,
    /// else what it answers.
    pub async fn ask(&self, request: &ControlRequest) -> Result<ControlReply> {
        let method = match request {
            ControlRequest::Enable => "Enable",
            ControlRequest::Disable => "Disable",
            ControlRequest::Suspend => "Suspend",
            ControlRequest::Resume => "Resume",
            ControlRequest::SetTarget(bytes) => {
                let bytes = bytes.unwrap_or(AS_CONFIGURED);
                self.call::<()>("SetTarget", &(bytes,), PATIENCE).await?;
                return Ok(ControlReply::Accepted);
            }
            ControlRequest::Explain => {
                return Ok(ControlReply::Explanation(Box::new(self.explain().await?)));
            }
            ControlRequest::State => return Ok(ControlReply::State(Box::new(self.state().await?))),
        };
        self.call::<()>(method, &(), PATIENCE).await?;
        Ok(ControlReply::Accepted)
    }

    /// Takes a lease; it ends when the descriptor is closed.
    ///
    /// Errors: as [`Client::ask`]; `TimedOut` if the store has not given so much
    /// back within the deadline.
    pub async fn reserve(&self, bytes: u64, deadline: Duration) -> Result<OwnedFd> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let lease: zvariant::OwnedFd =
            self.call("Reserve", &(bytes, deadline_ms), PATIENCE + deadline).await?;
        Ok(lease.into())
    }

    /// What the service goes by, which is not started for it.
    ///
    /// Errors: `Missing` where it does not run; `Protocol` where it is older.
    pub async fn settings(&self) -> Result<BTreeMap<String, String>> {
        const WHAT: &str = "Settings";
        let properties = zbus::proxy::Builder::<Proxy<'_>>::new(self.proxy.connection())
            .destination(SERVICE)
            .and_then(|builder| builder.path(PATH))
            .and_then(|builder| builder.interface("org.freedesktop.DBus.Properties"))
            .map_err(no_bus)?
            .cache_properties(CacheProperties::No)
            .build()
            .await
            .map_err(no_bus)?;
        let flags = MethodFlags::NoAutoStart.into();
        let got = properties.call_with_flags("GetAll", flags, &(SERVICE,)).await;
        let values: Option<HashMap<String, OwnedValue>> =
            got.map_err(|error| received(WHAT, error))?;
        let settings: HashMap<String, String> = Values(values.unwrap_or_default()).take(WHAT)?;
        Ok(settings.into_iter().collect())
    }

    /// The swap devices there are, in no order.
    ///
    /// Errors: as [`Client::ask`].
    pub async fn devices(&self) -> Result<Vec<Device>> {
        type Interfaces = HashMap<String, HashMap<String, OwnedValue>>;
        let method = "GetManagedObjects";
        let asked = self.proxy.connection().call_method(
            Some(SERVICE),
            PATH,
            Some("org.freedesktop.DBus.ObjectManager"),
            method,
            &(),
        );
        let reply = asked.await.map_err(|error| received(method, error))?;
        let body = reply.body();
        let objects: HashMap<OwnedObjectPath, Interfaces> =
            body.deserialize().map_err(|error| received(method, error))?;
        let devices = objects.into_values().filter_map(|mut of| of.remove(device::INTERFACE));
        devices.map(|values| read_device(&Values(values))).collect()
    }

    async fn explain(&self) -> Result<Explanation> {
        type Said = (String, u64, String, String, String, String, String, Vec<(String, String)>);
        let (goal, bytes, rule, sentence, progress, detail, last_event, inputs): Said =
            self.call("Explain", &(), PATIENCE).await?;
        let goal_bytes = (goal == "target").then_some(bytes);
        let rule: Rule = serde_json::from_value(rule.clone().into()).map_err(|error| {
            Error::new(Kind::Protocol, format!("Explain: an unknown rule {rule:?}"))
                .with_hint("is it the same version of sluice and sluiced?")
                .with_source(error)
        })?;
        let inputs = inputs.into_iter().map(|(name, value)| Input { name, value }).collect();
        Ok(Explanation { goal, goal_bytes, rule, sentence, progress, detail, last_event, inputs })
    }

    async fn state(&self) -> Result<ControlState> {
        let asked = self.proxy.connection().call_method(
            Some(SERVICE),
            PATH,
            Some("org.freedesktop.DBus.Properties"),
            "GetAll",
            &SERVICE,
        );
        let reply = tokio::time::timeout(AT_ONCE, asked).await.map_err(|_| silent("GetAll"))?;
        let reply = reply.map_err(|error| received("GetAll", error))?;
        let body = reply.body();
        let values: HashMap<String, OwnedValue> =
            body.deserialize().map_err(|error| received("GetAll", error))?;
        read_state(&Values(values))
    }
}

fn read_state(values: &Values) -> Result<ControlState> {
    // An older one has none; who compares them asks for them alone.
    let settings: Option<HashMap<_, _>> = values.take_if_there("Settings")?;
    Ok(ControlState {
        goal: values.take("Goal")?,
        rule: values.take("Rule")?,
        sentence: values.take("Sentence")?,
        progress: values.take("Progress")?,
        detail: values.take("Detail")?,
        enabled: values.take("Enabled")?,
        suspended: values.take("Suspended")?,
        running: values.take("Running")?,
        target_bytes: values.take("TargetBytes")?,
        held_bytes: values.take("HeldBytes")?,
        full_bytes: values.take("FullBytes")?,
        leased_bytes: values.take("LeasedBytes")?,
        on_battery: values.take("OnBattery")?,
        battery_level: u8::try_from(values.take::<i16>("BatteryLevel")?).ok(),
        faulty: values.take("Faulty")?,
        version: values.take("Version")?,
        settings: BTreeMap::from_iter(settings.unwrap_or_default()),
    })
}

fn read_device(values: &Values) -> Result<Device> {
    let is_on: bool = values.take("SwappedOn")?;
    Ok(Device {
        path: values.take("Path")?,
        size_bytes: values.take("SizeBytes")?,
        swap_priority: is_on.then_some(values.take("SwapPriority")?),
        swap_used_bytes: values.take("SwapUsedBytes")?,
    })
}

/// Properties by name.
struct Values(HashMap<String, OwnedValue>);

impl Values {
    fn take<T: TryFrom<OwnedValue>>(&self, name: &str) -> Result<T> {
        let missing = || unlike(format!("sluiced has no property {name}"));
        self.take_if_there(name)?.ok_or_else(missing)
    }

    /// `Ok(None)`: the service does not have it.
    ///
    /// Errors: `Protocol` where it has another type.
    fn take_if_there<T: TryFrom<OwnedValue>>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let taken = value.try_clone().ok().and_then(|value| T::try_from(value).ok());
        let wrong =
            || unlike(format!("sluiced's property {name} is of type {}", value.value_signature()));
        taken.ok_or_else(wrong).map(Some)
    }
}

fn unlike(what: String) -> Error {
    Error::new(Kind::Protocol, what).with_hint("is it the same version of sluice and sluiced?")
}

#[cfg(test)]
mod tests {
    use zvariant::Value;

    use super::*;

    fn values(settings: Option<Value<'static>>) -> Values {
        let words = ["Goal", "Rule", "Sentence", "Progress", "Detail", "Version"];
        let sizes = ["TargetBytes", "HeldBytes", "FullBytes", "LeasedBytes"];
        let bits = ["Enabled", "Suspended", "Running", "OnBattery", "Faulty"];
        let all = words
            .map(|name| (name, Value::from("word")))
            .into_iter()
            .chain(sizes.map(|name| (name, Value::from(1_u64))))
            .chain(bits.map(|name| (name, Value::from(true))))
            .chain([("BatteryLevel", Value::from(-1_i16))])
            .chain(settings.map(|settings| ("Settings", settings)));
        Values(all.map(|(name, value)| (name.to_owned(), value.try_into().unwrap())).collect())
    }

    #[test]
    fn settings_may_be_missing_and_not_of_another_type() {
        assert!(read_state(&values(None)).unwrap().settings.is_empty());
        let right = HashMap::from([("tier.reserve", "1 GiB")]);
        let state = read_state(&values(Some(right.into()))).unwrap();
        assert_eq!(state.settings["tier.reserve"], "1 GiB");
        let error = read_state(&values(Some(Value::from("tier.reserve=1G")))).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol);
        assert_eq!(error.to_string(), "sluiced's property Settings is of type s");
        assert!(error.hint().is_some());
    }

    #[test]
    fn what_must_be_there_is_named_where_it_is_not() {
        let mut values = values(None);
        values.0.remove("Faulty");
        let error = read_state(&values).unwrap_err();
        assert_eq!(error.to_string(), "sluiced has no property Faulty");
    }
}
