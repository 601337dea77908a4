// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only interpreter of the arbiter's actions.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use zbus::Connection;
use zbus::object_server::SignalEmitter;

use super::{Inbox, Message, store_link};
use crate::bus::manager::Manager;
use crate::bus::unit::{self, Job};
use crate::engine::arbiter::{Action, Command, Event, Moment, Notice};
use crate::engine::error::Result;
use crate::engine::units::ByteLen;
use crate::engine::view::Request;
use crate::power::{gpu_sleep, logind};

/// How long a GPU may take to fall asleep once it is closed.
const FALL_ASLEEP: Duration = Duration::from_secs(15);
/// How long logind may take to answer.
const LOGIND: Duration = Duration::from_secs(5);

/// Where things are.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The store's control socket.
    pub socket: PathBuf,
    /// The store's unit.
    pub unit: String,
    /// What sysfs and procfs are below.
    pub root: PathBuf,
}

/// Carries out actions.
pub(super) struct Executor {
    connection: Connection,
    places: Places,
    inbox: Inbox,
    /// The order that is carried out.
    order: Option<JoinHandle<()>>,
    /// The look whether the GPU falls asleep.
    sleep_check: Option<JoinHandle<()>>,
    /// Has the machine wait before it sleeps.
    sleep_hold: Option<OwnedFd>,
    /// When the arbiter wants to be told that time has passed.
    pub wake_at: Option<Moment>,
}

impl Executor {
    pub fn new(connection: Connection, places: Places, inbox: Inbox) -> Self {
        Self {
            connection,
            places,
            inbox,
            order: None,
            sleep_check: None,
            sleep_hold: None,
            wake_at: None,
        }
    }

    /// The store's control socket.
    pub fn store_socket(&self) -> PathBuf {
        self.places.socket.clone()
    }

    /// Carries out the actions of one step. Nothing long is waited for.
    pub async fn run(&mut self, actions: Vec<Action>) {
        self.wake_at = None;
        for action in actions {
            match action {
                Action::Order { order, command } => self.give(order, command),
                Action::CheckGpuSleeps => self.check_gpu_sleeps(),
                Action::AllowSleep => self.sleep_hold = None,
                Action::HoldSleep => self.hold_sleep().await,
                Action::Notify(notice) => self.notify(&notice).await,
                Action::WakeAt(at) => {
                    self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
                }
            }
        }
    }

    /// Begins an order; an earlier one is not waited for any more.
    fn give(&mut self, order: u64, command: Command) {
        tracing::info!("order {order}: {command:?}");
        for task in [self.order.take(), self.sleep_check.take()].into_iter().flatten() {
            task.abort();
        }
        let (connection, places, inbox) =
            (self.connection.clone(), self.places.clone(), self.inbox.clone());
        self.order = Some(tokio::spawn(async move {
            let result = carry_out(command, &connection, &places, &inbox).await;
            let result = result.map_err(|error| {
                tracing::warn!("order {order}: {command:?}: {}", chain(&error));
                chain(&error)
            });
            let _ = inbox.send(Message::Event(Event::Finished { order, result }));
        }));
    }

    fn check_gpu_sleeps(&mut self) {
        let (root, connection) = (self.places.root.clone(), self.connection.clone());
        let check = async move {
            let begun = tokio::time::Instant::now();
            loop {
                let Some(complaint) = gpu_sleep::complaint(&gpu_sleep::read(&root)) else {
                    tracing::info!("the GPU sleeps, or there is none that could");
                    return;
                };
                if begun.elapsed() >= FALL_ASLEEP {
                    tracing::warn!("{complaint}");
                    tell(&connection, false, &complaint).await;
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        self.sleep_check = Some(tokio::spawn(check));
    }

    async fn hold_sleep(&mut self) {
        let asked = tokio::time::timeout(LOGIND, logind::hold_sleep(&self.connection)).await;
        self.sleep_hold = match asked {
            Ok(Ok(held)) => Some(held),
            Ok(Err(error)) => {
                tracing::info!("the machine will not wait before it sleeps: {error}");
                None
            }
            Err(_) => {
                tracing::warn!("the machine will not wait before it sleeps: logind is silent");
                None
            }
        };
    }

    /// Says something to the log and to everybody on the bus.
    pub async fn notify(&self, notice: &Notice) {
        let (urgent, text) = (notice.is_urgent(), notice.to_string());
        if urgent {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
        tell(&self.connection, urgent, &text).await;
    }
}

async fn tell(connection: &Connection, urgent: bool, text: &str) {
    let said = async {
        let emitter = SignalEmitter::new(connection, crate::bus::PATH)?;
        Manager::notice(&emitter, urgent, text).await
    };
    if let Err(error) = said.await {
        tracing::debug!("nobody was told: {error}");
    }
}

async fn carry_out(
    command: Command,
    connection: &Connection,
    places: &Places,
    inbox: &Inbox,
) -> Result<ByteLen> {
    let deadline_ms = Some(0);
    let request = match command {
        Command::StartStore => {
            unit::run(connection, &places.unit, Job::Start).await?;
            return store_link::confirm(&places.socket, true, inbox).await;
        }
        Command::StopStore => {
            unit::run(connection, &places.unit, Job::Stop).await?;
            return store_link::confirm(&places.socket, false, inbox).await;
        }
        Command::SetTarget(bytes) => Request::Target { bytes: bytes.0, tier: None, deadline_ms },
        Command::CloseGpu => Request::CloseGpu { deadline_ms },
        Command::ResumeTarget => Request::Resume { deadline_ms },
    };
    store_link::order(&places.socket, request, inbox).await
}

/// An error with its causes, in one line, and its next step.
fn chain(error: &crate::engine::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    error.hint().map_or_else(|| text.clone(), |hint| format!("{text} (next: {hint})"))
}
