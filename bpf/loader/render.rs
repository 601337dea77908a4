// SPDX-License-Identifier: GPL-2.0-only
//! How policies are shown, to people and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::netlink::{BYPASSES, Connection, HOOKS, Hook, OUTCOMES, Policy};
use crate::object::ANY_GPU;
use crate::pins;

const POLICIES: &str = "/usr/lib/sluice/policies";

/// Prints to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn kind(policy: &Policy) -> &'static str {
    if policy.kind == 0 { "mem" } else { "sched" }
}

fn hook(index: u32) -> &'static str {
    HOOKS.get(index as usize).copied().unwrap_or("unknown")
}

fn bypass(policy: &Policy) -> &'static str {
    BYPASSES.get(policy.bypass as usize).copied().unwrap_or("unknown")
}

/// The path of a cgroup below its mount, found by its id; none for 0 or one that is gone.
pub fn cgroup_path(id: u64) -> Option<PathBuf> {
    fn search(folder: &Path, id: u64) -> Option<PathBuf> {
        if std::fs::metadata(folder).ok()?.ino() == id {
            return Some(folder.to_path_buf());
        }
        std::fs::read_dir(folder)
            .ok()?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .find_map(|entry| search(&entry.path(), id))
    }
    if id == 0 {
        return None;
    }
    search(Path::new("/sys/fs/cgroup"), id)
}

fn scope(policy: &Policy) -> String {
    let gpu = match policy.gpu {
        ANY_GPU => "every GPU".to_owned(),
        gpu => format!("GPU {gpu}"),
    };
    match (policy.cgroup, cgroup_path(policy.cgroup)) {
        (0, _) => gpu,
        (id, None) => format!("{gpu}, cgroup {id} (gone)"),
        (_, Some(path)) => {
            let below = path.strip_prefix("/sys/fs/cgroup").unwrap_or(&path);
            format!("{gpu}, cgroup /{}", below.display())
        }
    }
}

fn state(policy: &Policy) -> String {
    if policy.bypass == 0 {
        return "in force".to_owned();
    }
    let detail = match (policy.bypass_at, policy.bypass_faults) {
        (Some((at, ns)), _) => format!(" ({} took {} us)", hook(at), ns / 1000),
        (None, Some((faults, before))) => {
            format!(" ({faults} in 10 ms, {before} before it was attached)")
        }
        (None, None) => String::new(),
    };
    format!("bypassed: {}{detail}", bypass(policy))
}

/// A policy in one line.
pub fn one_line(policy: &Policy) -> String {
    format!("{} ({}, {}): {}", policy.name, kind(policy), scope(policy), state(policy))
}

fn hook_json(counters: &Hook) -> Value {
    let outcomes: serde_json::Map<String, Value> = OUTCOMES
        .iter()
        .zip(&counters.outcomes)
        .map(|(name, count)| ((*name).to_owned(), json!(count)))
        .collect();
    json!({
        "hook": hook(counters.index), "calls": counters.calls, "time_ns": counters.time_ns,
        "max_ns": counters.max_ns, "outcomes": outcomes,
    })
}

fn policy_json(policy: &Policy) -> Value {
    let [done, stale, refused] = *policy.preemptions.first_chunk().unwrap_or(&[0; 3]);
    json!({
        "id": policy.id, "name": policy.name, "kind": kind(policy),
        "gpu": (policy.gpu != ANY_GPU).then_some(policy.gpu),
        "cgroup_id": (policy.cgroup != 0).then_some(policy.cgroup),
        "budget_ns": policy.budget_ns, "replaced": policy.replaced, "bypass": bypass(policy),
        "bypass_hook": policy.bypass_at.map(|(at, _)| hook(at)),
        "bypass_ns": policy.bypass_at.map(|(_, ns)| ns),
        "bypass_faults": policy.bypass_faults.map(|(faults, _)| faults),
        "bypass_before": policy.bypass_faults.map(|(_, before)| before),
        "max_faults_percent": policy.fault_percent,
        "pinned": !pins::kinds(&policy.name).is_empty(),
        "preemptions": {"done": done, "stale": stale, "refused": refused},
        "hooks": policy.hooks.iter().map(hook_json).collect::<Vec<_>>(),
    })
}

fn installed() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(POLICIES)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            entry.file_name().to_string_lossy().strip_suffix(".bpf.o").map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}

/// `list`.
pub fn list(connection: &mut Connection, as_json: bool) -> Result<()> {
    let module = connection.module()?;
    let policies = connection.policies()?;
    if as_json {
        let managers: Vec<Value> =
            module.managers.iter().map(|(gpu, name)| json!({"gpu": gpu, "name": name})).collect();
        let attached: Vec<Value> = policies.iter().map(policy_json).collect();
        return print(&format!(
            "{}\n",
            json!({"abi": module.abi, "managers": managers, "attached": attached,
                   "installed": installed()})
        ));
    }
    let mut text = String::new();
    for (gpu, name) in &module.managers {
        writeln!(text, "GPU {gpu}: {name}")?;
    }
    if module.managers.is_empty() {
        writeln!(text, "no GPU: no memory manager has registered")?;
    }
    for policy in &policies {
        writeln!(text, "{}", one_line(policy))?;
    }
    if policies.is_empty() {
        writeln!(text, "no policy is attached: native service")?;
    }
    writeln!(text, "installed: {}", installed().join(" "))?;
    print(&text)
}

fn counters(text: &mut String, policy: &Policy) -> Result<()> {
    for hook_counters in &policy.hooks {
        let mean = hook_counters.time_ns.checked_div(hook_counters.calls).unwrap_or(0);
        write!(
            text,
            "  {:20} {:10} calls, mean {mean} ns, longest {} ns",
            hook(hook_counters.index),
            hook_counters.calls,
            hook_counters.max_ns
        )?;
        for (name, count) in OUTCOMES.iter().zip(&hook_counters.outcomes) {
            if *count != 0 {
                write!(text, ", {count} {name}")?;
            }
        }
        text.push('\n');
    }
    Ok(())
}

/// `show`.
pub fn show(connection: &mut Connection, name: &str, as_json: bool) -> Result<()> {
    let policies: Vec<Policy> =
        connection.policies()?.into_iter().filter(|policy| policy.name == name).collect();
    if policies.is_empty() {
        bail!("no policy named {name} is attached");
    }
    if as_json {
        let all: Vec<Value> = policies.iter().map(policy_json).collect();
        return print(&format!("{}\n", Value::from(all)));
    }
    let mut text = String::new();
    for policy in &policies {
        writeln!(text, "{}", one_line(policy))?;
        let kept = if pins::kinds(name).is_empty() { "by its loader" } else { "pinned" };
        writeln!(
            text,
            "  id {}, budget {} us, faults up to {} %, replaced {} times, kept {kept}",
            policy.id,
            policy.budget_ns / 1000,
            policy.fault_percent,
            policy.replaced
        )?;
        counters(&mut text, policy)?;
        if policy.preemptions.iter().any(|count| *count != 0) {
            writeln!(
                text,
                "  preemptions (done, without a task, refused): {:?}",
                policy.preemptions
            )?;
        }
    }
    print(&text)
}

/// `stats`.
pub fn stats(connection: &mut Connection, as_json: bool) -> Result<()> {
    let policies = connection.policies()?;
    if as_json {
        let all: Vec<Value> = policies.iter().map(policy_json).collect();
        return print(&format!("{}\n", Value::from(all)));
    }
    let mut text = String::new();
    for policy in &policies {
        writeln!(text, "{}", one_line(policy))?;
        counters(&mut text, policy)?;
    }
    print(&text)
}
