// SPDX-License-Identifier: MIT OR Apache-2.0
//! sluiced on a private bus, with a store that serves a socket: what clients may
//! do, what power and sleep do, and that it may end at any time.

mod bus_support;
mod bus_tray;

use std::path::Path;
use std::process::{Child, Command, Output};

use bus_support::{Bed, FULL, SLUICE};
use futures_lite::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: u64 = 1 << 20;

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn unplugged_it_drains_and_closes_and_plugged_it_comes_back() {
    let bed = Bed::new("").await;
    assert_eq!(bed.store(), Some((FULL, true)));
    bed.set_on_battery(true).await;
    bed.until_store("all is given back", |store| store == Some((0, false))).await;
    let why = json(&bed.sluice(&["explain", "--json"]).await);
    assert_eq!((&why["rule"], &why["goal"]), (&"battery".into(), &"closed".into()), "{why}");
    bed.set_on_battery(false).await;
    bed.until_store("it is lent again", |store| store == Some((FULL, true))).await;
}

#[tokio::test]
async fn a_manual_off_stays_off_whatever_happens() {
    let mut bed = Bed::new("").await;
    let off = json(&bed.sluice(&["off", "--json"]).await);
    assert_eq!((&off["goal"], &off["running"]), (&"off".into(), &false.into()), "{off}");
    assert!(!bed.systemd.is_running());
    for on_battery in [true, false] {
        bed.set_on_battery(on_battery).await;
        let seen = |state: &sluice::engine::view::ControlState| state.on_battery == on_battery;
        bed.until_state("the power is seen", seen).await;
        assert!(!bed.systemd.is_running());
    }
    // Another process, and a store that somebody started: it goes off again.
    bed.kill_sluiced();
    bed.systemd.start();
    bed.start_sluiced_and_wait(|state| !state.running).await;
    bus_support::until("it is off again", || !bed.systemd.is_running()).await;
    let on = json(&bed.sluice(&["on", "--json"]).await);
    assert_eq!(on["enabled"], true, "{on}");
    bed.until_store("it is on", |store| store == Some((FULL, true))).await;
}

#[tokio::test]
async fn polkit_is_asked_about_the_caller_and_its_word_counts() {
    let bed = Bed::new("").await;
    bed.polkit.allowed.lock().unwrap().clear();
    let target = ["uint64:67108864"];
    let refused = bed.nobody_calls("SetTarget", &target).await.unwrap_err();
    assert!(refused.contains("org.sluice.Sluice1.Error.Denied"), "{refused}");
    assert_eq!(bed.store(), Some((FULL, true)));
    bed.polkit.allowed.lock().unwrap().insert("org.sluice.toggle".to_owned(), true);
    // One permission is not the other.
    bed.nobody_calls("SetTarget", &target).await.unwrap_err();
    bed.nobody_calls("Suspend", &[]).await.unwrap();
    bed.until_store("it is suspended", |store| store == Some((0, false))).await;
    bed.nobody_calls("Resume", &[]).await.unwrap();
    bed.polkit.allowed.lock().unwrap().insert("org.sluice.target".to_owned(), true);
    bed.nobody_calls("SetTarget", &target).await.unwrap();
    bed.until_store("the target is set", |store| store == Some((64 * MIB, true))).await;
    let asked = bed.polkit.asked.lock().unwrap().clone();
    let actions: Vec<&str> = asked.iter().map(|(action, _)| action.as_str()).collect();
    let (toggle, target) = ("org.sluice.toggle", "org.sluice.target");
    assert_eq!(actions, [target, target, toggle, toggle, target]);
    // Each caller had a connection of its own.
    let names: std::collections::BTreeSet<_> = asked.iter().map(|(_, name)| name).collect();
    assert_eq!(names.len(), asked.len(), "{asked:?}");
    // Everybody may look.
    bed.nobody_calls("Explain", &[]).await.unwrap();
}

#[tokio::test]
async fn without_polkit_nobody_but_root_is_let_in() {
    let bed = Bed::with("", false).await;
    for (method, words) in
        [("Enable", &[][..]), ("Disable", &[]), ("Reserve", &["uint64:1", "uint32:0"])]
    {
        let refused = bed.nobody_calls(method, words).await.unwrap_err();
        assert!(refused.contains("org.sluice.Sluice1.Error.Denied"), "{method}: {refused}");
    }
    assert_eq!(bed.store(), Some((FULL, true)));
}

