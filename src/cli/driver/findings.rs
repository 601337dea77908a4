// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what was read of the driver to findings. Pure.

use std::fmt::Write as _;

use super::Machine;
use crate::cli::doctor::{Finding, Verdict};
use crate::driver::{Asks, Facts, Module};

/// The driver's modules in the order in which they can be unloaded.
const UNLOAD: [&str; 5] =
    ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia"];
const ANEW: &str = "load it after sluice_gpu: `softdep nvidia-uvm pre: sluice_gpu` in a file below \
                    /etc/modprobe.d, then unload and load as said below, or reboot";

/// Concludes, in the order in which somebody asks who is about to exchange a module.
pub(super) fn conclude(machine: &Machine) -> Vec<Finding> {
    let facts = &machine.driver;
    let Some(core) = facts.module("nvidia") else {
        let finding = Finding::new("nvidia", Verdict::No, "the module nvidia is not loaded");
        let next = "modprobe nvidia nvidia-uvm; `sluice doctor` says what this machine has";
        return vec![finding.next(next)];
    };
    let mut findings = vec![core_finding(facts), uvm(facts)];
    findings.push(user_space(machine, core));
    findings
        .extend(machine.driver.modules.iter().filter(|module| is_driver(module)).map(references));
    findings.push(users(machine));
    findings.push(unloading(machine));
    findings.extend(way_back(facts));
    findings
}

fn is_driver(module: &Module) -> bool {
    UNLOAD.contains(&module.name.as_str())
}

/// What the loaded module was built as; the two that say so are one in a sane machine.
fn release(facts: &Facts) -> Option<&str> {
    let said = facts.core.as_ref().map(|core| core.version.as_str());
    facts.module("nvidia").and_then(|module| module.version.as_deref()).or(said)
}

fn core_finding(facts: &Facts) -> Finding {
    let release = release(facts).unwrap_or("of a release that it does not say");
    let Some(core) = &facts.core else {
        let text = format!("{release}, which does not show /proc/driver/nvidia/version");
        return Finding::new("nvidia", Verdict::Note, text);
    };
    if core.version != release {
        let text = format!(
            "{release} by /sys/module/nvidia/version, {} by /proc/driver/nvidia/version",
            core.version
        );
        return Finding::new("nvidia", Verdict::No, text).next("reboot");
    }
    if core.is_open {
        return Finding::new("nvidia", Verdict::Ok, format!("{release}, the open driver"));
    }
    let text = format!("{release}, not the open driver, which alone can be patched");
    Finding::new("nvidia", Verdict::Note, text)
}

fn uvm(facts: &Facts) -> Finding {
    let finding = |verdict, text: &str| Finding::new("nvidia-uvm", verdict, text);
    match facts.asks("nvidia_uvm") {
        Asks::Yes => finding(Verdict::Ok, "patched, and loaded after sluice_gpu: it asks policies"),
        Asks::Stock => finding(Verdict::Ok, "stock: it asks no policies"),
        Asks::NotLoaded => finding(Verdict::Note, "not loaded: without it there is no CUDA")
            .next("modprobe nvidia-uvm"),
        Asks::WithoutSluice => {
            finding(Verdict::Warning, "patched, and sluice_gpu is not loaded: it asks nobody")
                .next(ANEW)
        }
        Asks::TooEarly => {
            finding(Verdict::Warning, "patched, and loaded before sluice_gpu: it asks nobody")
                .next(ANEW)
        }
        Asks::Unknown => finding(
            Verdict::Note,
            "loaded; whether it is patched can't be seen, for there is no /proc/kallsyms",
        ),
    }
}

fn user_space(machine: &Machine, core: &Module) -> Finding {
    const TOPIC: &str = "user space";
    let Some(release) = core.version.as_deref().or_else(|| release(&machine.driver)) else {
        return Finding::new(TOPIC, Verdict::Note, "the module does not say its release");
    };
    if machine.libraries.is_empty() {
        let text = "no libcuda or libnvidia-ml with a release in its name where they usually are";
        return Finding::new(TOPIC, Verdict::Note, text);
    }
    let mut others: Vec<String> = machine
        .libraries
        .iter()
        .filter(|library| library.release != release)
        .map(|library| library.path.display().to_string())
        .collect();
    if others.is_empty() {
        let text = format!("{release}, as the module ({} libraries)", machine.libraries.len());
        return Finding::new(TOPIC, Verdict::Ok, text);
    }
    others.dedup();
    let is_any = others.len() < machine.libraries.len();
    let text = format!("not of the module's release {release}: {}", others.join(", "));
    if is_any {
        // Two releases side by side: the linker may well take the right one.
        return Finding::new(TOPIC, Verdict::Warning, text)
            .next("remove those of the other release");
    }
    Finding::new(TOPIC, Verdict::No, text)
        .next("unload all modules of the driver and load them anew, or reboot")
}

