// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process: one inbox, one arbiter, one executor.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{mpsc, watch};
use zbus::Connection;
use zbus::fdo::RequestNameFlags;

use super::executor::{Executor, Places};
use super::leases::Leases;
use super::metrics;
use super::neighbours::{self, Watched};
use super::wishes::WishesFile;
use super::{Inbox, Message, settings, sources, store_link};
use crate::bus::device::Devices;
use crate::bus::manager::{Answer, Call, Manager, Pending, Shared};
use crate::bus::{self, manager};
use crate::config::in_force::{CONTROL_AT_START, Settings};
use crate::config::{self, Config, ConfigError};
use crate::engine::arbiter::{Event, Moment, Notice, State, step};
use crate::engine::error::{Error, Kind};
use crate::engine::view::{ControlRequest, ControlState, Status};
use crate::runtime::logging;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Calls that may wait for the inbox; more wait on the bus.
const CALLS: usize = 64;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: PathBuf,
    /// The store's control socket.
    pub socket: PathBuf,
    /// Where what people asked for is kept.
    pub state_dir: PathBuf,
    /// The store's unit.
    pub unit: String,
    /// What sysfs and procfs are below.
    pub root: PathBuf,
}

/// Says whether the configuration is right, and does nothing else.
#[must_use]
pub fn check_config(path: &Path) -> ExitCode {
    match config::load(Path::new("/"), path) {
        Ok(_) => {
            println!("{}: right", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => refuse_config(&error),
    }
}

fn refuse_config(error: &ConfigError) -> ExitCode {
    eprint!("{}", error.to_string().trim_end().to_owned() + "\n");
    ExitCode::from(2)
}

/// Runs until it is told to end.
#[must_use]
pub fn main(options: &Options) -> ExitCode {
    let config = match config::load(Path::new("/"), &options.config) {
        Ok(config) => config,
        Err(error) => return refuse_config(&error),
    };
    logging::start_as("sluiced", config.log.level);
    let ran = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the executor")
        .and_then(|runtime| runtime.block_on(serve(options, config)));
    let Err(error) = ran else { return ExitCode::SUCCESS };
    eprintln!("sluiced: {error:#}");
    let hint = error.chain().find_map(|cause| cause.downcast_ref::<Error>()?.hint());
    if let Some(hint) = hint {
        eprintln!("  next: {hint}");
    }
    ExitCode::FAILURE
}

async fn serve(options: &Options, config: Config) -> Result<()> {
    let file = WishesFile::new(&options.state_dir)?;
    let state = State::new(settings::policy(&config), file.read()?);
    let (inbox, mut messages) = mpsc::unbounded_channel();
    let settings = config::in_force::of_control(&config);
    let shared: Shared<ControlState> = Shared::new(view(&state, &settings).into());
    let connection = serve_bus(&inbox, &shared).await?;

    let (pressure, pressure_seen) = watch::channel(pressure_wanted(&config));
    let socket = options.socket.clone();
    let (watched, watched_seen) = watch::channel(neighbours_wanted(&config));
    tokio::spawn(sources::store(socket.clone(), watched_seen.clone(), inbox.clone()));
    let root = options.root.clone();
    tokio::spawn(neighbours::watch(socket.clone(), root, watched_seen, inbox.clone()));
    tokio::spawn(sources::power(connection.clone(), options.root.clone(), inbox.clone()));
    tokio::spawn(sources::sleep(connection.clone(), inbox.clone()));
    tokio::spawn(sources::memory(options.root.clone(), pressure_seen, inbox.clone()));
    sources::process_signals(&inbox).context("cannot wait for signals")?;

    let places = Places { socket, unit: options.unit.clone(), root: options.root.clone() };
    let mut daemon = Daemon {
        executor: Executor::new(connection.clone(), places, inbox.clone()),
        connection,
        state,
        settings,
        file,
        shared,
        inbox,
        devices: Devices::default(),
        leases: Leases::default(),
        config_path: options.config.clone(),
        pressure,
        watched,
        metrics: None,
        origin: Instant::now(),
    };
    daemon.serve_metrics(&config);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!("sluiced {VERSION} is on the bus as {}", bus::SERVICE);
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            () = daemon.time_passed() => Some(Message::Event(Event::TimePassed)),
        };
        match message {
            None | Some(Message::Stop) => break,
            Some(message) => daemon.take(message).await,
        }
    }
    // The store goes on as it is.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("sluiced ends; the store goes on as it is");
    Ok(())
}

