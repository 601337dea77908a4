// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that stand for machines, and what a configured policy comes to there.
//! `BLESS=1 cargo test` writes the golden files anew, to be reviewed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::facts::{Core, Facts, is_release};
use super::means::{Means, Running, Stock, standings};
use super::{Asks, Module};
use crate::config::Policies;
use crate::config::check::policies;

const TREES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/trees/driver");
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/policies");

fn trees() -> Vec<PathBuf> {
    let mut trees: Vec<PathBuf> = std::fs::read_dir(TREES)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    trees.sort();
    assert!(trees.len() > 5, "{trees:?}");
    trees
}

fn configured(text: &str) -> Policies {
    policies(text).expect("a good file").expect("a section")
}

/// A tree's file of what the module says: `manager NAME`, `attached NAME`, `bypassed NAME`.
fn running(text: &str) -> Running {
    let mut running = Running::default();
    for line in text.lines() {
        match line.split_once(' ').expect("two words") {
            ("manager", name) => running.managers.push(name.to_owned()),
            (word, name) => {
                assert!(["attached", "bypassed"].contains(&word), "{line}");
                running.attached.insert(name.to_owned(), word == "bypassed");
            }
        }
    }
    running
}

#[test]
fn each_machine_puts_policies_in_force_by_what_it_has() {
    let text = std::fs::read_to_string(Path::new(TREES).join("policies.toml")).unwrap();
    for tree in trees() {
        let said = std::fs::read_to_string(tree.join("running")).unwrap();
        let standings =
            standings(&configured(&text), &Facts::read(&tree.join("root")), &running(&said));
        let lines: Vec<String> = standings.iter().map(|one| format!("{one}\n")).collect();
        let (golden, found) = (tree.join("policies"), lines.concat());
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&golden, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(found, expected, "differs from {}", golden.display());
    }
}

#[test]
fn each_policy_of_the_table_is_installed_and_prefetches() {
    let names: BTreeSet<String> = include_str!("stock.toml")
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'))
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 3, "{names:?}");
    for name in names {
        let stock = Stock::of(&name).expect("the table has it");
        assert!(stock.value(None).is_some(), "{name}: its own value is none that the driver takes");
        // What Facts reads of the parameters.
        assert!(stock.parameter.starts_with("uvm_perf_prefetch_"), "{name}");
        let source = Path::new(INSTALLED).join(format!("{name}.bpf.c"));
        let source = std::fs::read_to_string(&source).expect("such a policy");
        assert!(source.contains("SLUICE_HOOK(page_prefetch"), "{name} does not prefetch");
    }
}

/// A machine with the stock driver and one parameter.
fn stock(parameter: &str, value: &str) -> Facts {
    Facts {
        modules: vec![loaded("nvidia_uvm", Some(false)), loaded("nvidia", Some(false))],
        core: Some(Core { version: "550.163.01".into(), is_open: true }),
        parameters: [(parameter.to_owned(), value.to_owned())].into(),
    }
}

fn loaded(name: &str, is_patched: Option<bool>) -> Module {
    Module {
        name: name.into(),
        version: None,
        references: Some(0),
        holders: Vec::new(),
        is_patched,
    }
}

fn means_of(text: &str, facts: &Facts) -> Means {
    standings(&configured(text), facts, &Running::default()).remove(0).means
}

fn reasons(means: &Means) -> String {
    match means {
        Means::Nothing { why, .. } => why.join("; "),
        other => panic!("in force: {other:?}"),
    }
}

#[test]
fn a_tunable_decides_the_parameter() {
    let text = "[policies]\nprefetch = \"prefetch_tenant_tree\"\n\
                [policies.parameters.prefetch_tenant_tree]\nnormal = 25\n";
    let threshold = |value| stock("uvm_perf_prefetch_threshold", value);
    assert!(matches!(means_of(text, &threshold("25")), Means::Parameter { value: 25, .. }));
    let said = reasons(&means_of(text, &threshold("51")));
    assert!(said.contains("comes near it at 25, is 51"), "{said}");
    // Without the tunable its default, which is the driver's own.
    let text = "[policies]\nprefetch = \"prefetch_tenant_tree\"\n";
    assert!(matches!(means_of(text, &threshold("51")), Means::Parameter { value: 51, .. }));
}

