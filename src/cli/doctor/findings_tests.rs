// SPDX-License-Identifier: MIT OR Apache-2.0
//! Findings from facts made up here; no file is read.

use super::*;

/// Takes something away from an able machine.
type Without = fn(&mut Facts);

fn able() -> Facts {
    Facts {
        kernel: Some("6.12.95+deb12-amd64".into()),
        nbd: Module::Installed,
        capabilities: Some(u64::MAX),
        ..Facts::default()
    }
}

#[test]
fn each_thing_that_attaching_needs_is_missed_alone() {
    assert!(conclude(&able()).can_attach());
    let without: [(&str, Without); 6] = [
        ("kernel", |facts| facts.kernel = None),
        ("kernel", |facts| facts.kernel = Some("5.13.0".into())),
        ("nbd", |facts| facts.nbd = Module::Absent),
        ("nbd", |facts| facts.nbd = Module::Unknown),
        ("capabilities", |facts| facts.capabilities = None),
        ("capabilities", |facts| facts.capabilities = Some(!(1 << 24))),
    ];
    for (topic, take) in without {
        let mut facts = able();
        take(&mut facts);
        let report = conclude(&facts);
        assert!(!report.can_attach(), "{topic}");
        assert_eq!(report.abilities[1].missing, [topic]);
    }
}

#[test]
fn every_no_and_every_warning_has_a_next_step() {
    let facts = Facts { memlock: Some(Memlock::Bytes(8 << 20)), ..Facts::default() };
    for report in [conclude(&facts), conclude(&able())] {
        for finding in report.findings {
            let must = matches!(finding.verdict, Verdict::No | Verdict::Warning);
            assert!(!must || finding.next.is_some(), "{finding:?}");
        }
    }
}