async fn serve_bus(inbox: &Inbox, shared: &Shared<ControlState>) -> Result<Connection> {
    let (calls, mut called) = mpsc::channel::<Pending>(CALLS);
    let to_inbox = inbox.clone();
    tokio::spawn(async move {
        while let Some(pending) = called.recv().await {
            let _ = to_inbox.send(Message::Called(pending));
        }
    });
    let manager = Manager::new(calls, Shared::clone(shared));
    let built = async {
        let connection = zbus::connection::Builder::system()?
            .serve_at(bus::PATH, zbus::fdo::ObjectManager)?
            .serve_at(bus::PATH, manager)?
            .build()
            .await?;
        // Not in the queue for it, as the builder would be: there is one control plane.
        let flags = RequestNameFlags::DoNotQueue.into();
        connection.request_name_with_flags(bus::SERVICE, flags).await?;
        zbus::Result::Ok(connection)
    };
    let built = built.await;
    Ok(built.map_err(|error| {
        let hint = match &error {
            zbus::Error::NameTaken => "another sluiced runs: systemctl status sluiced",
            _ => "sluiced needs the system bus and the policy file org.sluice.Sluice1.conf",
        };
        Error::new(Kind::Busy, format!("cannot be {} on the system bus", bus::SERVICE))
            .with_hint(hint)
            .with_source(error)
    })?)
}

/// What clients are shown.
fn view(state: &State, settings: &Settings) -> ControlState {
    ControlState { settings: settings.clone(), ..state.view(VERSION) }
}

/// The threshold, where it matters.
fn pressure_wanted(config: &Config) -> Option<u8> {
    config.control.idle_target.map(|_| config.control.memory_pressure)
}

/// What others do with GPUs is looked at once the store has one open.
fn neighbours_wanted(config: &Config) -> Watched {
    let library = config.cuda.as_ref().and_then(|cuda| cuda.library.clone());
    let reserve = config.tier.reserve;
    Watched { reserve, library, store: None, on_battery: false }
}

struct Daemon {
    executor: Executor,
    connection: Connection,
    state: State,
    settings: Settings,
    file: WishesFile,
    shared: Shared<ControlState>,
    inbox: Inbox,
    devices: Devices,
    leases: Leases,
    config_path: PathBuf,
    pressure: watch::Sender<Option<u8>>,
    watched: watch::Sender<Watched>,
    metrics: Option<metrics::Server>,
    origin: Instant,
}

impl Daemon {
    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    /// Ends when the arbiter or a client that waits is to be told.
    async fn time_passed(&self) {
        let woken = self.executor.wake_at.map(|at| self.origin + at);
        match woken.into_iter().chain(self.leases.next()).min() {
            // A moment later, so that it has passed by every clock.
            Some(at) => tokio::time::sleep_until((at + Duration::from_millis(1)).into()).await,
            None => std::future::pending().await,
        }
    }

