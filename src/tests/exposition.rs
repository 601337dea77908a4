// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Prometheus reads, against golden pages, the format's rules and the
//! documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sluice::engine::view::{ControlState, Status, metrics};

use super::{TREES, expect, sluice, store_that_says};

const REPLY: &str = include_str!("trees/status/reply.json");

fn control() -> ControlState {
    ControlState {
        goal: "closed".to_owned(),
        rule: "battery".to_owned(),
        progress: "moving".to_owned(),
        enabled: true,
        running: true,
        target_bytes: 2 << 30,
        leased_bytes: 64 << 20,
        on_battery: true,
        battery_level: Some(41),
        ..ControlState::default()
    }
}

fn all() -> String {
    let status: Status = serde_json::from_str(REPLY).unwrap();
    metrics::text(Some(&status), Some(&control()))
}

/// A family of samples, and what its head says.
struct Family {
    kind: String,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads a page as the format's description has it, and stricter: every family
/// has its help and its type, in this order, and all of its samples in one place.
fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'), "the last line has no end");
    let mut families = BTreeMap::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        assert!(is_name(name) && !help.is_empty(), "{line}");
        let line = lines.next().unwrap();
        let kind =
            line.strip_prefix(&format!("# TYPE {name} ")).unwrap_or_else(|| panic!("{line}"));
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let sample = sample(line);
            let suffix = sample.name.strip_prefix(name).unwrap_or_else(|| panic!("{name}: {line}"));
            let suffixes =
                if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            samples.push(sample);
        }
        let family = Family { kind: kind.to_owned(), samples };
        assert!(families.insert(name.to_owned(), family).is_none(), "{name} is there twice");
    }
    families
}

fn is_name(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `name{label="value",...} value`.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while let Some((label, quoted)) = rest.split_once("=\"") {
            assert!(is_name(label), "{line}");
            let (mut value, mut escaped, mut end) = (String::new(), false, None);
            for (at, c) in quoted.char_indices() {
                match (escaped, c) {
                    (false, '"') => {
                        end = Some(at + 1);
                        break;
                    }
                    (false, '\\') => escaped = true,
                    (true, 'n') => (escaped, value) = (false, value + "\n"),
                    (true, '\\' | '"') | (false, _) => {
                        escaped = false;
                        value.push(c);
                    }
                    (true, _) => panic!("{line}"),
                }
            }
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            rest = &quoted[end.unwrap_or_else(|| panic!("{line}"))..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok());
    Sample { name: name.to_owned(), labels, value: value.unwrap_or_else(|| panic!("{line}")) }
}

#[test]
fn the_page_is_as_it_was() {
    expect(&Path::new(TREES).join("metrics/all"), &all());
    let control = control();
    expect(&Path::new(TREES).join("metrics/no-store"), &metrics::text(None, Some(&control)));
}

#[test]
fn the_page_keeps_the_rules_of_its_format() {
    let families = parse(&all());
    assert!(families.len() > 40, "{} families", families.len());
    for (name, Family { kind, samples }) in &families {
        assert!(!samples.is_empty(), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        for unit in ["_us", "_ms", "_ns", "_kib", "_mib", "_pages", "_percent", "_count", "_sum"] {
            assert!(!name.ends_with(unit), "{name} is not in a base unit");
        }
        let keys: BTreeSet<_> =
            samples.iter().map(|sample| (&sample.name, &sample.labels)).collect();
        assert_eq!(keys.len(), samples.len(), "{name} has a sample twice");
        match kind.as_str() {
            "counter" => assert!(samples.iter().all(|sample| sample.value >= 0.0), "{name}"),
            "gauge" => {}
            "histogram" => check_histograms(name, samples),
            other => panic!("{name} is a {other}"),
        }
    }
}

/// Of each tier: buckets that rise with their bound up to the count of all.
fn check_histograms(name: &str, samples: &[Sample]) {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for (labels, samples) in series {
        let [buckets @ .., sum, count] = &samples[..] else { panic!("{name}: {labels:?}") };
        assert_eq!(sum.name, format!("{name}_sum"));
        assert_eq!(count.name, format!("{name}_count"));
        let points: Vec<(f64, f64)> = buckets
            .iter()
            .map(|bucket| (bucket.labels["le"].parse().unwrap(), bucket.value))
            .collect();
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(points.last(), Some(&(f64::INFINITY, count.value)), "{name}: {labels:?}");
    }
}

#[test]
fn the_histograms_are_the_store_s_own() {
    let families = parse(&all());
    let value = |name: &str, le: Option<&str>| {
        let family = &families["sluice_tier_read_duration_seconds"];
        let is_it = |sample: &&Sample| {
            let bound = sample.labels.get("le").map(String::as_str);
            sample.name.ends_with(name) && sample.labels["tier"] == "cuda:0" && bound == le
        };
        family.samples.iter().find(is_it).unwrap().value
    };
    let below = ["0.000004", "0.000008", "0.000128", "16.777216", "+Inf"];
    let counts = below.map(|le| value("_bucket", Some(le)));
    assert_eq!(counts.to_vec(), [0.0, 1000.0, 1200.0, 1200.0, 1200.0]);
    assert_eq!((value("_count", None), value("_sum", None)), (1200.0, 0.009_876_543));
}

#[test]
fn the_documentation_names_every_metric_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/how-to/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, tables) = text.split_once("## What each means").unwrap();
    let named: BTreeSet<&str> = tables
        .split('`')
        .filter_map(|word| word.split('{').next())
        .filter(|word| word.starts_with("sluice_"))
        .collect();
    let page = all();
    let families = parse(&page);
    assert_eq!(named, families.keys().map(String::as_str).collect());
}

#[test]
fn status_prints_the_page_and_that_nobody_answers() {
    const LINE: &str = concat!(include_str!("trees/status/reply.json"), "\n");
    let dir = tempfile::tempdir().unwrap();
    let (socket, store) = store_that_says(dir.path(), LINE);
    let printed = sluice(&["status", "--metrics", "--socket", socket.to_str().unwrap()]);
    store.join().unwrap();
    assert_eq!((printed.code, &*printed.stderr), (0, ""));
    let status: Status = serde_json::from_str(REPLY).unwrap();
    assert_eq!(printed.stdout, metrics::text(Some(&status), None));

    let down = sluice(&["status", "--metrics", "--socket", "/nonexistent"]);
    assert_eq!((down.code, down.stdout), (0, metrics::text(None, None)));
    assert!(down.stderr.contains("cannot reach the store"), "{}", down.stderr);
}
