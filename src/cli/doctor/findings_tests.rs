// SPDX-License-Identifier: MIT OR Apache-2.0
//! Findings from facts made up here; no file is read.

use super::*;
use crate::cli::doctor::facts::Vulkan;
use crate::cli::doctor::gpus::Gpu;
use crate::engine::gpu::Offer;

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

#[test]
fn vulkan_is_asked_only_where_no_gpu_sleeps_and_says_what_the_cpu_reaches() {
    let gpu = Gpu {
        address: "0000:01:00.0".into(),
        vendor: 0x10de,
        device: 0x2684,
        driver: Some("nvidia".into()),
        asleep: false,
        power_control: None,
        window_bytes: Some(32 << 30),
        resizable: true,
    };
    let mut facts = Facts { vulkan_loader: Some("/usr/lib/libvulkan.so.1".into()), ..able() };
    assert!(!facts.may_ask_vulkan(), "there is no GPU");
    facts.gpus = vec![gpu.clone()];
    assert!(facts.may_ask_vulkan());
    facts.gpus.push(Gpu { asleep: true, ..gpu });
    assert!(!facts.may_ask_vulkan());
    let offer = |mapped: Option<u64>, own| Offer {
        number: 0,
        description: "0 (A card)".into(),
        driver: "A driver".into(),
        mapped: mapped.map(|gib| ByteLen(gib << 30)),
        plain: Some(ByteLen(24 << 30)),
        own,
        software: !own,
        stays: true,
    };
    let offers = vec![offer(Some(16), true), offer(None, true), offer(Some(8), false)];
    facts.vulkan = Some(Vulkan::Offers(offers));
    let said: Vec<_> = conclude(&facts)
        .findings
        .into_iter()
        .filter(|finding| finding.topic == "gpu memory")
        .map(|finding| finding.text)
        .collect();
    assert_eq!(
        said,
        [
            "GPU 0 (A card), A driver: a heap of 16 GiB that the CPU reaches",
            "GPU 0 (A card), A driver: 24 GiB, and the CPU reaches none of it",
        ]
    );
}