#[tokio::test]
async fn the_store_does_not_notice_that_sluiced_dies_and_comes_back() {
    let mut bed = Bed::new("").await;
    json(&bed.sluice(&["target", "64M", "--json"]).await);
    let before = bed.status().unwrap();
    bed.kill_sluiced();
    assert_eq!(bed.store(), Some((64 * MIB, true)));
    // What happened meanwhile is seen, and what was asked for is not forgotten.
    bed.set_on_battery(true).await;
    bed.start_sluiced().await;
    bed.until_store("battery holds", |store| store == Some((0, false))).await;
    bed.set_on_battery(false).await;
    bed.until_store("the target holds", |store| store == Some((64 * MIB, true))).await;
    assert_eq!(bed.status().unwrap().pid, before.pid);
    json(&bed.sluice(&["target", "default", "--json"]).await);
    assert_eq!(bed.store(), Some((FULL, true)));
}

#[tokio::test]
async fn a_second_sluiced_ends_at_once_and_says_why() {
    let bed = Bed::new("").await;
    let mut second = bed.sluiced_command();
    let ended = tokio::task::spawn_blocking(move || second.output().unwrap()).await.unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
    assert!(said(&ended).contains("another sluiced runs"), "{}", said(&ended));
    assert_eq!(bed.store(), Some((FULL, true)));
}

