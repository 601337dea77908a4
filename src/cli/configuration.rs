// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice config`: check or show the file.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;

use super::args::{ConfigCommand, ConfigPlace};
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

/// What the file amounts to, in one sentence.
fn summary(config: &Config) -> String {
    let swap = &config.swap;
    let mut text = format!("{} of swap", swap.size);
    let sizes = swap.device_sizes();
    if sizes.len() > 1 {
        let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
        let each =
            if first == last { first.to_string() } else { format!("{first} down to {last}") };
        let _ = write!(text, " on {} devices of {each}", sizes.len());
    }
    let _ = write!(text, ", {} of it in the {} tier", config.tier.size, config.tier.kind.name());
    if let Some(spill) = &config.spill {
        let rest = ByteLen(swap.size.0 - config.tier.size.0);
        let _ = write!(text, ", {rest} only in {}", spill.path.display());
    }
    text
}
