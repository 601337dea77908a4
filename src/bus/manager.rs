// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manager's object: methods for clients, and properties that tell them.
#![allow(missing_docs, reason = "the macro makes a trait of the signals, without words")]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::zvariant::{self, Value};
use zbus::{Connection, interface};

use super::authority::{self, Permission};
use super::error::BusError;
use super::{PATH, SERVICE};
use crate::engine::arbiter::Explanation;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;
use crate::engine::view::{ControlRequest, ControlState, MAX_DEADLINE_MS};

/// "As configured", where bytes are asked for.
pub const AS_CONFIGURED: u64 = u64::MAX;

/// What an authorised caller asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// To change something, or to explain it.
    Control(ControlRequest),
    /// To be lent memory of the store's.
    Reserve {
        /// How much.
        bytes: ByteLen,
        /// How long it may take until the store has given it back.
        deadline_ms: u32,
    },
}

/// What a caller is answered.
#[derive(Debug)]
pub enum Answer {
    /// It is decided.
    Accepted,
    /// Why it is as it is.
    Explanation(Box<Explanation>),
    /// The lease ends when the descriptor is closed.
    Lease(OwnedFd),
}

/// A call, and where its answer goes.
#[derive(Debug)]
pub struct Pending {
    /// What is asked.
    pub call: Call,
    /// Dropped without an answer: the control plane is ending.
    pub answer: oneshot::Sender<Result<Answer>>,
}

/// What the properties say; shared with whoever knows it.
pub type Shared<T> = Arc<Mutex<T>>;

