// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: from a file's text to a [`Config`], or everything that is wrong with it.

use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::schema::{Config, Log, LogLevel, Nbd, Spill, Swap, Tier, TierKind, spelled};
use super::table::{Placed, Section, unknown};
use crate::engine::units::{ByteLen, EXTENT_BYTES, SLAB_BYTES};

/// The smallest swap, one slab.
pub const MIN_SWAP: ByteLen = ByteLen(SLAB_BYTES as u64);
/// The largest swap. The swap header counts pages in 32 bits, which ends at
/// 16 TiB; half of that is still beyond any machine's GPU and spill together.
pub const MAX_SWAP: ByteLen = ByteLen(8 << 40);
/// The most devices that share one swap size.
pub const MAX_DEVICES: u32 = 16;
/// The highest nbd index: the kernel has 20 bits of minor numbers.
const MAX_NBD_INDEX: u32 = (1 << 20) - 1;
const DAY_S: u64 = 86_400;

const SECTIONS: [&str; 5] = ["swap", "tier", "spill", "nbd", "log"];

/// Checks a file's text. The problems come in the file's order, those about
/// what is missing last.
pub fn check(text: &str) -> Result<Config, Vec<Problem>> {
    let (root, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // What follows a syntax error is guesswork: report only the syntax.
        return Err(syntax
            .iter()
            .map(|error| Problem {
                span: error.span(),
                message: format!("not TOML: {}", error.message().replace('\n', "; ")),
            })
            .collect());
    }
    let root = root.get_ref();
    let mut problems = Vec::new();
    for key in root.keys() {
        let name = key.get_ref().as_ref();
        if !SECTIONS.contains(&name) {
            problems.push(Problem {
                span: Some(key.span()),
                message: unknown("section", name, name, &SECTIONS, |nearest| {
                    format!("[{nearest}]")
                }),
            });
        }
    }
    let swap = swap(root, text, &mut problems);
    let spill = spill(root, text, &mut problems);
    let tier = tier(root, text, swap.as_ref(), &mut problems);
    let nbd = nbd(root, text, swap.as_ref().map_or(1, |swap| swap.devices), &mut problems);
    let log = log(root, text, &mut problems);
    problems.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |span| span.start));
    match (swap, tier) {
        (Some(swap), Some(tier)) if problems.is_empty() => {
            Ok(Config { swap, tier, spill, nbd, log })
        }
        _ => Err(problems),
    }
}

/// Whether `size` is a swap size, else what would be.
pub fn swap_size(size: ByteLen) -> Result<ByteLen, String> {
    let unit = EXTENT_BYTES as u64;
    if size < MIN_SWAP {
        return Err(format!("too small; the least is \"{}\"", spelled(MIN_SWAP)));
    }
    if size > MAX_SWAP {
        return Err(format!("too large; the most is \"{}\"", spelled(MAX_SWAP)));
    }
    if !size.0.is_multiple_of(unit) {
        let down = ByteLen(size.0 / unit * unit);
        return Err(format!(
            "not a multiple of 2 MiB; the nearest are \"{}\" and \"{}\"",
            spelled(down),
            spelled(ByteLen(down.0 + unit))
        ));
    }
    Ok(size)
}

fn swap(root: &DeTable<'_>, text: &str, problems: &mut Vec<Problem>) -> Option<Swap> {
    let section = Section::find(root, text, "swap", problems);
    section.refuse_others(
        &["size", "priority", "discard", "devices", "swapon", "checksums"],
        problems,
    );
    let before = problems.len();
    let size = section.size("size", problems).and_then(|placed| match swap_size(placed.value) {
        Ok(size) => Some(size),
        Err(why) => {
            problems.push(section.problem("size", placed.span, &why));
            None
        }
    });
    if size.is_none() && problems.len() == before && !section.is_value() {
        problems.push(section.problem(
            "size",
            None,
            "missing; say how much swap to offer, e.g. size = \"8G\" under [swap]",
        ));
    }
    let priority = section.integer("priority", -1..=32_767_i32, problems).unwrap_or(1500);
    let devices = section.integer("devices", 1..=MAX_DEVICES, problems).unwrap_or(1);
    let discard = section.boolean("discard", true, problems);
    let swapon = section.boolean("swapon", true, problems);
    let checksums = section.boolean("checksums", true, problems);
    Some(Swap { size: size?, priority, discard, devices, swapon, checksums })
}

