// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice serve`.

use anyhow::{Result, bail};

use crate::config::ServeOptions;

/// Serves one export until told to stop.
pub fn run(options: &ServeOptions) -> Result<()> {
    bail!("serving {} is not built in this version", options.socket.display())
}
