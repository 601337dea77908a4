// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: from a file's text to a [`Config`], or everything that is wrong with it.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::control;
use super::metrics;
use super::policies::{self, Policies};
use super::problem::Problem;
use super::schema::{
    Config, Cuda, Durability, Log, LogLevel, Nbd, Spill, Swap, Tier, TierKind, Vulkan, spelled,
};
use super::table::{Placed, Section, unknown};
use super::tenants;
use crate::engine::gpu::{self, GpuSelector};
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

/// The steps in which a size falls towards `min_size`.
pub const STEP: ByteLen = ByteLen(512 << 20);

const SECTIONS: [&str; 12] = [
    "swap", "tier", "cuda", "vulkan", "spill", "nbd", "battery", "control", "metrics", "tenants",
    "log", "policies",
];

/// Checks a file's text. The problems come in the file's order, those about
/// what is missing last.
pub fn check(text: &str) -> Result<Config, Vec<Problem>> {
    let root = parsed(text)?;
    let root = root.get_ref();
    let mut problems = Vec::new();
    refuse_other_sections(root, &mut problems);
    let swap = swap(root, text, &mut problems);
    let spill = spill(root, text, &mut problems);
    let tier = tier(root, text, swap.as_ref(), &mut problems);
    let kind = tier.as_ref().map(|tier| tier.kind);
    let cuda = gpus(root, text, &CUDA, kind, &mut problems).map(|(library, devices)| Cuda {
        library,
        devices: if devices.is_empty() { Cuda::default().devices } else { devices },
    });
    let vulkan = gpus(root, text, &VULKAN, kind, &mut problems)
        .map(|(library, devices)| Vulkan { library, devices });
    let nbd = nbd(root, text, swap.as_ref().map_or(1, |swap| swap.devices), &mut problems);
    let tier_size = tier.as_ref().map(|tier| tier.size);
    let battery = control::battery(root, text, tier_size, &mut problems);
    let control = control::control(root, text, tier_size, &mut problems);
    let metrics = metrics::metrics(root, text, &mut problems);
    let tenants = tenants::tenants(root, text, &mut problems);
    let log = log(root, text, &mut problems);
    let policies = policies::policies(root, text, &mut problems);
    in_order(&mut problems);
    match (swap, tier) {
        (Some(swap), Some(tier)) if problems.is_empty() => Ok(Config {
            swap,
            tier,
            cuda,
            vulkan,
            spill,
            nbd,
            battery,
            control,
            metrics,
            tenants,
            log,
            policies,
        }),
        _ => Err(problems),
    }
}

/// Checks a file's sections by name, and of their content `[policies]` alone.
pub fn policies(text: &str) -> Result<Option<Policies>, Vec<Problem>> {
    let root = parsed(text)?;
    let root = root.get_ref();
    let mut problems = Vec::new();
    refuse_other_sections(root, &mut problems);
    let policies = policies::policies(root, text, &mut problems);
    in_order(&mut problems);
    if problems.is_empty() { Ok(policies) } else { Err(problems) }
}

fn parsed(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Problem>> {
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
    Ok(root)
}

fn refuse_other_sections(root: &DeTable<'_>, problems: &mut Vec<Problem>) {
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
}

fn in_order(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |span| span.start));
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
        &[
            "size",
            "min_size",
            "priority",
            "discard",
            "devices",
            "swapon",
            "checksums",
            "durability",
        ],
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
    let min_size = section.size("min_size", problems).map(|placed| {
        let has_spill = root.contains_key("spill");
        if let Some(size) = size
            && let Err(why) = check_min_size(placed.value, size, has_spill)
        {
            problems.push(section.problem("min_size", placed.span, &why));
        }
        placed.value
    });
    let priority = section.integer("priority", -1..=32_767_i32, problems).unwrap_or(1500);
    let devices = section.integer("devices", 1..=MAX_DEVICES, problems).unwrap_or(1);
    let discard = section.boolean("discard", true, problems);
    let swapon = section.boolean("swapon", true, problems);
    let checksums = section.boolean("checksums", true, problems);
    let durability = durability(&section, root.contains_key("spill"), problems);
    Some(Swap { size: size?, min_size, priority, discard, devices, swapon, checksums, durability })
}

