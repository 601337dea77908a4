// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice config`: check or show the file.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;

use super::args::{ConfigCommand, ConfigPlace};
use crate::config::schema::spelled;
use crate::config::{self, Config};
use crate::engine::gpu::GpuSelector;
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
    if let Some(least) = swap.min_size {
        let _ = write!(text, " or as much as there is room for, at least {}", spelled(least));
    }
    let sizes = swap.device_sizes(swap.size);
    if let [first, .., last] = &sizes[..] {
        let _ = write!(text, " on {} devices of {}", sizes.len(), spelled(*first));
        if first != last {
            let _ = write!(text, " or {}", spelled(*last));
        }
    }
    let kind = config.tier.kind.name();
    let _ = write!(text, ", {} of it in the {kind} tier", spelled(config.tier.size));
    let vulkan = config.vulkan.as_ref().map(|vulkan| gpus(&vulkan.devices));
    let cuda = config.cuda.as_ref().map(|cuda| gpus(&cuda.devices));
    if let (Some(vulkan), Some(cuda)) = (&vulkan, &cuda) {
        let _ = write!(text, " on {vulkan} by Vulkan, or on {cuda} by CUDA");
    } else if let Some(gpus) = vulkan.or(cuda) {
        let _ = write!(text, " on {gpus}");
    }
    if let Some(spill) = &config.spill {
        let rest = ByteLen(swap.size.0 - config.tier.size.0);
        let _ = write!(text, ", {} only in {}", spelled(rest), spill.path.display());
    }
    text
}

fn gpus(devices: &[GpuSelector]) -> String {
    let named = |gpu: &GpuSelector| match gpu {
        GpuSelector::Index(number) => format!("GPU {number}"),
        other => other.to_string(),
    };
    if devices.is_empty() {
        return "the first GPU with memory of its own".to_owned();
    }
    devices.iter().map(named).collect::<Vec<_>>().join(", then ")
}