    async fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => self.tell(&event).await,
            Message::Seen(status) => self.see(status).await,
            Message::Called(Pending { call, answer }) => match call {
                Call::Control(request) => {
                    let _ = answer.send(self.control(request).await);
                }
                Call::Reserve { bytes, deadline_ms } => {
                    let deadline = Duration::from_millis(deadline_ms.into());
                    let begun = self.leases.take(&self.state, bytes, deadline, answer, &self.inbox);
                    if let Some(event) = begun {
                        self.tell(&event).await;
                    }
                }
            },
            Message::Reload => self.reload().await,
            Message::Stop => {}
        }
    }

    async fn see(&mut self, status: Option<Arc<Status>>) {
        let devices = status.as_ref().map_or(&[][..], |status| &status.devices);
        if let Err(error) = self.devices.publish(&self.connection, devices).await {
            tracing::debug!("devices are not shown: {error}");
        }
        let view = status.as_deref().map(store_link::view);
        self.watched.send_modify(|watched| watched.store = status);
        self.tell(&Event::StoreSeen(view)).await;
    }

    async fn control(&mut self, request: ControlRequest) -> crate::engine::error::Result<Answer> {
        let event = match request {
            ControlRequest::Enable => Event::TurnedOn,
            ControlRequest::Disable => Event::TurnedOff,
            ControlRequest::Suspend => Event::Suspended,
            ControlRequest::Resume => Event::Resumed,
            ControlRequest::SetTarget(bytes) => {
                let bytes = bytes.map(crate::engine::units::ByteLen);
                if bytes.is_some() && !self.state.has_spill() {
                    let what = "a target cannot be set: there is no spill that could take pages";
                    return Err(Error::new(Kind::NoSpace, what)
                        .with_hint("configure [spill], or switch the swap off: sluice off"));
                }
                Event::TargetSet(bytes)
            }
            ControlRequest::Explain | ControlRequest::State => {
                return Ok(Answer::Explanation(Box::new(self.state.explain())));
            }
        };
        self.tell(&event).await;
        Ok(Answer::Accepted)
    }

    /// One step: decide, keep, carry out, show.
    async fn tell(&mut self, event: &Event) {
        let (next, actions) = step(&self.state, event, self.now());
        if next.wishes() != self.state.wishes()
            && let Err(error) = self.file.write(next.wishes())
        {
            tracing::error!("what is asked for will be forgotten with this process: {error}");
        }
        self.state = next;
        self.executor.run(actions).await;
        self.leases.answer(&self.state);
        let on_battery = self.state.power().on_battery;
        self.watched.send_if_modified(|watched| {
            std::mem::replace(&mut watched.on_battery, on_battery) != on_battery
        });
        self.show().await;
    }

    async fn show(&mut self) {
        let next = view(&self.state, &self.settings);
        if manager::read(&self.shared).sentence != next.sentence {
            tracing::info!("{}", next.sentence);
            let status = format!("{} ({})", next.sentence, next.progress);
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(&status)]);
        }
        if let Err(error) = manager::publish(&self.connection, &self.shared, next).await {
            tracing::debug!("nobody was told of the new state: {error}");
        }
    }

    /// Where the configuration says so, which may be where they are already.
    fn serve_metrics(&mut self, config: &Config) {
        let wanted = config.metrics.as_ref().map(|metrics| &metrics.listen);
        if wanted == self.metrics.as_ref().map(|server| &server.listen) {
            return;
        }
        let (socket, control) = (self.executor.store_socket(), Shared::clone(&self.shared));
        let source = metrics::Source { socket, control };
        self.metrics = wanted.map(|listen| metrics::Server::start(listen.clone(), source));
    }

    async fn reload(&mut self) {
        match config::load(Path::new("/"), &self.config_path) {
            Ok(config) => {
                tracing::info!("{} is read anew", self.config_path.display());
                self.pressure.send_replace(pressure_wanted(&config));
                let Watched { reserve, library, .. } = neighbours_wanted(&config);
                self.watched
                    .send_modify(|watched| (watched.reserve, watched.library) = (reserve, library));
                self.serve_metrics(&config);
                let level = self.settings.remove(CONTROL_AT_START);
                self.settings = config::in_force::of_control(&config);
                // It is set once, at the start.
                self.settings.extend(level.map(|level| (CONTROL_AT_START.to_owned(), level)));
                self.tell(&Event::PolicyChanged(settings::policy(&config))).await;
            }
            Err(error) => {
                tracing::error!("the configuration stays as it was: {error}");
                let path = self.config_path.display();
                let reason = format!("{path} is refused; the one before stays in force");
                self.executor.notify(&Notice::ConfigRefused { reason }).await;
            }
        }
    }
}
