// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice config`: check or show the file.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;

use super::args::{ConfigCommand, ConfigPlace};
use crate::config::schema::spelled;
use crate::config::{self, Config};
use crate::engine::units::ByteLen;

pub(super) fn run(command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { place } => {
            let config = load(place)?;
            super::print(&format!("{}: right; {}\n", place.file.display(), summary(&config)))?;
        }
        ConfigCommand::Show { place, json } => {
            let config = load(place)?;
            let mut text = if *json {
                serde_json::to_string_pretty(&config)?
            } else {
                toml::to_string(&config)?
            };
            if !text.ends_with('\n') {
                text.push('\n');
            }
            super::print(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn load(place: &ConfigPlace) -> Result<Config> {
    Ok(config::load(&place.root, &place.file)?)
}

/// What the file amounts to, in one sentence, with exact sizes.
fn summary(config: &Config) -> String {
    let swap = &config.swap;
    let mut text = format!("{} of swap", spelled(swap.size));
    let sizes = swap.device_sizes();
    if let [first, .., last] = &sizes[..] {
        let _ = write!(text, " on {} devices of {}", sizes.len(), spelled(*first));
        if first != last {
            let _ = write!(text, " or {}", spelled(*last));
        }
    }
    let kind = config.tier.kind.name();
    let _ = write!(text, ", {} of it in the {kind} tier", spelled(config.tier.size));
    if let Some(spill) = &config.spill {
        let rest = ByteLen(swap.size.0 - config.tier.size.0);
        let _ = write!(text, ", {} only in {}", spelled(rest), spill.path.display());
    }
    text
}
