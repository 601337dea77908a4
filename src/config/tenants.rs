// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[tenants.NAME]`: units of systemd that use the GPU, and how much of its memory
//! must be theirs when they start. The store and `sluiced` read past it: the lease of
//! each is taken by `sluice tenant hold`, which the unit waits for.

use std::collections::BTreeMap;

use serde::Serialize;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::schema::as_text;
use super::table::Section;
use crate::engine::units::ByteLen;

/// One of `[tenants.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tenant {
    /// The service that uses the GPU, `ollama.service`.
    pub unit: String,
    /// What of the GPU's memory is its own.
    pub memory: Memory,
    /// How long its start may wait for that, in seconds.
    pub within_s: u32,
}

/// `memory` of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The floor: what the store leaves to it while it runs.
    #[serde(serialize_with = "as_text")]
    pub min: ByteLen,
}

/// The longest name: it is part of a unit's name.
const MAX_NAME: usize = 32;
/// The longest name of a unit that systemd takes.
const MAX_UNIT: usize = 255;

/// The tenants of the file `root`.
pub(super) fn tenants(
    root: &DeTable<'_>,
    text: &str,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, Tenant> {
    let section = Section::find(root, text, "tenants", problems);
    let mut all = BTreeMap::<String, Tenant>::new();
    if section.is_present() && !root.contains_key("spill") {
        let why = "there is no spill that could take pages when a tenant starts; add [spill] \
                   with a path, or leave the tenants out";
        problems.push(section.problem_with_itself(root, why));
    }
    for (full, table) in section.tables(problems) {
        let name = full.value.trim_start_matches("tenants.");
        if !is_name(name) {
            problems.push(Problem {
                span: full.span.clone(),
                message: format!(
                    "[{}]: not a tenant's name; write 1 to {MAX_NAME} small letters, digits or \
                     -, with a letter first",
                    full.value
                ),
            });
        }
        let tenant = tenant(&full.value, text, table, &all, problems);
        all.extend(tenant.map(|tenant| (name.to_owned(), tenant)));
    }
    all
}

fn tenant(
    full: &str,
    text: &str,
    table: &DeTable<'_>,
    others: &BTreeMap<String, Tenant>,
    problems: &mut Vec<Problem>,
) -> Option<Tenant> {
    let section = Section::of(full, text, table);
    section.refuse_others(&["unit", "memory", "within_s"], problems);
    let before = problems.len();
    let unit = section.take("unit", problems, |value| {
        let unit = value.as_str().filter(|unit| is_service(unit)).ok_or(
            "write the name of a service in quotes, not of a template, e.g. \"ollama.service\"",
        )?;
        match others.iter().find(|(_, other)| other.unit == unit) {
            Some((other, _)) => Err(format!("is the unit of tenants.{other}; name each unit once")),
            None => Ok(unit.to_owned()),
        }
    });
    if unit.is_none() && problems.len() == before {
        let why = "missing; name the service that uses the GPU, e.g. unit = \"ollama.service\"";
        problems.push(section.problem("unit", None, why));
    }
    let before = problems.len();
    let min = memory(&section, full, text, problems);
    if min.is_none() && problems.len() == before {
        let why = "missing; say how much GPU memory must be its own, e.g. memory.min = \"20G\"";
        problems.push(section.problem("memory.min", None, why));
    }
    let within_s = section.integer("within_s", 1..=3600_u32, problems).unwrap_or(120);
    Some(Tenant { unit: unit?.value, memory: Memory { min: min? }, within_s })
}

fn memory(
    section: &Section<'_, '_>,
    full: &str,
    text: &str,
    problems: &mut Vec<Problem>,
) -> Option<ByteLen> {
    let table = section.take("memory", problems, |value: &DeValue<'_>| {
        value.as_table().cloned().ok_or_else(|| "write memory.min = \"20G\"".to_owned())
    })?;
    let name = format!("{full}.memory");
    let inner = Section::of(&name, text, &table.value);
    inner.refuse_others(&["min"], problems);
    let min = inner.size("min", problems)?;
    if min.value.0 == 0 {
        problems.push(inner.problem("min", min.span, "nothing to keep; leave the tenant out"));
        return None;
    }
    Some(min.value)
}

fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && name.bytes().all(valid)
}

/// Whether systemd would take it as the name of a service that can be started.
fn is_service(unit: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    unit.len() <= MAX_UNIT
        && unit
            .strip_suffix(".service")
            .is_some_and(|stem| !stem.is_empty() && !stem.ends_with('@') && !stem.starts_with('.'))
        && unit.bytes().all(valid)
}