#[tokio::test]
async fn a_store_that_comes_back_is_told_what_holds() {
    let bed = Bed::new("").await;
    json(&bed.sluice(&["target", "64M", "--json"]).await);
    bed.systemd.kill();
    bed.until_state("it is missed", |state| !state.running).await;
    // Somebody else stopped it: nobody here starts it.
    assert!(!bed.systemd.is_running());
    bed.systemd.start();
    bed.until_store("the target holds", |store| store == Some((64 * MIB, true))).await;
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_its_command() {
    let bed = Bed::new("").await;
    let look = format!("{SLUICE} status --json --socket {}; exit 7", bed.socket());
    let ran = bed.sluice(&["reserve", "64M", "--", "sh", "-c", &look]).await;
    assert_eq!(ran.status.code(), Some(7), "{}", said(&ran));
    let within: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(within["tiers"][0]["target_bytes"], 64 * MIB, "{within}");
    bed.until_store("it is lent again", |store| store == Some((FULL, true))).await;

    let ran = bed.sluice(&["reserve", "all", "--", "sh", "-c", &look]).await;
    assert_eq!(ran.status.code(), Some(7), "{}", said(&ran));
    let within: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(within["tiers"][0]["target_bytes"], 0, "{within}");
    bed.until_store("it is lent again", |store| store == Some((FULL, true))).await;

    let refused = bed.sluice(&["reserve", "1G", "--", "true"]).await;
    assert_eq!(refused.status.code(), Some(125));
    let text = said(&refused);
    assert!(text.contains("1 GiB cannot be reserved") && text.contains("next: "), "{text}");
    let missing = bed.sluice(&["reserve", "64M", "--", "/nonexistent/command"]).await;
    assert_eq!(missing.status.code(), Some(127), "{}", said(&missing));
}

/// Starts `sluice tenant hold` as systemd would; gives it and what it tells systemd.
async fn hold(bed: &Bed, tenant: &str) -> (Child, String) {
    let place = bed.at("notify");
    let _ = std::fs::remove_file(&place);
    let socket = tokio::net::UnixDatagram::bind(&place).unwrap();
    let config = bed.at("sluice.toml");
    let child = Command::new(SLUICE)
        .env("DBUS_SYSTEM_BUS_ADDRESS", bed.address())
        .env("NOTIFY_SOCKET", &place)
        .args(["tenant", "hold", tenant, "--config"])
        .arg(config)
        .spawn()
        .unwrap();
    let mut told = [0; 1024];
    let length = socket.recv(&mut told).await.unwrap();
    (child, String::from_utf8(told[..length].to_vec()).unwrap())
}

const TENANTS: &str = "[tenants.llm]\nunit = \"llm.service\"\nmemory.min = \"64M\"\n\
    [tenants.large]\nunit = \"large.service\"\nmemory.min = \"1G\"\nwithin_s = 5\n";

#[tokio::test]
async fn a_tenant_has_its_floor_for_as_long_as_it_is_held() {
    let mut bed = Bed::new(TENANTS).await;
    let (mut llm, told) = hold(&bed, "llm").await;
    assert!(told.contains("READY=1") && told.contains("64 MiB to llm.service"), "{told}");
    assert_eq!(bed.store(), Some((64 * MIB, true)), "it is ready before it has its floor");
    // Another one gets what is left, and is told what is not the store's.
    let (mut large, told) = hold(&bed, "large").await;
    assert!(told.contains("64 MiB to large.service; 960 MiB more"), "{told}");
    assert_eq!(bed.store().map(|store| store.0), Some(0));
    large.kill().unwrap();
    large.wait().unwrap();
    bed.until_store("what the other had is lent again", |store| {
        store.is_some_and(|store| store.0 == 64 * MIB)
    })
    .await;
    // Over the end of the control plane too.
    bed.kill_sluiced();
    bed.start_sluiced_and_wait(|state| state.leased_bytes == 64 * MIB).await;
    llm.kill().unwrap();
    llm.wait().unwrap();
    bed.until_store("all is lent again", |store| store == Some((FULL, true))).await;
}

#[tokio::test]
async fn a_tenant_that_cannot_have_its_floor_is_told_why() {
    let bed = Bed::new(TENANTS).await;
    let config = bed.at("sluice.toml").display().to_string();
    let unknown = bed.sluice(&["tenant", "hold", "lm", "--config", &config]).await;
    assert_eq!(unknown.status.code(), Some(2), "{}", said(&unknown));
    assert!(said(&unknown).contains("there are large, llm"), "{}", said(&unknown));
    let drop_in = bed.sluice(&["tenant", "unit", "llm", "--config", &config]).await;
    let text = said(&drop_in);
    assert!(text.contains("[Unit]\nRequires=sluice-reserve@llm.service\nAfter="), "{text}");
    let listed = json(&bed.sluice(&["tenant", "list", "--json", "--config", &config]).await);
    assert_eq!(listed[0]["name"], "large", "{listed}");
    let bytes = |key: &str| listed[0][key].as_u64().unwrap() / MIB;
    assert_eq!((bytes("floor_bytes"), bytes("from_store_bytes")), (1024, 128), "{listed}");
    assert_eq!(bytes("beside_bytes"), 896, "{listed}");
}

#[tokio::test]
async fn sleep_waits_until_the_gpu_memory_is_given_back() {
    let bed = Bed::new("").await;
    bus_support::until("sleep is held", || bed.logind.is_held()).await;
    bed.prepare_for_sleep(true).await;
    bus_support::until("sleep is let go", || !bed.logind.is_held()).await;
    assert_eq!(bed.store(), Some((0, false)));
    bed.prepare_for_sleep(false).await;
    bus_support::until("sleep is held again", || bed.logind.is_held()).await;
    bed.until_store("it is lent again", |store| store == Some((FULL, true))).await;
}

#[tokio::test]
async fn a_configuration_is_read_anew_or_refused_whole() {
    let bed = Bed::new("[battery]\non_battery = \"keep\"").await;
    bed.set_on_battery(true).await;
    bed.until_state("the power is seen", |state| state.on_battery).await;
    assert_eq!(bed.store(), Some((FULL, true)));
    let mut notices = bed.notices().await;
    bed.configure("[battery]\non_battery = \"stop\"\nthreshold = 101");
    bed.hang_up_sluiced();
    let notice = notices.next().await.unwrap().unwrap();
    let (urgent, text): (bool, String) = notice.body().deserialize().unwrap();
    assert!(urgent && text.ends_with("is refused; the one before stays in force"), "{text}");
    assert_eq!(bed.store(), Some((FULL, true)));
    bed.configure("[battery]\non_battery = \"shrink\"\nshrink_to = \"64M\"");
    bed.hang_up_sluiced();
    bed.until_store("it shrinks", |store| store == Some((64 * MIB, true))).await;
}

/// The page, as Prometheus would get it.
async fn scrape(socket: &Path) -> String {
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, page) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    page.to_owned()
}

#[tokio::test]
async fn prometheus_reads_store_and_control_plane_as_they_are_now() {
    let bed = Bed::new("").await;
    let socket = bed.at("metrics");
    bed.configure(&format!("[metrics]\nlisten = \"unix:{}\"", socket.display()));
    bed.hang_up_sluiced();
    bus_support::until("it listens", || socket.exists()).await;
    let page = scrape(&socket).await;
    for line in [
        "sluice_store_up 1",
        "sluice_tier_target_bytes{tier=\"ram\",kind=\"fast\"} 134217728",
        "sluice_control_rule{rule=\"configured\"} 1",
        "sluice_control_on_battery 0",
        "sluice_control_target_bytes 134217728",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    // At once, and not when the control plane has looked again.
    bed.systemd.kill();
    let page = scrape(&socket).await;
    let of_store: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("sluice_") && !line.starts_with("sluice_control_"))
        .collect();
    assert_eq!(of_store, ["sluice_store_up 0"]);
    assert!(!page.contains("sluice_control_target_bytes"), "{page}");
    bed.configure("");
    bed.hang_up_sluiced();
    bus_support::until("it listens no more", || !socket.exists()).await;
}

