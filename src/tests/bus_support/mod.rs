// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private bus with the service's own policy file, what sluiced asks on it,
//! a store without the kernel, and sluiced.

pub mod fakes;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sluice::engine::view::{
    Configuration, ControlReply, ControlRequest, ControlState, Reply, Request, Status,
};
use zbus::{Connection, MatchRule, MessageStream};

use fakes::{Logind, Polkit, Systemd};

pub const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
const MIB: u64 = 1 << 20;
pub const FULL: u64 = 128 * MIB;
/// Far more than anything here takes: what is not there by then never comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A user that is nobody.
pub const NOBODY: u32 = 65534;

pub struct Bed {
    folder: tempfile::TempDir,
    bus: Child,
    pub fakes: Connection,
    pub logind: Logind,
    pub polkit: Polkit,
    pub systemd: Systemd,
    sluiced: Option<Child>,
}

impl Bed {
    /// All of it, with polkit.
    pub async fn new(battery: &str) -> Self {
        Self::with(battery, true).await
    }

    pub async fn with(battery: &str, polkit_runs: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        // Another user is to reach the bus.
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).unwrap();
        write_bus_policy(at);
        let bus = Command::new("dbus-daemon")
            .arg("--nofork")
            .arg(format!("--config-file={}", at.join("bus.conf").display()))
            .spawn()
            .unwrap_or_else(|error| panic!("dbus-daemon: {error}; apt-get install dbus-daemon"));
        // Its name is there a moment before it listens.
        until("the bus listens", || UnixStream::connect(at.join("bus")).is_ok()).await;
        let spill = Command::new(SLUICE)
            .args(["spill", "create", "--size", "128M"])
            .arg(at.join("spill"))
            .output()
            .unwrap();
        assert!(spill.status.success(), "{spill:?}");
        let (logind, polkit) = (Logind::default(), Polkit::default());
        if !is_root() {
            // The tests themselves are somebody then, who may do all of it.
            let all = ["org.sluice.toggle", "org.sluice.target"];
            polkit.allowed.lock().unwrap().extend(all.map(|action| (action.to_owned(), true)));
        }
        let systemd = Systemd { store: Arc::default(), folder: at.to_path_buf() };
        systemd.start();
        let address = format!("unix:path={}", at.join("bus").display());
        let wanted = polkit_runs.then_some(&polkit);
        let fakes = fakes::serve(&address, &logind, wanted, &systemd).await;
        let mut bed = Self { folder, bus, fakes, logind, polkit, systemd, sluiced: None };
        bed.configure(battery);
        until("the store answers", || bed.status().is_some()).await;
        bed.start_sluiced().await;
        bed
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.at("bus").display())
    }

    pub fn configure(&self, battery: &str) {
        let text = format!(
            "[swap]\nsize = \"128M\"\n[tier]\nkind = \"ram\"\n[spill]\npath = \"{}\"\n\
             [control]\ndwell_s = 0\n{battery}\n",
            self.at("spill").display()
        );
        std::fs::write(self.at("sluice.toml"), text).unwrap();
    }

    pub async fn start_sluiced(&mut self) {
        self.start_sluiced_and_wait(|state| state.running && state.is_settled()).await;
    }

    /// A sluiced of this bus and store.
    pub fn sluiced_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluiced"));
        command
            .env("DBUS_SYSTEM_BUS_ADDRESS", self.address())
            .args([OsStr::new("--config"), self.at("sluice.toml").as_os_str()])
            .args([OsStr::new("--socket"), self.at("store.sock").as_os_str()])
            .args([OsStr::new("--state-dir"), self.at("state").as_os_str()])
            .args([OsStr::new("--root"), self.at("root").as_os_str()]);
        command
    }

    pub async fn start_sluiced_and_wait(&mut self, is_so: impl Fn(&ControlState) -> bool) {
        self.sluiced = Some(self.sluiced_command().spawn().unwrap());
        self.until_state("it knows the store", is_so).await;
    }

    /// SIGKILL: nothing can be tidied up.
    pub fn kill_sluiced(&mut self) {
        let mut child = self.sluiced.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn hang_up_sluiced(&self) {
        let pid = self.sluiced.as_ref().unwrap().id();
        let sent = Command::new("kill").args(["-HUP", &pid.to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub async fn set_on_battery(&self, on_battery: bool) {
        let server = self.fakes.object_server();
        let upower = server.interface::<_, fakes::UPower>("/org/freedesktop/UPower").await.unwrap();
        upower.get_mut().await.on_battery = on_battery;
        upower.get().await.on_battery_changed(upower.signal_emitter()).await.unwrap();
    }

    pub async fn prepare_for_sleep(&self, start: bool) {
        let server = self.fakes.object_server();
        let logind = server.interface::<_, Logind>(fakes::LOGIND).await.unwrap();
        Logind::prepare_for_sleep(logind.signal_emitter(), start).await.unwrap();
    }

    /// What sluiced tells everybody from now on.
    pub async fn notices(&self) -> MessageStream {
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface("org.sluice.Sluice1")
            .and_then(|rule| rule.member("Notice"))
            .unwrap()
            .build();
        MessageStream::for_match_rule(rule, &self.fakes, None).await.unwrap()
    }

    /// What the store says of itself; `None`: none answers.
    pub fn status(&self) -> Option<Box<Status>> {
        match sluice::runtime::ask(&self.at("store.sock"), &Request::Status {}) {
            Ok(Reply::Status(status)) => Some(status),
            _ => None,
        }
    }

    /// A socket on which the store answers as one that was started with the file as it
    /// is now: the one that is served here has none.
    pub fn store_with_a_file(&self) -> String {
        let file = self.at("sluice.toml");
        let config = sluice::config::load(Path::new("/"), &file).unwrap();
        let settings = sluice::config::in_force::of_store(&config);
        let mut status = self.status().unwrap();
        let file = file.display().to_string();
        status.configuration = Some(Configuration { file, settings });
        let reply = serde_json::to_string(&*status).unwrap() + "\n";
        let socket = self.at("with-a-file.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut asked = String::new();
                BufReader::new(&stream).read_line(&mut asked).unwrap();
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        socket.display().to_string()
    }

    /// The store's target and whether its fast tier is open.
    pub fn store(&self) -> Option<(u64, bool)> {
        let status = self.status()?;
        let fast = status.tiers.iter().find(|tier| tier.kind == "fast").unwrap();
        Some((fast.target_bytes, fast.open))
    }

    pub async fn until_store(&self, what: &str, is_so: impl Fn(Option<(u64, bool)>) -> bool) {
        until(what, || is_so(self.store())).await;
    }

    /// What sluiced says of itself, by the command line's own client.
    async fn state(&self) -> Option<ControlState> {
        let address = self.address();
        let connection =
            zbus::connection::Builder::address(address.as_str()).unwrap().build().await.unwrap();
        let client = sluice::bus::client::Client::on(&connection).await.unwrap();
        match client.ask(&ControlRequest::State).await {
            Ok(ControlReply::State(state)) => Some(*state),
            _ => None,
        }
    }

    pub async fn until_state(
        &self,
        what: &str,
        is_so: impl Fn(&ControlState) -> bool,
    ) -> ControlState {
        let begun = std::time::Instant::now();
        loop {
            let state = self.state().await;
            if let Some(state) = state.clone().filter(|state| is_so(state)) {
                return state;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}: {state:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs `sluice` on this bus, and this store's socket where it is asked for.
    pub async fn sluice(&self, words: &[&str]) -> Output {
        let mut command = Command::new(SLUICE);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", self.address()).args(words).stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    pub fn socket(&self) -> String {
        self.at("store.sock").display().to_string()
    }

    /// Has a user who is not root call a method; gives what dbus-send says.
    pub async fn nobody_calls(&self, method: &str, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("dbus-send");
        command
            .arg(format!("--bus={}", self.address()))
            .args(["--print-reply", "--dest=org.sluice.Sluice1", "/org/sluice/Sluice1"])
            .arg(format!("org.sluice.Sluice1.{method}"))
            .args(words);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.systemd.kill();
        for child in self.sluiced.as_mut().into_iter().chain([&mut self.bus]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As the system bus's: nobody may own or call anything but what a file allows,
/// which is the service's own, and one for what is played here.
fn write_bus_policy(folder: &Path) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("nixos-module/dbus");
    let ours = std::fs::read_to_string(ours.join("org.sluice.Sluice1.conf")).unwrap();
    let me = rustix::process::geteuid().as_raw().to_string();
    // Where the tests are not root's, sluiced is not either.
    std::fs::write(folder.join("ours.conf"), ours.replace("\"root\"", &format!("\"{me}\"")))
        .unwrap();
    let text = format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={bus}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
  </policy>
  <policy user="{me}">
    <allow own_prefix="org.freedesktop"/>
    <allow send_destination_prefix="org.freedesktop"/>
  </policy>
  <include>{ours}</include>
</busconfig>
"#,
        bus = folder.join("bus").display(),
        ours = folder.join("ours.conf").display()
    );
    std::fs::write(folder.join("bus.conf"), text).unwrap();
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
