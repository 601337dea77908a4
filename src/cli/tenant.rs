// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice tenant`: the floors of GPU memory that services have, and the lease that
//! keeps one.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::process::{Command as Program, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::control::{self, Ways};
use super::control_args::{TenantCommand, TenantPlace};
use super::reserve;
use crate::config::tenants::Tenant;
use crate::config::{self, Config};
use crate::engine::error::{Error, Kind};
use crate::engine::units::ByteLen;

/// The unit that takes a tenant's lease.
fn reserve_unit(name: &str) -> String {
    format!("sluice-reserve@{name}.service")
}

pub(super) fn run(command: &TenantCommand, ways: &Ways) -> Result<ExitCode> {
    match command {
        TenantCommand::List { place, json } => list(&load(place)?, *json),
        TenantCommand::Unit { name, place } => {
            let config = load(place)?;
            super::print(&drop_in(name, of(&config, name)?))?;
            Ok(ExitCode::SUCCESS)
        }
        TenantCommand::Hold { name, place } => {
            let config = load(place)?;
            match hold(name, of(&config, name)?, ways) {
                Ok(never) => match never {},
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn load(place: &TenantPlace) -> Result<Config> {
    Ok(config::load("/".as_ref(), &place.config)?)
}

fn of<'c>(config: &'c Config, name: &str) -> Result<&'c Tenant, Error> {
    config.tenants.get(name).ok_or_else(|| {
        let names: Vec<&str> = config.tenants.keys().map(String::as_str).collect();
        let there = match names[..] {
            [] => "none is declared".to_owned(),
            _ => format!("there are {}", names.join(", ")),
        };
        Error::new(Kind::Invalid, format!("no tenant is called {name}; {there}"))
            .with_hint(format!("declare it: [tenants.{name}] in the configuration file"))
    })
}

/// What has a tenant's unit start only once its floor is free, and the lease taken again
/// if who holds it dies. Not by `Restart=` there: that restarts who requires it, too.
fn drop_in(name: &str, tenant: &Tenant) -> String {
    let reserve = reserve_unit(name);
    format!(
        "# For {}, by: sluice tenant unit {name}\n[Unit]\nRequires={reserve}\nAfter={reserve}\n\
         Upholds={reserve}\n",
        tenant.unit
    )
}

/// Takes the tenant's lease and keeps it until this process ends.
///
/// Errors: what the lease is refused for; nothing is held then.
fn hold(name: &str, tenant: &Tenant, ways: &Ways) -> Result<Infallible, Error> {
    let floor = tenant.memory.min;
    let state = control::state(ways)?;
    let bytes = floor.0.min(state.full_bytes.saturating_sub(state.leased_bytes));
    let within = Duration::from_secs(tenant.within_s.into());
    let lease = (ways.reserve)(bytes, within)?;
    let beside = ByteLen(floor.0 - bytes);
    let mut said = format!("{name}: the store leaves {} to {}", ByteLen(bytes), tenant.unit);
    if beside.0 > 0 {
        let _ = write!(said, "; {beside} more of its floor are not the store's to give");
    }
    eprintln!("sluice: {said}");
    (ways.ready)(&said);
    reserve::keep(lease, bytes, within, ways.reserve)
}

/// A tenant as it stands.
#[derive(Debug, Serialize)]
struct Row<'c> {
    name: &'c str,
    unit: &'c str,
    floor_bytes: u64,
    /// What of the floor the store gives back, if nobody else has it.
    from_store_bytes: u64,
    /// What of the floor must be free beside what the store may hold.
    beside_bytes: u64,
    /// Whether the unit waits for its floor; null: systemd does not say.
    waits: Option<bool>,
    /// Whether its lease is held; null: systemd does not say.
    held: Option<bool>,
}

fn list(config: &Config, json: bool) -> Result<ExitCode> {
    let rows: Vec<Row<'_>> = config
        .tenants
        .iter()
        .map(|(name, tenant)| {
            let floor = tenant.memory.min.0;
            let from_store = floor.min(config.tier.size.0);
            let reserve = reserve_unit(name);
            Row {
                name,
                unit: &tenant.unit,
                floor_bytes: floor,
                from_store_bytes: from_store,
                beside_bytes: floor - from_store,
                waits: property("Requires", &tenant.unit)
                    .zip(property("After", &tenant.unit))
                    .map(|both| [both.0, both.1].iter().all(|units| has(units, &reserve))),
                held: property("ActiveState", &reserve).map(|state| state == "active"),
            }
        })
        .collect();
    let text = if json {
        serde_json::to_string_pretty(&rows)? + "\n"
    } else {
        render(&rows, config.tier.size)
    };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A property of a unit; `None`: there is no systemd that answers.
fn property(name: &str, unit: &str) -> Option<String> {
    let asked = Program::new("systemctl")
        .args(["show", "--value", "--property", name, "--", unit])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).trim().to_owned())
}

