// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice-tray`: the switch in a desktop's tray.
//!
//! One thread, one inbox: the bus of the machine ([`service`]), the bus of the
//! session ([`session`]) and clicks ([`item`]) fill it. What is shown of what is
//! known is decided in [`view`], what is said in [`notices`]; both are pure.
//!
//! It keeps nothing: whatever it asked for is either sluiced's own (on, off) or ends
//! with this process (the lease, [`lease`]).
#![forbid(unsafe_code)]

mod item;
mod lease;
mod notices;
mod service;
mod session;
mod view;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::bus::client::Client;
use crate::engine::arbiter::Explanation;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::view::{ControlReply, ControlRequest, ControlState};

use lease::Taken;
use notices::{Message, Throttle};
use view::{Click, Lease, Seen};

/// How long the tray's host may be away before a lease that nobody can see or end
/// any more is given up: a panel that is started anew takes a few seconds.
const HOST_AWAY: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);

/// Something happened.
enum Event {
    /// The control plane was looked at: its state, and its swap in use and in all.
    Seen(Option<Box<ControlState>>, Option<(u64, u64)>),
    /// It told everybody something.
    Notice { urgent: bool, text: String },
    /// Somebody clicked.
    Clicked(Click),
    /// What the click asked for was refused.
    Refused(Click, Error),
    /// It was explained.
    Explained(Box<Explanation>),
    /// A lease, by its number, is held until then, or over.
    Leased(u64, Option<Instant>),
    /// A host of trays came or went.
    Host { here: bool },
    /// The session is over, or the machine's bus was lost.
    Over(Result<()>),
}

type Inbox = mpsc::UnboundedSender<Event>;

/// Runs until the session ends or somebody quits. `span` is what the menu offers the
/// GPU for.
///
/// Errors: `Missing` without a session bus.
pub fn run(span: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Error::new(Kind::Io, "cannot wait for the bus").with_source(error))?;
    runtime.block_on(serve(span))
}

async fn serve(span: Duration) -> Result<()> {
    let (inbox, mut events) = mpsc::unbounded_channel();
    let Some(session) = session::join(&inbox).await? else {
        eprintln!("sluice-tray: it runs in this session already");
        return Ok(());
    };
    let client = service::follow(&inbox).await?;
    let offered_minutes = span.as_secs().div_ceil(60);
    let seen = Seen { offered_minutes, ..Seen::default() };
    let (show, shown) = watch::channel(view::picture(&seen));
    let (speak, heard) = mpsc::unbounded_channel();
    tokio::spawn(session::speak(session.clone(), heard));
    tokio::spawn(item::keep(session, shown, inbox.clone()));
    let mut tray = Tray {
        seen,
        span,
        client,
        taken: None,
        leases: 0,
        host_gone: None,
        throttle: Throttle::default(),
        origin: Instant::now(),
        speak,
        inbox,
    };
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = sleep_until(tray.next()) => None,
        };
        match event {
            Some(Event::Over(how)) => return how,
            Some(Event::Clicked(Click::Quit)) => return Ok(()),
            Some(event) => tray.take(event),
            None => {}
        }
        tray.look_at_the_clock();
        show.send_if_modified(|before| {
            let picture = view::picture(&tray.seen);
            let is_other = picture != *before;
            *before = picture;
            is_other
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Tray {
    seen: Seen,
    span: Duration,
    client: Arc<Client>,
    taken: Option<Taken>,
    leases: u64,
    /// Since when no host shows the tray.
    host_gone: Option<Instant>,
    throttle: Throttle,
    origin: Instant,
    speak: mpsc::UnboundedSender<Message>,
    inbox: Inbox,
}

impl Tray {
    fn take(&mut self, event: Event) {
        match event {
            Event::Seen(state, swap) => (self.seen.state, self.seen.swap) = (state, swap),
            Event::Notice { urgent, text } => self.say(notices::of_notice(urgent, &text)),
            Event::Clicked(click) => self.click(click),
            Event::Refused(click, error) => self.say(notices::of_error(click, &error)),
            Event::Explained(said) => self.say(notices::of_explanation(&said)),
            Event::Leased(number, until) => {
                let ours = self.taken.as_mut().filter(|taken| taken.number == number);
                match (ours, until) {
                    (Some(taken), Some(until)) => taken.until = Some(until),
                    (Some(_), None) => self.taken = None,
                    // One that was given up meanwhile.
                    (None, _) => {}
                }
            }
            Event::Host { here } => self.host_gone = (!here).then(Instant::now),
            Event::Over(_) => {}
        }
    }

    fn say(&mut self, message: Message) {
        if let Some(message) = self.throttle.pass(self.origin.elapsed(), message) {
            let _ = self.speak.send(message);
        }
    }

    fn click(&mut self, click: Click) {
        let request = match click {
            Click::Enable => ControlRequest::Enable,
            Click::Disable => ControlRequest::Disable,
            Click::Why => ControlRequest::Explain,
            Click::LendAgain => {
                self.taken = None;
                if !self.seen.state.as_ref().is_some_and(|state| state.suspended) {
                    return;
                }
                ControlRequest::Resume
            }
            Click::TakeGpu => return self.take_gpu(),
            Click::Quit => return,
        };
        let (client, inbox) = (Arc::clone(&self.client), self.inbox.clone());
        // A person may be asked for a password meanwhile.
        tokio::spawn(async move {
            let _ = match client.ask(&request).await {
                Ok(ControlReply::Explanation(said)) => inbox.send(Event::Explained(said)),
                Ok(_) => return,
                Err(error) => inbox.send(Event::Refused(click, error)),
            };
        });
    }

    fn take_gpu(&mut self) {
        let Some(state) = &self.seen.state else { return };
        let bytes = state.full_bytes.saturating_sub(state.leased_bytes);
        // A menu may be older than what is known by now.
        if bytes == 0 || self.taken.is_some() {
            return;
        }
        self.leases += 1;
        let (client, inbox) = (Arc::clone(&self.client), self.inbox.clone());
        self.taken = Some(Taken::begin(self.leases, client, bytes, self.span, inbox));
    }

    /// When the clock alone changes something.
    fn next(&self) -> Option<Instant> {
        let taken = self.taken.as_ref()?;
        let given_up = self.host_gone.map(|since| since + HOST_AWAY);
        let minute = taken.until.and_then(|until| {
            let left = minutes_left(until).saturating_sub(1);
            until.checked_sub(MINUTE * u32::try_from(left).ok()?)
        });
        // What has passed changes nothing any more: the lease ends by itself.
        let minute = minute.filter(|at| *at > Instant::now());
        given_up.into_iter().chain(minute).min()
    }

    fn look_at_the_clock(&mut self) {
        if self.host_gone.is_some_and(|since| since.elapsed() >= HOST_AWAY) {
            self.taken = None;
        }
        self.seen.lease = match self.taken.as_ref().map(|taken| taken.until) {
            None => Lease::None,
            Some(None) => Lease::Asked,
            Some(Some(until)) => Lease::Held { minutes_left: minutes_left(until) },
        };
    }
}

/// Whole minutes, rounded up.
fn minutes_left(until: Instant) -> u64 {
    until.saturating_duration_since(Instant::now()).as_secs().div_ceil(60)
}
