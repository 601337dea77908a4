// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree's rules, read from the tree: which layer may see what, licence
//! lines, where unsafe code may not be, file sizes, and the top level.
//!
//! Each failure names file, line, the rule, and what to do instead.

mod layering_rules;
mod layering_scan;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use layering_rules::violations;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the tree, relative to its root: as git lists it (new files
/// too, ignored ones not), or as unpacked where there is no git.
fn tree() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8(output.stdout).expect("names are UTF-8"));
    let mut files = Vec::new();
    if let Some(listed) = listed {
        files.extend(listed.lines().map(str::to_owned));
    } else {
        walk(&root(), "", &mut files);
    }
    files.retain(|file| root().join(file).is_file());
    assert!(files.iter().any(|file| file == "src/lib.rs"), "not the tree: {files:?}");
    files
}

fn walk(dir: &Path, prefix: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a folder of the tree can be read") {
        let entry = entry.expect("an entry of the tree can be read");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() {
            if name != "target" && name != ".git" {
                walk(&entry.path(), &format!("{path}/"), files);
            }
        } else {
            files.push(path);
        }
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn extension(file: &str) -> &str {
    Path::new(file).extension().and_then(|ext| ext.to_str()).unwrap_or_default()
}

fn assert_none(rule: &str, broken: &[String]) {
    let mut text = String::new();
    for line in broken {
        let _ = writeln!(text, "  {line}");
    }
    assert!(broken.is_empty(), "{rule}\n{text}");
}

/// Names of the crates in `Cargo.toml`, as code spells them.
fn dependencies() -> Vec<String> {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml parses");
    let mut names = Vec::new();
    for table in ["dependencies", "dev-dependencies"] {
        let table = manifest[table].as_table().expect("a table of dependencies");
        names.extend(table.keys().map(|name| name.replace('-', "_")));
    }
    names
}

#[test]
fn each_layer_sees_only_what_it_may() {
    let dependencies = dependencies();
    let broken: Vec<_> = tree()
        .iter()
        .filter_map(|file| file.strip_prefix("src/"))
        .filter(|file| extension(file) == "rs" && !file.starts_with("tests/"))
        .flat_map(|file| violations(file, &read(&format!("src/{file}")), &dependencies))
        .collect();
    assert_none("A layer sees what it must not:", &broken);
}

#[test]
fn each_source_begins_with_its_licence() {
    let mut broken = Vec::new();
    for file in tree() {
        if !matches!(extension(&file), "rs" | "c" | "h") {
            continue;
        }
        let kernel = ["kernel-module/", "bpf/", "vm-tests/supply/"]
            .iter()
            .any(|folder| file.starts_with(folder));
        let licence = if kernel { "GPL-2.0-only" } else { "MIT OR Apache-2.0" };
        let text = read(&file);
        let first = text.lines().next().unwrap_or_default();
        let first = first.trim_start_matches("/*").trim_start_matches("//").trim();
        let said = first.trim_end_matches("*/").trim();
        if said != format!("SPDX-License-Identifier: {licence}") {
            broken.push(format!("{file}:1: write SPDX-License-Identifier: {licence}"));
        }
    }
    assert_none("A source does not begin with its licence:", &broken);
}

#[test]
fn the_layers_without_system_calls_forbid_unsafe_code() {
    let broken: Vec<_> = ["engine", "config", "driver", "cli", "bus", "power", "tray", "vram"]
        .map(|layer| format!("src/{layer}/mod.rs"))
        .into_iter()
        .filter(|file| !read(file).lines().any(|line| line == "#![forbid(unsafe_code)]"))
        .map(|file| format!("{file}: write #![forbid(unsafe_code)] below the module's doc"))
        .collect();
    assert_none("A layer that needs none could hold unsafe code:", &broken);
}

#[test]
fn no_file_is_longer_than_700_lines() {
    let broken: Vec<_> = tree()
        .into_iter()
        .filter(|file| matches!(extension(file), "rs" | "c" | "h" | "nix" | "py" | "sh" | "cocci"))
        .map(|file| (read(&file).lines().count(), file))
        .filter(|(lines, _)| *lines > 700)
        .map(|(lines, file)| format!("{file}: {lines} lines; split it by role, 400 are a budget"))
        .collect();
    assert_none("A file is too long:", &broken);
}

/// Everything that the top level may have; what is not a folder of sources is
/// a file that a tool looks for there and nowhere else.
const TOP: &[&str] = &[
    ".ci",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "bpf",
    "docs",
    "flake.lock",
    "flake.nix",
    "kernel-module",
    "nixos-module",
    "src",
    "vm-tests",
];

#[test]
fn the_top_level_has_nothing_else() {
    let mut broken: Vec<_> = tree()
        .iter()
        .filter_map(|file| file.split('/').next())
        .filter(|name| !TOP.contains(name))
        .map(|name| format!("{name}: put it into the folder it belongs to: {}", TOP.join(" ")))
        .collect();
    broken.dedup();
    assert_none("The top level has something else:", &broken);
}