/// What is shared now, also after a thread failed over it: it is plain data.
pub fn read<T: Clone>(shared: &Shared<T>) -> T {
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The manager.
pub struct Manager {
    calls: mpsc::Sender<Pending>,
    state: Shared<ControlState>,
}

impl Manager {
    /// A manager that hands its calls over and shows what is shared.
    #[must_use]
    pub fn new(calls: mpsc::Sender<Pending>, state: Shared<ControlState>) -> Self {
        Self { calls, state }
    }

    async fn hand_over(&self, call: Call) -> Result<Answer> {
        let ending = || Error::new(Kind::Missing, "sluiced is ending");
        let (answer, answered) = oneshot::channel();
        self.calls.send(Pending { call, answer }).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?
    }

    async fn change(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        permission: Permission,
        request: ControlRequest,
    ) -> std::result::Result<(), BusError> {
        authority::check(connection, header, permission).await?;
        self.hand_over(Call::Control(request)).await?;
        Ok(())
    }
}

/// The control plane of Sluice: swap in idle GPU memory.
///
/// Every method that changes something asks polkit about its caller. Errors are
/// `org.sluice.Sluice1.Error.KIND` with two strings: what failed, and the next
/// step.
#[interface(name = "org.sluice.Sluice1")]
impl Manager {
    /// Switches on: starts the store if it does not run, and ends Disable and Suspend.
    ///
    /// Permission: org.sluice.toggle.
    async fn enable(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> std::result::Result<(), BusError> {
        self.change(connection, &header, Permission::Toggle, ControlRequest::Enable).await
    }

    /// Switches off: the swap goes off, all GPU memory is given back. Nothing but
    /// Enable ends it, also over a restart of the machine.
    ///
    /// Permission: org.sluice.toggle.
    async fn disable(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> std::result::Result<(), BusError> {
        self.change(connection, &header, Permission::Toggle, ControlRequest::Disable).await
    }

    /// Sets the most GPU memory to hold, in bytes; the largest number there is
    /// means: as configured.
    ///
    /// Permission: org.sluice.target.
    async fn set_target(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
        bytes: u64,
    ) -> std::result::Result<(), BusError> {
        let request = ControlRequest::SetTarget((bytes != AS_CONFIGURED).then_some(bytes));
        self.change(connection, &header, Permission::Target, request).await
    }

    /// Gives all GPU memory back and closes the GPU; the swap stays on. Resume or
    /// Enable ends it.
    ///
    /// Permission: org.sluice.toggle.
    async fn suspend(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> std::result::Result<(), BusError> {
        self.change(connection, &header, Permission::Toggle, ControlRequest::Suspend).await
    }

    /// Lends GPU memory again.
    ///
    /// Permission: org.sluice.toggle.
    async fn resume(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> std::result::Result<(), BusError> {
        self.change(connection, &header, Permission::Toggle, ControlRequest::Resume).await
    }

    /// Has the store hold so many bytes less than it may, until the descriptor that
    /// this gives is closed. Answers when they are given back, or fails after
    /// so many milliseconds.
    ///
    /// Permission: org.sluice.toggle.
    #[zbus(out_args("lease"))]
    async fn reserve(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
        bytes: u64,
        deadline_ms: u32,
    ) -> std::result::Result<zvariant::OwnedFd, BusError> {
        if u64::from(deadline_ms) > MAX_DEADLINE_MS {
            let what = format!("deadline_ms {deadline_ms}: 0 to {MAX_DEADLINE_MS}, an hour");
            return Err(Error::new(Kind::Invalid, what).into());
        }
        authority::check(connection, &header, Permission::Toggle).await?;
        match self.hand_over(Call::Reserve { bytes: ByteLen(bytes), deadline_ms }).await? {
            Answer::Lease(lease) => Ok(lease.into()),
            Answer::Accepted | Answer::Explanation(_) => Err(strange().into()),
        }
    }

    /// Why is it as it is? The bytes count where the goal is "target". The progress is
    /// "settled", "moving", "waiting", "failed" or "down".
    #[zbus(out_args(
        "goal",
        "goal_bytes",
        "rule",
        "sentence",
        "progress",
        "detail",
        "last_event",
        "inputs"
    ))]
    async fn explain(
        &self,
    ) -> std::result::Result<
        (String, u64, String, String, String, String, String, Vec<(String, String)>),
        BusError,
    > {
        match self.hand_over(Call::Control(ControlRequest::Explain)).await? {
            Answer::Explanation(said) => {
                let said = *said;
                let inputs = said.inputs.into_iter().map(|input| (input.name, input.value));
                Ok((
                    said.goal,
                    said.goal_bytes.unwrap_or_default(),
                    said.rule.name().to_owned(),
                    said.sentence,
                    said.progress,
                    said.detail,
                    said.last_event,
                    inputs.collect(),
                ))
            }
            Answer::Accepted | Answer::Lease(_) => Err(strange().into()),
        }
    }

    /// Something that people should know.
    #[zbus(signal)]
    pub async fn notice(emitter: &SignalEmitter<'_>, urgent: bool, text: &str) -> zbus::Result<()>;

    /// What the store should be at: "off", "closed", "target" or "full".
    #[zbus(property)]
    fn goal(&self) -> String {
        read(&self.state).goal
    }

    /// The rule that decides.
    #[zbus(property)]
    fn rule(&self) -> String {
        read(&self.state).rule
    }

    /// Goal and rule in a sentence.
    #[zbus(property)]
    fn sentence(&self) -> String {
        read(&self.state).sentence
    }

    /// How far it is: "settled", "moving", "waiting", "failed" or "down".
    #[zbus(property)]
    fn progress(&self) -> String {
        read(&self.state).progress
    }

    /// Why it failed, or what it waits for.
    #[zbus(property)]
    fn detail(&self) -> String {
        read(&self.state).detail
    }

    /// False after Disable.
    #[zbus(property)]
    fn enabled(&self) -> bool {
        read(&self.state).enabled
    }

    /// True after Suspend.
    #[zbus(property)]
    fn suspended(&self) -> bool {
        read(&self.state).suspended
    }

    /// Whether a store answers.
    #[zbus(property)]
    fn running(&self) -> bool {
        read(&self.state).running
    }

    /// Bytes of GPU memory that may be held now.
    #[zbus(property)]
    fn target_bytes(&self) -> u64 {
        read(&self.state).target_bytes
    }

    /// Bytes of GPU memory held now.
    #[zbus(property)]
    fn held_bytes(&self) -> u64 {
        read(&self.state).held_bytes
    }

    /// Bytes of GPU memory that could be held.
    #[zbus(property)]
    fn full_bytes(&self) -> u64 {
        read(&self.state).full_bytes
    }

    /// Bytes of all leases together.
    #[zbus(property)]
    fn leased_bytes(&self) -> u64 {
        read(&self.state).leased_bytes
    }

    /// Whether the machine runs on battery.
    #[zbus(property)]
    fn on_battery(&self) -> bool {
        read(&self.state).on_battery
    }

    /// The battery's level in percent; -1 without one.
    #[zbus(property)]
    fn battery_level(&self) -> i16 {
        read(&self.state).battery_level.map_or(-1, i16::from)
    }

    /// Whether GPU memory failed.
    #[zbus(property)]
    fn faulty(&self) -> bool {
        read(&self.state).faulty
    }

    /// The keys of the configuration that sluiced goes by, as "battery.threshold", with
    /// their values as the file spells them; a key that is not set is not there.
    #[zbus(property)]
    fn settings(&self) -> HashMap<String, String> {
        read(&self.state).settings.into_iter().collect()
    }

    /// The version of sluiced.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> String {
        read(&self.state).version
    }
}

fn strange() -> Error {
    Error::new(Kind::Protocol, "the control plane answered something else")
}

/// The properties that can change, as they travel.
fn values(state: &ControlState) -> [(&'static str, Value<'static>); 16] {
    let state = state.clone();
    let settings: HashMap<String, String> = state.settings.into_iter().collect();
    [
        ("Goal", state.goal.into()),
        ("Rule", state.rule.into()),
        ("Sentence", state.sentence.into()),
        ("Progress", state.progress.into()),
        ("Detail", state.detail.into()),
        ("Enabled", state.enabled.into()),
        ("Suspended", state.suspended.into()),
        ("Running", state.running.into()),
        ("TargetBytes", state.target_bytes.into()),
        ("HeldBytes", state.held_bytes.into()),
        ("FullBytes", state.full_bytes.into()),
        ("LeasedBytes", state.leased_bytes.into()),
        ("OnBattery", state.on_battery.into()),
        ("BatteryLevel", state.battery_level.map_or(-1, i16::from).into()),
        ("Faulty", state.faulty.into()),
        ("Settings", settings.into()),
    ]
}

/// Shows another state, and announces what is different.
pub async fn publish(
    connection: &Connection,
    shared: &Shared<ControlState>,
    next: ControlState,
) -> zbus::Result<()> {
    let before = {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *shared, next.clone())
    };
    announce(connection, PATH, SERVICE, values(&before), values(&next)).await
}

/// Announces the properties of an object that are different.
pub(super) async fn announce<const N: usize>(
    connection: &Connection,
    path: &str,
    interface: &str,
    before: [(&'static str, Value<'static>); N],
    after: [(&'static str, Value<'static>); N],
) -> zbus::Result<()> {
    let changed: HashMap<_, _> = after
        .into_iter()
        .zip(before)
        .filter(|(after, before)| after != before)
        .map(|(after, _)| after)
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    let emitter = SignalEmitter::new(connection, path)?;
    zbus::fdo::Properties::properties_changed(
        &emitter,
        interface.try_into()?,
        changed,
        Vec::new().into(),
    )
    .await
}

/// The interface's description, as clients are given it.
#[must_use]
pub fn introspection() -> String {
    use zbus::object_server::Interface;
    let (calls, _) = mpsc::channel(1);
    let mut text = String::new();
    Manager::new(calls, Shared::default()).introspect_to_writer(&mut text, 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_that_can_change_is_announced() {
        let description = introspection();
        let described: std::collections::BTreeSet<&str> = description
            .split("<property name=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .filter(|name| *name != "Version")
            .collect();
        let announced = values(&ControlState::default());
        assert_eq!(
            announced.iter().map(|(name, _)| *name).collect::<std::collections::BTreeSet<_>>(),
            described
        );
    }
}