fn references(module: &Module) -> Finding {
    let count = match module.references {
        Some(0) => "nothing refers to it".to_owned(),
        Some(1) => "1 reference".to_owned(),
        Some(count) => format!("{count} references"),
        None => "the kernel does not count its references".to_owned(),
    };
    let mut text = format!("{}: {count}", module.name);
    if !module.holders.is_empty() {
        let _ = write!(text, ", of the modules {}", module.holders.join(", "));
    }
    Finding::new("holders", Verdict::Note, text)
}

fn users(machine: &Machine) -> Finding {
    let users = &machine.users;
    let hidden = match users.hidden_processes {
        0 => String::new(),
        count => format!("; {count} processes could not be looked into: as root all can"),
    };
    if users.users.is_empty() {
        let text = format!("none has /dev/nvidia* open{hidden}");
        let verdict = if hidden.is_empty() { Verdict::Ok } else { Verdict::Note };
        return Finding::new("processes", verdict, text);
    }
    let who: Vec<String> = users
        .users
        .iter()
        .map(|user| format!("{} ({}) has {}", user.name, user.pid, user.nodes.join(", ")))
        .collect();
    Finding::new("processes", Verdict::Note, who.join("; ") + &hidden)
}

/// Whether the driver can be unloaded as it is, and by which command.
fn unloading(machine: &Machine) -> Finding {
    const TOPIC: &str = "exchange";
    let facts = &machine.driver;
    let loaded: Vec<&Module> = UNLOAD.iter().filter_map(|name| facts.module(name)).collect();
    // Its own modules go first; whatever else refers to one keeps it.
    let is_free = |module: &&Module| {
        let own = module.holders.iter().filter(|name| UNLOAD.contains(&name.as_str())).count();
        module.references == Some(own as u64)
    };
    let free: Vec<&Module> = if machine.users.users.is_empty() && loaded.iter().all(is_free) {
        loaded
    } else {
        // Without CUDA at work nvidia-uvm goes alone, under a desktop too.
        loaded.into_iter().filter(|module| is_idle_uvm(module, machine)).collect()
    };
    if !free.is_empty() {
        let names: Vec<String> = free.iter().map(|module| module.name.replace('_', "-")).collect();
        let text = format!("can be unloaded now: {}", names.join(", "));
        let next = format!(
            "modprobe -r {}; modprobe nvidia-uvm, which loads what `modinfo -n nvidia-uvm` names",
            names.join(" ")
        );
        return Finding::new(TOPIC, Verdict::Ok, text).next(next);
    }
    let store = machine.users.users.iter().any(|user| user.name.starts_with("sluice"));
    let first = if store { "`sluice off`, which brings its pages back; then " } else { "" };
    let next = format!("{first}end the processes that use the driver; or reboot");
    Finding::new(TOPIC, Verdict::Note, "the modules can't be unloaded while they are in use")
        .next(next)
}

fn is_idle_uvm(module: &Module, machine: &Machine) -> bool {
    let mut nodes = machine.users.users.iter().flat_map(|user| &user.nodes);
    module.name == "nvidia_uvm"
        && module.references == Some(0)
        && !nodes.any(|node| node.starts_with("/dev/nvidia-uvm"))
}

fn way_back(facts: &Facts) -> Option<Finding> {
    let patched = facts.modules.iter().filter(|module| is_driver(module));
    let patched: Vec<&str> = patched
        .filter(|module| module.is_patched == Some(true))
        .map(|module| module.name.as_str())
        .collect();
    if patched.is_empty() {
        return None;
    }
    let text = format!("{} patched; the stock one is the driver package's own", patched.join(", "));
    Some(Finding::new("way back", Verdict::Note, text).next(
        "remove the file that `modinfo -n nvidia-uvm` names if it is not the driver package's, else \
         install that package anew; then depmod, and exchange as said above or reboot; on NixOS \
         leave services.sluice.kernel.driver.enable out and reboot",
    ))
}
