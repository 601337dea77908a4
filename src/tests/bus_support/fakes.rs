// SPDX-License-Identifier: MIT OR Apache-2.0
//! `UPower`, logind, polkit and systemd as far as sluiced asks them.
#![allow(
    clippy::unused_self,
    clippy::used_underscore_binding,
    reason = "methods of interfaces that others defined"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use zbus::object_server::SignalEmitter;
use zbus::zvariant::{ObjectPath, OwnedFd, OwnedObjectPath, OwnedValue};
use zbus::{Connection, connection, interface};

pub const SYSTEMD: &str = "/org/freedesktop/systemd1";
pub const LOGIND: &str = "/org/freedesktop/login1";

/// What `UPower` says of the machine.
pub struct UPower {
    pub on_battery: bool,
}

#[interface(name = "org.freedesktop.UPower")]
impl UPower {
    #[zbus(property)]
    fn on_battery(&self) -> bool {
        self.on_battery
    }
}

/// `UPower`'s display device.
pub struct DisplayDevice {
    pub percentage: f64,
}

#[interface(name = "org.freedesktop.UPower.Device")]
impl DisplayDevice {
    #[zbus(property)]
    fn is_present(&self) -> bool {
        true
    }

    #[zbus(property)]
    fn percentage(&self) -> f64 {
        self.percentage
    }
}

/// Logind: who has it wait.
#[derive(Clone, Default)]
pub struct Logind {
    held: Arc<Mutex<Option<UnixStream>>>,
}

impl Logind {
    /// Whether somebody has it wait now.
    pub fn is_held(&self) -> bool {
        let mut held = self.held.lock().unwrap();
        let Some(ours) = held.as_mut() else { return false };
        ours.set_nonblocking(true).unwrap();
        !matches!(ours.read(&mut [0; 1]), Ok(0))
    }
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(&self, what: &str, _who: &str, _why: &str, mode: &str) -> OwnedFd {
        assert_eq!((what, mode), ("sleep:shutdown", "delay"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        *self.held.lock().unwrap() = Some(ours);
        std::os::fd::OwnedFd::from(theirs).into()
    }

    #[zbus(signal)]
    pub async fn prepare_for_sleep(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

/// What polkit answers, by action, and whom it was asked about.
#[derive(Clone, Default)]
pub struct Polkit {
    pub allowed: Arc<Mutex<BTreeMap<String, bool>>>,
    pub asked: Arc<Mutex<Vec<(String, String)>>>,
}

#[interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Polkit {
    fn check_authorization(
        &self,
        subject: (String, HashMap<String, OwnedValue>),
        action: &str,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: &str,
    ) -> (bool, bool, HashMap<String, String>) {
        assert_eq!(subject.0, "system-bus-name");
        let name = String::try_from(subject.1["name"].try_clone().unwrap()).unwrap();
        self.asked.lock().unwrap().push((action.to_owned(), name));
        let allowed = self.allowed.lock().unwrap().get(action).copied().unwrap_or(false);
        (allowed, false, HashMap::new())
    }
}

/// Systemd, which has one unit: a store without the kernel.
#[derive(Clone)]
pub struct Systemd {
    pub store: Arc<Mutex<Option<Child>>>,
    pub folder: PathBuf,
}

impl Systemd {
    pub fn start(&self) {
        let at = |name: &str| self.folder.join(name).into_os_string();
        let mut store = self.store.lock().unwrap();
        if store.is_none() {
            let child = Command::new(env!("CARGO_BIN_EXE_sluice"))
                .args(["serve", "--tier", "ram", "--size", "128M"])
                .args(["--socket".into(), at("nbd"), "--control".into(), at("store.sock")])
                .args(["--spill".into(), at("spill")])
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            *store = Some(child);
        }
    }

    pub fn kill(&self) {
        if let Some(mut store) = self.store.lock().unwrap().take() {
            store.kill().unwrap();
            store.wait().unwrap();
        }
    }

    pub fn is_running(&self) -> bool {
        self.store.lock().unwrap().is_some()
    }
}

const JOB: &str = "/org/freedesktop/systemd1/job/7";

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn subscribe(&self) {}

    async fn start_unit(
        &self,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        mode: &str,
    ) -> OwnedObjectPath {
        assert_eq!((name, mode), ("sluice-store.service", "replace"));
        self.start();
        done(&emitter, name).await
    }

    async fn stop_unit(
        &self,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        mode: &str,
    ) -> OwnedObjectPath {
        assert_eq!((name, mode), ("sluice-store.service", "replace"));
        self.kill();
        done(&emitter, name).await
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

/// The job is over before its reply is sent, as it may be.
async fn done(emitter: &SignalEmitter<'_>, unit: &str) -> OwnedObjectPath {
    let job = ObjectPath::from_static_str_unchecked(JOB);
    Systemd::job_removed(emitter, 7, job.clone(), unit, "done").await.unwrap();
    job.into()
}

/// Puts all of them on the bus; polkit only where it is wanted.
pub async fn serve(
    address: &str,
    logind: &Logind,
    polkit: Option<&Polkit>,
    systemd: &Systemd,
) -> Connection {
    let mut builder = connection::Builder::address(address)
        .unwrap()
        .serve_at("/org/freedesktop/UPower", UPower { on_battery: false })
        .unwrap()
        .serve_at(
            "/org/freedesktop/UPower/devices/DisplayDevice",
            DisplayDevice { percentage: 80.0 },
        )
        .unwrap()
        .serve_at(LOGIND, logind.clone())
        .unwrap()
        .serve_at(SYSTEMD, systemd.clone())
        .unwrap();
    for name in ["UPower", "login1", "systemd1"] {
        builder = builder.name(format!("org.freedesktop.{name}")).unwrap();
    }
    if let Some(polkit) = polkit {
        builder = builder
            .serve_at("/org/freedesktop/PolicyKit1/Authority", polkit.clone())
            .unwrap()
            .name("org.freedesktop.PolicyKit1")
            .unwrap();
    }
    builder.build().await.unwrap()
}
