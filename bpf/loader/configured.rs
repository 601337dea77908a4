// SPDX-License-Identifier: GPL-2.0-only
//! `[policies]` of the configuration, and by which means each policy of it is in force.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use sluice::config::Policies;
use sluice::driver::{Facts, Running, means};

use crate::failure::Failure;
use crate::netlink::Connection;
use crate::render::print;

/// The section, if the file has it.
pub fn read(config: &Path) -> Result<Option<Policies>> {
    sluice::config::load_policies(Path::new("/"), config).map_err(|error| {
        Failure::new(error.to_string(), "docs/reference/configuration.md describes [policies]")
            .into()
    })
}

/// `show` without a name.
pub fn show(config: &Path, as_json: bool) -> Result<()> {
    let policies = read(config)?;
    let facts = Facts::read(Path::new("/"));
    let standings = match &policies {
        Some(policies) => means::standings(policies, &facts, &running(&facts)?),
        None => Vec::new(),
    };
    if as_json {
        return print(&format!("{}\n", serde_json::to_string(&standings)?));
    }
    let mut text = String::new();
    for standing in &standings {
        writeln!(text, "{standing}")?;
    }
    if standings.is_empty() {
        text.push_str("no policies are configured\n");
    }
    print(&text)
}

/// What the module says; nothing if it is not loaded.
fn running(facts: &Facts) -> Result<Running> {
    if facts.module("sluice_gpu").is_none() {
        return Ok(Running::default());
    }
    let mut connection = Connection::open()?;
    let managers = connection.module()?.managers.into_iter().map(|(_, name)| name).collect();
    let attached = connection.policies()?;
    let attached = attached.into_iter().map(|policy| (policy.name, policy.bypass != 0));
    Ok(Running { managers, attached: attached.collect() })
}
