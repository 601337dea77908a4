// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice top`: a store looked at again and again, what it did between two
//! looks, and how both are shown: as [`draw`] lays them out, or as JSON. The
//! terminal itself is the business of `runtime`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use super::args::TopArgs;
use super::{Ways, control, status};
use crate::engine::error::Error;
use crate::engine::view::rates::Rates;
use crate::engine::view::{ControlState, Status};

pub mod draw;

/// What one look found.
pub struct Look {
    at: Instant,
    store: Result<Box<Status>, Error>,
    control: Result<ControlState, Error>,
}

impl Look {
    /// Looks at both; takes as long as they take to answer.
    #[must_use]
    pub fn new(socket: &Path, ways: &Ways) -> Self {
        let store = status::look(socket, ways.ask);
        let at = Instant::now();
        Self { at, store, control: control::state(ways) }
    }
}

/// What is to be shown.
#[derive(Debug)]
pub struct Seen {
    /// The store, or why it could not be looked at.
    pub store: Result<Box<Status>, Error>,
    /// What it did since the look before; `None`: there is no such look.
    pub rates: Option<Rates>,
    /// The control plane, or why it could not be looked at.
    pub control: Result<ControlState, Error>,
}

impl Seen {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "store": self.store.as_ref().ok(),
            "rates": self.rates,
            "control": self.control.as_ref().ok(),
        })
    }
}

/// Remembers the store of the last look.
#[derive(Default)]
pub struct Watch {
    last: Option<(Instant, Box<Status>)>,
}

impl Watch {
    /// What is new.
    pub fn see(&mut self, look: Look) -> Seen {
        let Look { at, store, control } = look;
        let rates = match (&self.last, &store) {
            (Some((before, last)), Ok(now)) => {
                Some(Rates::between(last, now, at.duration_since(*before)))
            }
            _ => None,
        };
        self.last = store.as_ref().ok().map(|status| (at, status.clone()));
        Seen { store, rates, control }
    }
}

/// The first look: where no store answers there is nothing to wait for.
pub fn begin(args: &TopArgs, ways: &Ways) -> Result<(Watch, Seen)> {
    let mut watch = Watch::default();
    let seen = watch.see(Look::new(&args.socket, ways));
    match seen.store {
        Err(error) => Err(error.into()),
        Ok(_) => Ok((watch, seen)),
    }
}

/// Prints a block or an object after each interval.
pub fn print(args: &TopArgs, ways: &Ways) -> Result<ExitCode> {
    let (mut watch, _) = begin(args, ways)?;
    for n in 0.. {
        if args.count == Some(n) {
            break;
        }
        std::thread::sleep(args.interval);
        let seen = watch.see(Look::new(&args.socket, ways));
        let text = if args.json {
            format!("{}\n", seen.json())
        } else {
            let gap = if n > 0 { "\n" } else { "" };
            format!("{gap}{}", draw::block(&seen))
        };
        super::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
