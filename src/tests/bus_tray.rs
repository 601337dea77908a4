// SPDX-License-Identifier: MIT OR Apache-2.0
//! sluice-tray on a session bus of its own, with a host of trays and a shower of
//! notifications played here, beside a real sluiced and its store.
#![allow(
    clippy::used_underscore_binding,
    clippy::too_many_arguments,
    reason = "methods of interfaces that others defined"
)]

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use zbus::message::Message;
use zbus::zvariant::{DynamicType, OwnedValue, Structure, Value};
use zbus::{Connection, connection, interface};

use super::bus_support::{Bed, FULL, NOBODY, is_root, until};

const TRAY: &str = env!("CARGO_BIN_EXE_sluice-tray");
const WATCHER: &str = "org.kde.StatusNotifierWatcher";

/// Who registered with the host.
#[derive(Clone, Default)]
struct Host(Arc<Mutex<Vec<String>>>);

#[interface(name = "org.kde.StatusNotifierWatcher")]
impl Host {
    fn register_status_notifier_item(&self, service: &str) {
        self.0.lock().unwrap().push(service.to_owned());
    }
}

/// The id that was replaced, summary, body and icon.
type Notification = (u32, String, String, String);

/// What was shown.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<Vec<Notification>>>);

#[interface(name = "org.freedesktop.Notifications")]
impl Shown {
    fn notify(
        &self,
        _app: &str,
        replaces: u32,
        icon: &str,
        summary: &str,
        body: &str,
        _actions: Vec<String>,
        _hints: HashMap<String, OwnedValue>,
        _expires: i32,
    ) -> u32 {
        let mut shown = self.0.lock().unwrap();
        shown.push((replaces, summary.to_owned(), body.to_owned(), icon.to_owned()));
        if replaces == 0 { shown.len() as u32 } else { replaces }
    }
}

/// A desktop session; nothing is in it at first but notifications.
struct Session {
    folder: tempfile::TempDir,
    bus: Child,
    desktop: Connection,
    host: Host,
    shown: Shown,
}

impl Session {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another user is to reach the bus.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = folder.path().join("bus");
        let config = folder.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen>\
             <policy context=\"default\"><allow user=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/>\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let config = format!("--config-file={}", config.display());
        let bus = Command::new("dbus-daemon").arg("--nofork").arg(config).spawn().unwrap();
        until("the session's bus listens", || UnixStream::connect(&socket).is_ok()).await;
        let shown = Shown::default();
        let desktop = connection::Builder::address(&*format!("unix:path={}", socket.display()))
            .and_then(|builder| builder.serve_at("/org/freedesktop/Notifications", shown.clone()))
            .and_then(|builder| builder.name("org.freedesktop.Notifications"))
            .unwrap();
        let desktop = desktop.build().await.unwrap();
        Self { folder, bus, desktop, host: Host::default(), shown }
    }

    /// The panel starts.
    async fn start_host(&self) {
        self.desktop.object_server().at("/StatusNotifierWatcher", self.host.clone()).await.unwrap();
        self.desktop.request_name(WATCHER).await.unwrap();
    }

    fn tray(&self, bed: &Bed, words: &[&str]) -> Tray {
        self.start(bed, Command::new(TRAY), words)
    }

    /// As a user whom polkit is asked about, where the tests may choose who that is.
    fn tray_of_nobody(&self, bed: &Bed) -> Tray {
        let program = self.folder.path().join("sluice-tray");
        // It cannot be reached where it was built.
        if std::fs::hard_link(TRAY, &program).is_err() {
            std::fs::copy(TRAY, &program).unwrap();
        }
        let mut command = Command::new(program);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        self.start(bed, command, &[])
    }

    fn start(&self, bed: &Bed, mut command: Command, words: &[&str]) -> Tray {
        command
            .env("DBUS_SYSTEM_BUS_ADDRESS", bed.address())
            .env("DBUS_SESSION_BUS_ADDRESS", self.address())
            .args(words)
            .stderr(Stdio::piped());
        Tray {
            desktop: self.desktop.clone(),
            host: self.host.clone(),
            child: command.spawn().unwrap(),
        }
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.folder.path().join("bus").display())
    }

    fn bodies(&self) -> Vec<String> {
        self.shown
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, summary, body, _)| format!("{summary}: {body}"))
            .collect()
    }

    async fn until_said(&self, words: &str) {
        until(words, || self.bodies().iter().any(|body| body.contains(words))).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.bus.kill();
        let _ = self.bus.wait();
    }
}