fn durability(swap: &Section<'_, '_>, has_spill: bool, problems: &mut Vec<Problem>) -> Durability {
    let Some(placed) = swap.choice("durability", &Durability::ALL.map(Durability::name), problems)
    else {
        return Durability::ALL[0];
    };
    let durability = Durability::ALL[placed.value];
    if durability == Durability::Mirror && !has_spill {
        problems.push(swap.problem(
            "durability",
            placed.span,
            "there is no spill to write each page to as well; add [spill] with a path, or leave \
             durability out",
        ));
    }
    durability
}

fn check_min_size(min_size: ByteLen, size: ByteLen, has_spill: bool) -> Result<(), String> {
    if has_spill {
        return Err("with [spill] the size is exact; leave min_size out".into());
    }
    if min_size.0 == 0 || !min_size.0.is_multiple_of(STEP.0) {
        return Err(format!("not a multiple of {STEP}; write for example \"{}\"", spelled(STEP)));
    }
    if min_size >= size {
        return Err(format!("not below swap.size = \"{}\"; leave it out", spelled(size)));
    }
    Ok(())
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
            format!("not built in this version; it has \"{}\"", TierKind::built().join("\", \""))
        } else {
            "the default, \"auto\", is not built in this version; write kind = \"ram\" under [tier]"
                .to_owned()
        };
        problems.push(section.problem("kind", kind.span, &why));
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

/// A section that names GPUs and the library by which they are reached.
struct GpuSection {
    name: &'static str,
    /// Such a library, for messages.
    library: &'static str,
    /// Which kinds of tier it is for.
    is_for: fn(TierKind) -> bool,
}

const CUDA: GpuSection =
    GpuSection { name: "cuda", library: "/usr/lib64/libcuda.so.1", is_for: TierKind::may_be_cuda };
const VULKAN: GpuSection = GpuSection {
    name: "vulkan",
    library: "/usr/lib64/libvulkan.so.1",
    is_for: TierKind::may_be_vulkan,
};

/// Library and devices; `None`: the tier is of another kind.
fn gpus(
    root: &DeTable<'_>,
    text: &str,
    of: &GpuSection,
    kind: Option<TierKind>,
    problems: &mut Vec<Problem>,
) -> Option<(Option<PathBuf>, Vec<GpuSelector>)> {
    let section = Section::find(root, text, of.name, problems);
    section.refuse_others(&["library", "devices"], problems);
    let library = section.take("library", problems, |value: &DeValue<'_>| {
        value
            .as_str()
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .ok_or_else(|| format!("write an absolute path in quotes, e.g. \"{}\"", of.library))
    });
    let devices = section.take("devices", problems, gpu_list);
    let kind = kind?;
    if !(of.is_for)(kind) {
        if section.is_present() {
            let why = format!(
                "the section is for tier.kind = \"{}\" or \"auto\", which is \"{}\"; remove it",
                of.name,
                kind.name()
            );
            problems.push(section.problem_with_itself(root, &why));
        }
        return None;
    }
    let devices = devices.map_or_else(Vec::new, |placed| placed.value);
    Some((library.map(|placed| placed.value), devices))
}

fn gpu_list(value: &DeValue<'_>) -> Result<Vec<GpuSelector>, String> {
    let list = value
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or_else(|| format!("write a list, e.g. [\"0\"]; {}", gpu::VALID))?;
    let mut devices = Vec::new();
    for item in list {
        let device = item.get_ref().as_str().ok_or(gpu::VALID)?.parse::<GpuSelector>()?;
        if devices.contains(&device) {
            return Err(format!("\"{device}\" is there twice; name each GPU once"));
        }
        devices.push(device);
    }
    Ok(devices)
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
