// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which modules of the driver are loaded, and whether they are the patched ones.
//!
//! The patched driver has no dependency on `sluice_gpu` that the kernel would show: it
//! looks the module's functions up when it is loaded. So it is known by its own
//! functions' names, and whether it has found them by the order of loading.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Serialize;

/// The modules looked for: the driver's, and Sluice's.
const MODULES: [&str; 7] = [
    "nvidia",
    "nvidia_uvm",
    "nvidia_modeset",
    "nvidia_drm",
    "nvidia_peermem",
    "sluice_gpu",
    "sluice_sim",
];
/// How the names of functions begin that the semantic patches add.
const ADDED: &str = "sluice_";
/// How the names of parameters begin that can stand for a policy.
const PARAMETERS: &str = "uvm_perf_prefetch_";

/// What files say of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The loaded ones of the driver's and Sluice's modules, the newest first.
    pub modules: Vec<Module>,
    /// What the driver's core says of itself.
    pub core: Option<Core>,
    /// The parameters of `nvidia_uvm` that decide what is prefetched, as they are now.
    pub parameters: BTreeMap<String, String>,
}

/// A loaded module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Its name, as the kernel spells it.
    pub name: String,
    /// The version it was built as.
    pub version: Option<String>,
    /// How many modules, files and others keep it; it can't be unloaded above 0.
    pub references: Option<u64>,
    /// The modules among them.
    pub holders: Vec<String>,
    /// Whether it has the semantic patches; not known where the kernel shows no names, and
    /// no question for modules of Sluice.
    pub is_patched: Option<bool>,
}

/// `/proc/driver/nvidia/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// The release.
    pub version: String,
    /// Whether it is the open one, which alone can be patched.
    pub is_open: bool,
}

/// Whether a module of the driver asks policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Patched, and `sluice_gpu` was there when it was loaded.
    Yes,
    /// It is not loaded.
    NotLoaded,
    /// It is not patched.
    Stock,
    /// Patched, and `sluice_gpu` is not loaded.
    WithoutSluice,
    /// Patched, and was loaded before `sluice_gpu`.
    TooEarly,
    /// The kernel does not show whether it is patched.
    Unknown,
}

impl Facts {
    /// Reads the tree below `root`.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let names = AddedNames::read(&root.join("proc/kallsyms"));
        let modules = text("proc/modules")
            .unwrap_or_default()
            .lines()
            .filter_map(|line| {
                let mut module = module(line)?;
                module.version = text(&format!("sys/module/{}/version", module.name))
                    .map(|version| version.trim().to_owned());
                module.is_patched =
                    names.has(&module.name).filter(|_| module.name.starts_with("nvidia"));
                Some(module)
            })
            .collect();
        Self {
            modules,
            core: text("proc/driver/nvidia/version").as_deref().and_then(core),
            parameters: parameters(&root.join("sys/module/nvidia_uvm/parameters")),
        }
    }

    /// The module of that name, if it is loaded.
    pub fn module(&self, name: &str) -> Option<&Module> {
        self.modules.iter().find(|module| module.name == name)
    }

    /// Whether the driver's module of that name asks policies.
    pub fn asks(&self, name: &str) -> Asks {
        let place = |name: &str| self.modules.iter().position(|module| module.name == name);
        let (Some(own), Some(module)) = (place(name), self.module(name)) else {
            return Asks::NotLoaded;
        };
        match (module.is_patched, place("sluice_gpu")) {
            (None, _) => Asks::Unknown,
            (Some(false), _) => Asks::Stock,
            (Some(true), None) => Asks::WithoutSluice,
            (Some(true), Some(sluice)) if own < sluice => Asks::Yes,
            (Some(true), Some(_)) => Asks::TooEarly,
        }
    }
}

/// A line of `/proc/modules`, if it is one of ours.
fn module(line: &str) -> Option<Module> {
    let mut fields = line.split_whitespace();
    let name = fields.next().filter(|name| MODULES.contains(name))?;
    let _size = fields.next()?;
    let references = fields.next()?.parse().ok();
    let holders = fields.next()?.split(',').filter(|holder| !["", "-"].contains(holder));
    Some(Module {
        name: name.to_owned(),
        version: None,
        references,
        holders: holders.map(str::to_owned).collect(),
        is_patched: None,
    })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build ...`,
/// and `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb ...` if not open.
fn core(text: &str) -> Option<Core> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let version = line.split_whitespace().find(|word| is_release(word))?;
    Some(Core { version: version.to_owned(), is_open: line.contains("Open Kernel Module") })
}

/// `550.163.01` and `565.77` are releases of the driver; `1`, as in `libcuda.so.1`, is not.
pub fn is_release(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (2..=4).contains(&parts.len()) && parts[0].len() >= 3 && parts.iter().all(is_number)
}

fn parameters(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let value = fs::read_to_string(entry.path()).ok()?;
            name.starts_with(PARAMETERS).then(|| (name, value.trim().to_owned()))
        })
        .collect()
}

/// The modules whose functions' names begin as those of the patches do.
struct AddedNames(Option<Vec<String>>);

impl AddedNames {
    /// `ADDRESS TYPE NAME\t[MODULE]`; addresses are hidden from most readers, names are not.
    fn read(path: &Path) -> Self {
        let Ok(file) = File::open(path) else { return Self(None) };
        let mut modules: Vec<String> = Vec::new();
        for line in BufReader::new(file).lines() {
            let Ok(line) = line else { return Self(None) };
            let mut fields = line.split_whitespace().skip(2);
            let (Some(name), Some(module)) = (fields.next(), fields.next()) else { continue };
            let module = module.trim_start_matches('[').trim_end_matches(']');
            if name.starts_with(ADDED) && !modules.iter().any(|known| known == module) {
                modules.push(module.to_owned());
            }
        }
        Self(Some(modules))
    }

    fn has(&self, module: &str) -> Option<bool> {
        self.0.as_ref().map(|modules| modules.iter().any(|known| known == module))
    }
}