#[tokio::test]
async fn the_status_says_what_sluiced_has_not_read_yet() {
    let mut bed = Bed::new("[battery]\nthreshold = 80").await;
    let socket = bed.store_with_a_file();
    let words = ["status", "--json", "--socket", &*socket];
    let pending = |ran: &Output| json(ran)["pending"].clone();
    let nothing = serde_json::json!([]);
    let told = pending(&bed.sluice(&words).await);
    assert_eq!((&told["sluiced"], &told["changes"]), (&true.into(), &nothing), "{told}");
    bed.configure("[battery]\nthreshold = 40\n[log]\nlevel = \"debug\"");
    let told = pending(&bed.sluice(&words).await);
    let effects = |told: &serde_json::Value| -> Vec<String> {
        let changes = told["changes"].as_array().unwrap();
        changes.iter().map(|c| format!("{} {}", c["key"], c["effect"]).replace('"', "")).collect()
    };
    let all =
        ["log.level store-start", "battery.threshold control-reload", "log.level control-restart"];
    assert_eq!(effects(&told), all, "{told}");
    bed.hang_up_sluiced();
    let is_read = |state: &sluice::engine::view::ControlState| {
        state.settings.get("battery.threshold").is_some_and(|value| value == "40")
    };
    bed.until_state("it is read anew", is_read).await;
    let told = pending(&bed.sluice(&words).await);
    assert_eq!(effects(&told), [all[0], all[2]], "{told}");
    bed.kill_sluiced();
    let told = pending(&bed.sluice(&words).await);
    assert_eq!((&told["sluiced"], &told["problems"]), (&false.into(), &nothing), "{told}");
    assert_eq!(effects(&told), [all[0]], "{told}");
}

#[tokio::test]
async fn without_sluiced_the_store_itself_is_asked() {
    let mut bed = Bed::new("").await;
    bed.kill_sluiced();
    let socket = bed.socket();
    let ran = bed.sluice(&["target", "64M", "--json", "--socket", &socket]).await;
    assert_eq!(json(&ran)["target_bytes"], 64 * MIB);
    assert!(said(&ran).contains("sluiced does not run"), "{}", said(&ran));
    let look = format!("{SLUICE} status --json --socket {socket}");
    let ran = bed.sluice(&["reserve", "64M", "--socket", &socket, "--", "sh", "-c", &look]).await;
    assert_eq!(json(&ran)["tiers"][0]["target_bytes"], 0);
    bed.until_store("it may hold as before", |store| store == Some((64 * MIB, true))).await;
    let explained = bed.sluice(&["explain"]).await;
    assert_eq!(explained.status.code(), Some(1));
    assert!(said(&explained).contains("next: start it"), "{}", said(&explained));
}

#[test]
fn the_description_in_the_package_is_the_services_own() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("nixos-module/dbus/org.sluice.Sluice1.xml");
    let described = format!(
        "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
         \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n\
         <!-- /org/sluice/Sluice1 -->\n<node>\n{}</node>\n<!-- \
         /org/sluice/Sluice1/device/NAME -->\n<node>\n{}</node>\n",
        sluice::bus::manager::introspection(),
        sluice::bus::device::introspection()
    );
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &described).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, described, "BLESS=1 cargo test --test bus");
}

#[test]
fn every_permission_has_its_action_in_the_policy_file() {
    use sluice::bus::authority::Permission;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("nixos-module");
    let policy = std::fs::read_to_string(folder.join("polkit/org.sluice.policy")).unwrap();
    for permission in [Permission::Toggle, Permission::Target] {
        let id = format!("<action id=\"{}\">", permission.action());
        assert!(policy.contains(&id), "{id}");
    }
}

#[test]
fn nothing_of_the_bus_is_in_the_store() {
    let holds = |program: &str, words: &str| {
        let bytes = std::fs::read(program).unwrap();
        bytes.windows(words.len()).any(|window| window == words.as_bytes())
    };
    let words = "org.freedesktop.PolicyKit1";
    assert!(holds(env!("CARGO_BIN_EXE_sluiced"), words));
    assert!(!holds(env!("CARGO_BIN_EXE_sluice-store"), words));
}