fn tier(
    root: &DeTable<'_>,
    text: &str,
    swap: Option<&Swap>,
    problems: &mut Vec<Problem>,
) -> Option<Tier> {
    let section = Section::find(root, text, "tier", problems);
    section.refuse_others(&["kind", "size", "reserve"], problems);
    let before = problems.len();
    let kind = section.choice("kind", &TierKind::ALL.map(TierKind::name), problems);
    let misspelt = problems.len() > before;
    let kind = kind.map_or(Placed { value: TierKind::Auto, span: None }, |placed| Placed {
        value: TierKind::ALL[placed.value],
        span: placed.span,
    });
    if !misspelt && !kind.value.is_built() {
        let why = if kind.span.is_some() {
            "not built in this version; it has \"ram\""
        } else {
            "the default, \"auto\", is not built in this version; write kind = \"ram\" under [tier]"
        };
        problems.push(section.problem("kind", kind.span, why));
    }
    let reserve = section.size("reserve", problems).map_or(ByteLen(0), |placed| placed.value);
    let size = section.size("size", problems);
    let swap = swap?;
    let size = match size {
        None => swap.size,
        Some(placed) => {
            if let Err(why) = tier_size(placed.value, swap.size, root.contains_key("spill")) {
                problems.push(section.problem("size", placed.span, &why));
            }
            placed.value
        }
    };
    Some(Tier { kind: kind.value, size, reserve })
}

fn tier_size(size: ByteLen, swap: ByteLen, has_spill: bool) -> Result<(), String> {
    if size > swap {
        return Err(format!("more than swap.size; the most is \"{}\"", spelled(swap)));
    }
    swap_size(size)?;
    if size < swap && !has_spill {
        return Err(format!(
            "less than swap.size = \"{}\", and nothing takes the rest; add [spill] with a path, \
             or leave tier.size out",
            spelled(swap)
        ));
    }
    Ok(())
}

fn spill(root: &DeTable<'_>, text: &str, problems: &mut Vec<Problem>) -> Option<Spill> {
    let section = Section::find(root, text, "spill", problems);
    section.refuse_others(&["path"], problems);
    if !section.is_present() {
        return None;
    }
    let before = problems.len();
    let path = section.take("path", problems, |value: &DeValue<'_>| {
        value.as_str().map(PathBuf::from).filter(|path| path.is_absolute()).ok_or_else(|| {
            "write an absolute path in quotes, e.g. \"/var/lib/sluice/spill\"".into()
        })
    });
    if path.is_none() && problems.len() == before {
        problems.push(section.problem(
            "path",
            None,
            "missing; name a file or partition, e.g. path = \"/var/lib/sluice/spill\" under [spill]",
        ));
    }
    Some(Spill { path: path?.value })
}

fn nbd(root: &DeTable<'_>, text: &str, devices: u32, problems: &mut Vec<Problem>) -> Nbd {
    let section = Section::find(root, text, "nbd", problems);
    section.refuse_others(&["index", "dead_connection_timeout_s", "io_timeout_ms"], problems);
    let last = MAX_NBD_INDEX - (devices - 1);
    let index = section.integer("index", 0..=last, problems);
    // Zero is not "never": the kernel then fails every request at once. A
    // short time loses live pages over a slow restart.
    let dead = section
        .integer("dead_connection_timeout_s", 60..=u64::from(u32::MAX), problems)
        .unwrap_or(DAY_S);
    let io = section.integer("io_timeout_ms", 10..=60_000_u32, problems).unwrap_or(100);
    Nbd { index, dead_connection_timeout_s: dead, io_timeout_ms: io }
}

fn log(root: &DeTable<'_>, text: &str, problems: &mut Vec<Problem>) -> Log {
    let section = Section::find(root, text, "log", problems);
    section.refuse_others(&["level"], problems);
    let level = section.choice("level", &LogLevel::ALL.map(LogLevel::name), problems);
    Log { level: level.map_or(LogLevel::Info, |placed| LogLevel::ALL[placed.value]) }
}
