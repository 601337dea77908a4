// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `sluice status` says of a configuration file that is not in force, or not in
//! full: each key with both values, and what makes the file's take effect.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::Ways;
use crate::config::in_force::{self, Change, Effect};
use crate::config::{self, ConfigError};
use crate::engine::error::Kind;
use crate::engine::view::Status;

/// The version of the programs that are installed now.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is configured and not in force.
#[derive(Debug, Serialize)]
pub(super) struct Pending {
    /// The file.
    file: String,
    /// Whether `sluiced` runs, and its part is compared too.
    sluiced: bool,
    /// Why it cannot be told in full; empty: it can.
    problems: Vec<String>,
    /// What differs, by what makes it take effect.
    changes: Vec<Told>,
}

/// A change, with its next step in words.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(flatten)]
    change: Change,
    /// What a person does to have the configured value take effect.
    after: &'static str,
}

impl Pending {
    /// Compares the file with what a store and `sluiced` go by; `None` for a store
    /// that has no file, or is too old to say.
    pub(super) fn find(status: &Status, ways: &Ways) -> Option<Self> {
        let running = status.configuration.as_ref()?;
        let mut problems = Vec::new();
        let control = match (ways.settings)() {
            Ok(settings) => Some(settings),
            Err(error) if error.kind() == Kind::Missing => None,
            Err(error) => {
                problems.push(format!("what sluiced goes by is not known: {error}"));
                None
            }
        };
        let mut changes = Vec::new();
        if status.version != VERSION {
            changes.push(Change {
                key: "version".to_owned(),
                running: Some(status.version.clone()),
                configured: Some(VERSION.to_owned()),
                effect: Effect::StoreReload,
            });
        }
        match config::load(Path::new("/"), Path::new(&running.file)) {
            Ok(file) => {
                changes.extend(in_force::pending(&running.settings, control.as_ref(), &file));
            }
            Err(error) => problems.push(refused(&error)),
        }
        let told = |change: Change| Told { after: change.effect.by(), change };
        Some(Self {
            file: running.file.clone(),
            sluiced: control.is_some(),
            problems,
            changes: changes.into_iter().map(told).collect(),
        })
    }

    /// The part of the report for a person.
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let Self { file, problems, changes, .. } = self;
        if problems.is_empty() && changes.is_empty() {
            let rest = if self.sluiced { "" } else { "; sluiced does not run" };
            return writeln!(out, "config   {file} is in force{rest}");
        }
        writeln!(out, "config   {file} IS NOT IN FORCE in full")?;
        for problem in problems {
            writeln!(out, "         {problem}")?;
        }
        let width = changes.iter().map(|told| told.change.key.len()).max().unwrap_or_default();
        let mut after = None;
        for Told { change, .. } in changes {
            if after != Some(change.effect) {
                after = Some(change.effect);
                writeln!(out, "         takes effect after {}:", change.effect.by())?;
            }
            let [now, then] = [&change.running, &change.configured]
                .map(|value| value.as_deref().unwrap_or("not set"));
            writeln!(out, "           {:width$}  {now} now, then {then}", change.key)?;
        }
        Ok(())
    }
}

/// What is wrong with the file, in a line, and the next step.
fn refused(error: &ConfigError) -> String {
    let said = error.to_string();
    let first = said.lines().next().unwrap_or_default();
    match error {
        ConfigError::Unreadable { .. } => {
            format!("{first}; what was in force stays, and nothing starts without it")
        }
        ConfigError::Invalid { path, problems, .. } => {
            let more = match problems.len() {
                0 | 1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let path = path.display();
            format!("{first}{more}; what was in force stays. next: sluice config check {path}")
        }
    }
}
