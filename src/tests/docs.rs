// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documentation against the programs: help texts, configuration keys,
//! links. `BLESS=1 cargo test --test docs` writes the help texts anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
const STORE: &str = env!("CARGO_BIN_EXE_sluice-store");
const DAEMON: &str = env!("CARGO_BIN_EXE_sluiced");
const TRAY: &str = env!("CARGO_BIN_EXE_sluice-tray");
const MARK: &str = "<!-- From here on written by: BLESS=1 cargo test --test docs -->\n";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a program prints, at the width it takes where there is no terminal.
fn output(program: &str, args: &[&str]) -> (String, String) {
    let output = Command::new(program).args(args).env_remove("COLUMNS").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// The names under "Commands:" of a help text.
fn subcommands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect()
}

/// The help of `sluice PATH` and of everything below it.
fn write_help(page: &mut String, path: &[&str]) {
    let (help, _) = output(SLUICE, &[path, &["--help"]].concat());
    let name = [&["sluice"], path].concat().join(" ");
    assert!(help.contains("Usage:"), "{name} --help: {help}");
    section(page, &name, &help);
    for below in subcommands(&help) {
        write_help(page, &[path, &[&below]].concat());
    }
}

fn section(page: &mut String, name: &str, help: &str) {
    // clap pads empty lines; a page that is edited by hand would lose that.
    let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n")).unwrap();
}

#[test]
fn the_commands_page_shows_the_help_of_every_command() {
    let path = Path::new(ROOT).join("docs/reference/cli.md");
    let text = read(&path);
    let (head, found) = text.split_once(MARK).expect("the page has the mark");
    let mut expected = String::new();
    write_help(&mut expected, &[]);
    section(&mut expected, "sluice-store", &output(STORE, &["--help"]).0);
    section(&mut expected, "sluiced", &output(DAEMON, &["--help"]).0);
    section(&mut expected, "sluice-tray", &output(TRAY, &["--help"]).0);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{head}{MARK}{expected}")).unwrap();
    } else {
        assert_eq!(found, expected, "{}: BLESS=1 cargo test --test docs", path.display());
    }
}

/// What the program itself lists as valid after an unknown key or section.
fn valid_here(file: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, file).unwrap();
    let (_, errors) = output(SLUICE, &["config", "check", path.to_str().unwrap()]);
    let line = errors.lines().find(|line| line.contains("unknown "));
    let (_, list) = line.and_then(|line| line.split_once("valid here: ")).expect(&errors);
    list.split(", ").map(str::to_owned).collect()
}

/// The cells of each row of a section's table, without its head.
fn rows<'t>(page: &'t str, section: &str) -> Vec<Vec<&'t str>> {
    let heading = format!("\n## `[{section}]`\n");
    let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("no{heading}"));
    rest.lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

#[test]
fn the_configuration_page_names_every_key_and_no_other() {
    let page = read(&Path::new(ROOT).join("docs/reference/configuration.md"));
    for section in valid_here("[qqqqqqqqqqqqqqqq]\n") {
        // Its own keys are names.
        let section = if section == "tenants" { "tenants.NAME".to_owned() } else { section };
        let written = section.replace("NAME", "a");
        let keys = valid_here(&format!("[{written}]\nqqqqqqqqqqqqqqqq = 1\n"));
        let named: BTreeSet<_> =
            rows(&page, &section).iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
        assert_eq!(named, keys, "[{section}] in docs/reference/configuration.md");
    }
}

#[test]
fn the_configuration_page_gives_the_defaults_in_force() {
    let page = read(&Path::new(ROOT).join("docs/reference/configuration.md"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluice.toml");
    let least = "[swap]\nsize = \"64M\"\n[tier]\nkind = \"ram\"\n[spill]\npath = \"/spill\"\n";
    std::fs::write(&path, least).unwrap();
    let (shown, errors) = output(SLUICE, &["config", "show", path.to_str().unwrap()]);
    let shown: toml::Table = shown.parse().unwrap_or_else(|error| panic!("{error}: {errors}"));
    let stated: toml::Table = least.parse().unwrap();
    let mut compared = 0;
    for (section, keys) in &shown {
        for (key, value) in keys.as_table().expect("a section") {
            let full = format!("{section}.{key}");
            // The one default that is another key's value.
            if full == "tier.size" || stated.get(section).is_some_and(|s| s.get(key).is_some()) {
                continue;
            }
            let rows = rows(&page, section);
            let row = rows.iter().find(|row| row[0] == format!("`{key}`")).expect(&full);
            assert_eq!(row[2], format!("`{value}`"), "the default of {full}");
            compared += 1;
        }
    }
    assert!(compared >= 9, "only {compared} defaults were compared: {shown}");
}

/// Every page below the tree's root, build outputs left out.
fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && name != ".git" {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut found = Vec::new();
    pages(Path::new(ROOT), &mut found);
    let mut broken = Vec::new();
    for page in &found {
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let target = link.0.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !page.parent().expect("a page lies in a folder").join(target).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links to nothing:\n{}", broken.join("\n"));
}

#[test]
fn the_contents_list_every_page_of_the_documentation() {
    let docs = Path::new(ROOT).join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let mut found = Vec::new();
    pages(&docs, &mut found);
    let missing: Vec<_> = found
        .iter()
        .map(|page| page.strip_prefix(&docs).expect("below docs").display().to_string())
        .filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "add to docs/SUMMARY.md: {missing:?}");
}