fn has(units: &str, unit: &str) -> bool {
    units.split_whitespace().any(|one| one == unit)
}

fn render(rows: &[Row<'_>], tier_size: ByteLen) -> String {
    if rows.is_empty() {
        return "no tenants: [tenants.NAME] in the configuration file declares one\n".to_owned();
    }
    let mut table = vec![["TENANT", "UNIT", "FLOOR", "WAITS", "HELD"].map(str::to_owned)];
    table.extend(rows.iter().map(|row| {
        let floor = ByteLen(row.floor_bytes).to_string();
        [row.name.into(), row.unit.into(), floor, answer(row.waits), answer(row.held)]
    }));
    let widths: Vec<usize> = (0..5)
        .map(|column| table.iter().map(|row| row[column].len()).max().unwrap_or_default())
        .collect();
    let mut out = String::new();
    for row in &table {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    let floors: u64 = rows.iter().map(|row| row.floor_bytes).fold(0, u64::saturating_add);
    let beside = floors.saturating_sub(tier_size.0);
    let _ = write!(out, "\nAll at once: {}; the store may hold {tier_size}", ByteLen(floors));
    let _ = match beside {
        0 => writeln!(out, ", and gives it back."),
        _ => writeln!(out, ", so {} must be free beside it.", ByteLen(beside)),
    };
    for row in rows.iter().filter(|row| row.waits == Some(false)) {
        let (unit, name) = (row.unit, row.name);
        let _ = writeln!(
            out,
            "\n{unit} does not wait for its floor; as root:\n  mkdir -p /etc/systemd/system/{unit}.d\n  \
             sluice tenant unit {name} >/etc/systemd/system/{unit}.d/50-sluice.conf\n  \
             systemctl daemon-reload"
        );
    }
    out
}

fn answer(said: Option<bool>) -> String {
    match said {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(floor: u64, waits: Option<bool>, held: Option<bool>) -> Row<'static> {
        Row {
            name: "llm",
            unit: "llm.service",
            floor_bytes: floor << 30,
            from_store_bytes: 0,
            beside_bytes: 0,
            waits,
            held,
        }
    }

    #[test]
    fn the_sum_says_what_the_store_cannot_give() {
        let rows = [row(20, Some(true), Some(false)), row(4, None, None)];
        let text = render(&rows, ByteLen(16 << 30));
        assert!(
            text.contains("All at once: 24 GiB; the store may hold 16 GiB, so 8 GiB"),
            "{text}"
        );
        let text = render(&rows, ByteLen(24 << 30));
        assert!(text.contains("and gives it back"), "{text}");
    }

    #[test]
    fn a_unit_that_does_not_wait_comes_with_what_makes_it_wait() {
        let text = render(&[row(1, Some(false), Some(false))], ByteLen(1 << 30));
        assert!(
            text.contains("sluice tenant unit llm >/etc/systemd/system/llm.service.d/"),
            "{text}"
        );
        for waits in [Some(true), None] {
            let text = render(&[row(1, waits, None)], ByteLen(1 << 30));
            assert!(!text.contains("does not wait"), "{text}");
        }
    }

    #[test]
    fn a_unit_is_found_by_its_whole_name() {
        assert!(has("a.service sluice-reserve@llm.service", "sluice-reserve@llm.service"));
        assert!(!has("sluice-reserve@llm.service.d", "sluice-reserve@llm.service"));
    }
}
