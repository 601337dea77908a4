// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice doctor`: what this machine can and cannot do.
//!
//! [`facts`] reads files below a root and concludes nothing; [`findings`]
//! concludes from facts and reads nothing. Nothing here changes the machine or
//! wakes a device: Vulkan's drivers are asked only where no GPU sleeps.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::args::DoctorArgs;
use super::control::Ways;
use facts::{Facts, Vulkan};
use findings::{Ability, Report};

pub(super) use facts::LIBRARY_DIRS;
pub(super) use findings::{Finding, Verdict};

mod facts;
mod findings;
mod gpu_findings;
mod gpus;

#[derive(Serialize)]
struct Answer<'a> {
    facts: &'a Facts,
    findings: &'a [Finding],
    abilities: &'a [Ability],
}

pub(super) fn run(args: &DoctorArgs, ways: &Ways) -> Result<ExitCode> {
    let mut facts = Facts::read(&args.root);
    if args.root == Path::new("/") && facts.may_ask_vulkan() {
        facts.vulkan = Some(match (ways.vulkan_gpus)() {
            Ok(offers) => Vulkan::Offers(offers),
            Err(error) => Vulkan::Fails(error.to_string()),
        });
    }
    let report = findings::conclude(&facts);
    let text = if args.json {
        let answer =
            Answer { facts: &facts, findings: &report.findings, abilities: &report.abilities };
        serde_json::to_string_pretty(&answer)? + "\n"
    } else {
        render(&report)
    };
    super::print(&text)?;
    Ok(if report.can_attach() { ExitCode::SUCCESS } else { ExitCode::from(super::FAILED) })
}

/// Findings as text, a line for each and one for its next step.
pub(super) fn lines(findings: &[Finding]) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Note => "note",
            Verdict::Warning => "WARN",
            Verdict::No => "NO  ",
        };
        let _ = writeln!(out, "{mark}  {:width$}  {}", finding.topic, finding.text);
        if let Some(next) = &finding.next {
            let _ = writeln!(out, "      {:width$}  next: {next}", "");
        }
    }
    out
}

fn render(report: &Report) -> String {
    let mut out = lines(&report.findings);
    let _ = writeln!(out, "\nThis machine can:");
    for ability in &report.abilities {
        let mark = if ability.missing.is_empty() { "yes" } else { "no " };
        let _ = write!(out, "  {mark}  {}", ability.what);
        if !ability.missing.is_empty() {
            let _ = write!(out, " (see {})", ability.missing.join(", "));
        }
        out.push('\n');
    }
    out
}

/// The names in a directory, sorted; none if it is not there.
pub(super) fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