/// An entry of a menu, as it travels.
type Item = (i32, HashMap<String, OwnedValue>, Vec<OwnedValue>);

struct Tray {
    desktop: Connection,
    host: Host,
    child: Child,
}

impl Tray {
    /// Asks the item, once the host has heard of it.
    async fn call<B>(&self, path: &str, interface: &str, method: &str, words: &B) -> Message
    where
        B: serde::Serialize + DynamicType,
    {
        until("it registers", || !self.host.0.lock().unwrap().is_empty()).await;
        let name = self.host.0.lock().unwrap().last().unwrap().clone();
        let asked =
            self.desktop.call_method(Some(&*name), path, Some(interface), method, words).await;
        asked.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn property(&self, name: &str) -> String {
        let (path, interface) = ("/StatusNotifierItem", "org.freedesktop.DBus.Properties");
        let reply = self.call(path, interface, "Get", &("org.kde.StatusNotifierItem", name)).await;
        String::try_from(reply.body().deserialize::<OwnedValue>().unwrap()).unwrap()
    }

    /// Waits for the icon, with a title that ends so.
    async fn until_shown(&self, icon: &str, title: &str) {
        let begun = std::time::Instant::now();
        loop {
            let seen = (self.property("IconName").await, self.property("Title").await);
            if seen.0 == icon && seen.1.ends_with(title) {
                return;
            }
            assert!(begun.elapsed().as_secs() < 60, "never: {icon}, {title}: {seen:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    async fn until_in_menu(&self, label: &str) {
        let begun = std::time::Instant::now();
        loop {
            let menu = self.menu().await;
            if menu.iter().any(|(_, found, _)| found.starts_with(label)) {
                return;
            }
            assert!(begun.elapsed().as_secs() < 60, "never: {label}: {menu:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// The menu's labels by their ids, and whether each can be clicked.
    async fn menu(&self) -> Vec<(i32, String, bool)> {
        let none: &[&str] = &[];
        let words = (0_i32, -1_i32, none);
        let reply = self.call("/MenuBar", "com.canonical.dbusmenu", "GetLayout", &words).await;
        let (_revision, (_, _, items)): (u32, Item) = reply.body().deserialize().unwrap();
        items
            .into_iter()
            .map(|item| {
                let item = Structure::try_from(item).unwrap();
                let (id, mut words, _): Item = item.try_into().unwrap();
                let label = words.remove("label").map(|label| String::try_from(label).unwrap());
                let is_off = words
                    .remove("enabled")
                    .is_some_and(|enabled| !bool::try_from(enabled).unwrap());
                (id, label.unwrap_or_default(), !is_off)
            })
            .collect()
    }

    /// Clicks what begins so, once it can be clicked.
    async fn click(&self, label: &str) {
        let begun = std::time::Instant::now();
        let id = loop {
            let menu = self.menu().await;
            let found =
                menu.iter().find(|(_, found, enabled)| found.starts_with(label) && *enabled);
            if let Some((id, ..)) = found {
                break *id;
            }
            assert!(begun.elapsed().as_secs() < 60, "never: {label}: {menu:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        let words = (id, "clicked", Value::from(0_i32), 0_u32);
        self.call("/MenuBar", "com.canonical.dbusmenu", "Event", &words).await;
    }

    /// Waits for its end: its exit code and what it said.
    async fn ends(&mut self) -> (Option<i32>, String) {
        use std::io::Read;
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        let read = tokio::task::spawn_blocking(move || {
            errors.read_to_string(&mut said).unwrap();
            said
        });
        let said = read.await.unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Tray {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How much is held is the store's to choose.
const LENT: &str = "of GPU memory lent";

#[tokio::test]
async fn a_click_does_what_it_says_and_is_seen() {
    let (bed, session) = (Bed::new("").await, Session::new().await);
    session.start_host().await;
    let tray = session.tray(&bed, &[]);
    tray.until_shown("sluice-on", LENT).await;
    tray.click("Lend idle").await;
    until("the store is stopped", || !bed.systemd.is_running()).await;
    tray.until_shown("sluice-off", "Sluice: off").await;
    tray.click("Lend idle").await;
    tray.until_shown("sluice-on", LENT).await;

    tray.click("Give me the GPU for an hour").await;
    tray.until_shown("sluice-paused", "Sluice: 0 B of GPU memory lent").await;
    assert_eq!(bed.store(), Some((0, true)));
    tray.click("Lend it again now").await;
    tray.until_shown("sluice-on", LENT).await;

    tray.click("Why?").await;
    session.until_said("rule: configured").await;
    // A lease ends with the tray, however that ends.
    tray.click("Give me the GPU").await;
    bed.until_store("it is given back", |store| store == Some((0, true))).await;
    drop(tray);
    bed.until_store("it is lent again", |store| store == Some((FULL, true))).await;
}

#[tokio::test]
async fn a_refused_click_is_said_with_the_next_step_and_changes_nothing() {
    let (bed, session) = (Bed::new("").await, Session::new().await);
    bed.polkit.allowed.lock().unwrap().clear();
    session.start_host().await;
    let tray = session.tray_of_nobody(&bed);
    tray.until_shown("sluice-on", LENT).await;
    tray.click("Lend idle").await;
    session.until_said("Sluice cannot switch off: ").await;
    tray.click("Give me the GPU").await;
    session.until_said("Sluice cannot give you the GPU: ").await;
    assert!(
        session.bodies().iter().all(|body| body.contains("\nnext: ")),
        "{:?}",
        session.bodies()
    );
    // It can be asked for again, and nothing else happened.
    tray.click("Give me the GPU").await;
    tray.until_shown("sluice-on", LENT).await;
    assert!(bed.systemd.is_running());
    assert_eq!(bed.store(), Some((FULL, true)));
}

#[tokio::test]
async fn it_waits_for_a_tray_and_for_sluiced_and_takes_its_lease_again() {
    let (mut bed, session) = (Bed::new("").await, Session::new().await);
    bed.kill_sluiced();
    let tray = session.tray(&bed, &["--for", "60m"]);
    session.start_host().await;
    tray.until_shown("sluice-off", "Sluice: sluiced does not run").await;
    tray.click("Lend idle").await;
    session.until_said("next: start it: systemctl start sluiced").await;
    bed.start_sluiced().await;
    tray.until_shown("sluice-on", LENT).await;
    tray.click("Give me the GPU").await;
    bed.until_store("it is given back", |store| store == Some((0, true))).await;
    // Before that it has nothing that it could take again.
    tray.until_in_menu("The GPU is yours").await;
    bed.kill_sluiced();
    tray.until_shown("sluice-off", "Sluice: sluiced does not run").await;
    bed.start_sluiced().await;
    let state = bed.until_state("it is taken again", |state| state.leased_bytes == FULL).await;
    assert_eq!(state.rule, "leases");
}

#[tokio::test]
async fn a_lease_ends_after_its_time() {
    let (bed, session) = (Bed::new("").await, Session::new().await);
    session.start_host().await;
    let tray = session.tray(&bed, &["--for", "1s"]);
    tray.click("Give me the GPU for a minute").await;
    bed.until_state("it is taken", |state| state.leased_bytes == FULL).await;
    bed.until_state("it is lent again", |state| state.leased_bytes == 0).await;
    tray.click("Give me the GPU").await;
}

#[tokio::test]
async fn battery_stops_are_said_and_never_a_flood() {
    let (bed, session) = (Bed::new("").await, Session::new().await);
    session.start_host().await;
    let tray = session.tray(&bed, &[]);
    tray.until_shown("sluice-on", LENT).await;
    for _ in 0..4 {
        bed.set_on_battery(true).await;
        tray.until_shown("sluice-paused", "Sluice: 0 B of GPU memory lent").await;
        bed.set_on_battery(false).await;
        tray.until_shown("sluice-on", LENT).await;
    }
    session.until_said("on AC: GPU memory may be lent again").await;
    tray.click("Why?").await;
    session.until_said("rule: configured").await;
    // One after the other: what was said before the answer is here by now.
    let shown = session.shown.0.lock().unwrap().clone();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown[0].2.starts_with("on battery: "), "{shown:?}");
    // The second took the place of the first, the answer did not.
    assert_eq!([shown[0].0, shown[1].0, shown[2].0], [0, 1, 0]);
    // None of it is a fault, and a battery stop is nothing to show a green arrow with.
    assert!(shown.iter().all(|(.., icon)| icon == "sluice"), "{shown:?}");
}

#[tokio::test]
async fn a_second_one_ends_at_once_and_the_first_with_the_session() {
    let (bed, mut session) = (Bed::new("").await, Session::new().await);
    session.start_host().await;
    let mut first = session.tray(&bed, &[]);
    first.until_shown("sluice-on", LENT).await;
    let (code, said) = session.tray(&bed, &[]).ends().await;
    assert_eq!((code, &*said), (Some(0), "sluice-tray: it runs in this session already\n"));
    first.click("Quit").await;
    assert_eq!(first.ends().await.0, Some(0));

    session.host.0.lock().unwrap().clear();
    let mut third = session.tray(&bed, &[]);
    third.until_shown("sluice-on", LENT).await;
    session.bus.kill().unwrap();
    assert_eq!(third.ends().await, (Some(0), String::new()));
}

#[tokio::test]
async fn the_tray_reads_what_the_service_says_of_its_devices() {
    let session = Session::new().await;
    let device = |path: &str, on: Option<i32>| sluice::engine::view::Device {
        path: path.to_owned(),
        size_bytes: 8 << 30,
        swap_priority: on,
        swap_used_bytes: 1 << 30,
    };
    let devices = [device("/dev/nbd0", Some(1500)), device("/dev/nbd1", None)];
    session.desktop.object_server().at(sluice::bus::PATH, zbus::fdo::ObjectManager).await.unwrap();
    let mut shown = sluice::bus::device::Devices::default();
    shown.publish(&session.desktop, &devices).await.unwrap();
    session.desktop.request_name(sluice::bus::SERVICE).await.unwrap();
    let builder = connection::Builder::address(&*session.address()).unwrap();
    let client = sluice::bus::client::Client::on(&builder.build().await.unwrap()).await.unwrap();
    let mut found = client.devices().await.unwrap();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(found, devices);
}

#[test]
fn what_the_desktop_starts_is_there_and_its_icons_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("nixos-module/desktop");
    for icon in ["sluice", "sluice-on", "sluice-off", "sluice-paused", "sluice-fault"] {
        let text = std::fs::read_to_string(folder.join(format!("icons/{icon}.svg"))).unwrap();
        assert!(text.contains("<svg "), "{icon}");
    }
    let text = std::fs::read_to_string(folder.join("sluice-tray.desktop")).unwrap();
    for icon in text.lines().filter_map(|line| line.strip_prefix("Icon=")) {
        assert!(folder.join(format!("icons/{icon}.svg")).exists(), "{icon}");
    }
    let mut commands = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("Exec=")) {
        let mut words: Vec<&str> = line.split(' ').collect();
        let program = if words.remove(0) == "sluice-tray" { TRAY } else { super::SLUICE };
        // The command's own words apart, they must be words that it knows.
        words.truncate(words.iter().position(|word| *word == "--").unwrap_or(words.len()));
        let output = Command::new(program).args(&words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{line}: {}", super::said(&output));
        commands += 1;
    }
    assert_eq!(commands, 4);
}