#[test]
fn a_tunable_that_the_driver_does_not_take_is_no_parameter() {
    let text = "[policies]\nprefetch = \"prefetch_tenant_tree\"\n\
                [policies.parameters.prefetch_tenant_tree]\nnormal = 101\n";
    let said = reasons(&means_of(text, &stock("uvm_perf_prefetch_threshold", "101")));
    assert!(said.contains("beyond 1 to 100"), "{said}");
}

#[test]
fn a_policy_that_does_both_has_a_parameter_for_one() {
    let text = "[policies]\neviction = \"combined_max_2q\"\nprefetch = \"combined_max_2q\"\n";
    let facts = stock("uvm_perf_prefetch_threshold", "1");
    let all = standings(&configured(text), &facts, &Running::default());
    assert!(reasons(&all[0].means).contains("no parameter of the stock driver"), "{all:?}");
    assert!(matches!(all[1].means, Means::Parameter { value: 1, .. }), "{all:?}");
}

#[test]
fn a_policy_without_a_parameter_says_so() {
    let text = "[policies]\nprefetch = \"prefetch_stride\"\n";
    let said = reasons(&means_of(text, &stock("uvm_perf_prefetch_threshold", "51")));
    assert!(said.contains("does what prefetch_stride does"), "{said}");
}

#[test]
fn a_threshold_is_nothing_where_prefetching_is_off() {
    let text = "[policies]\nprefetch = \"prefetch_always_max\"\n";
    let mut facts = stock("uvm_perf_prefetch_threshold", "1");
    assert!(matches!(means_of(text, &facts), Means::Parameter { value: 1, .. }));
    facts.parameters.insert("uvm_perf_prefetch_enable".into(), "0".into());
    let said = reasons(&means_of(text, &facts));
    assert!(said.contains("so that nothing is prefetched"), "{said}");
}

#[test]
fn a_driver_without_the_parameter_says_so() {
    let text = "[policies]\nprefetch = \"prefetch_none\"\n";
    let said = reasons(&means_of(text, &stock("uvm_perf_prefetch_threshold", "51")));
    assert!(said.contains("no parameter uvm_perf_prefetch_enable"), "{said}");
}

#[test]
fn an_attached_policy_is_not_in_force_where_nobody_asks_it() {
    // What a stock driver makes of a loaded policy; the parameter counts in its place.
    let text = "[policies]\nprefetch = \"prefetch_none\"\n";
    let attached = running("attached prefetch_none\n");
    let facts = stock("uvm_perf_prefetch_enable", "1");
    let means = standings(&configured(text), &facts, &attached).remove(0).means;
    assert!(reasons(&means).contains("asks no policy"), "{means:?}");
}

#[test]
fn the_order_of_loading_says_whether_a_patched_module_asks() {
    let facts = |modules: &[(&str, Option<bool>)]| Facts {
        modules: modules.iter().map(|(name, is_patched)| loaded(name, *is_patched)).collect(),
        ..Facts::default()
    };
    let uvm = |modules| facts(modules).asks("nvidia_uvm");
    assert_eq!(uvm(&[]), Asks::NotLoaded);
    assert_eq!(uvm(&[("nvidia_uvm", None)]), Asks::Unknown);
    assert_eq!(uvm(&[("nvidia_uvm", Some(false)), ("sluice_gpu", Some(true))]), Asks::Stock);
    assert_eq!(uvm(&[("nvidia_uvm", Some(true))]), Asks::WithoutSluice);
    // The newest is first.
    assert_eq!(uvm(&[("nvidia_uvm", Some(true)), ("sluice_gpu", Some(true))]), Asks::Yes);
    assert_eq!(uvm(&[("sluice_gpu", Some(true)), ("nvidia_uvm", Some(true))]), Asks::TooEarly);
}

#[test]
fn releases_are_told_from_the_versions_of_interfaces() {
    for word in ["550.163.01", "565.77", "595.45.04"] {
        assert!(is_release(word), "{word}");
    }
    for word in ["1", "12.2.0", "x86_64", "550", "550.", "550.163.01-2", ""] {
        assert!(!is_release(word), "{word}");
    }
}
