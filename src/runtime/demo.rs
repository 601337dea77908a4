// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice demo`: a store as a child process, and this process as its client:
//! write every page, read it back, trim, measure, stop. Nothing needs a
//! privilege or a kernel module, nor a GPU unless one is asked for.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::control_client;
use crate::block::bench;
use crate::block::bench::contents::{Difference, Page};
use crate::block::bench::plan::{Pace, Pattern, Plan, Target};
use crate::block::nbd::client::Client;
use crate::block::nbd::wire::flag;
use crate::cli;
use crate::cli::args::DemoArgs;
use crate::engine::units::{ByteLen, EXTENT_BYTES, PAGE_BYTES};
use crate::engine::view::State;

/// A store takes and locks all of its memory first; that may take a moment.
const START_PATIENCE: Duration = Duration::from_secs(30);
const CHUNK_BYTES: usize = 1 << 20;

/// Shows the store at work. Fails if anything read back was wrong.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    let place = Place::new()?;
    if args.nbd {
        return through_the_kernel(args, &place);
    }
    let socket = place.0.join("demo.sock");
    cli::print(&format!(
        "Starting: sluice serve --tier {} --size {} --socket {}\n",
        args.tier.name(),
        crate::config::schema::spelled(args.size),
        socket.display()
    ))?;
    let mut store = Store::start(args, &socket)?;
    let mut client = store.connect()?;
    let steps = exercise(&mut client)?;
    client.disconnect()?;
    let target = Target::Nbd { socket: socket.clone(), name: String::new() };
    let report = measure(target, args.seconds)?;
    store.stop()?;

    let mut out = String::from("\nWhat was done              amount      time      rate  result\n");
    for step in &steps {
        let seconds = step.time.as_secs_f64();
        let per_second = u128::from(step.bytes) * 1_000_000_000 / step.time.as_nanos().max(1);
        let rate = format!("{}/s", ByteLen(per_second as u64));
        let amount = ByteLen(step.bytes).to_string();
        let _ = writeln!(
            out,
            "{:<22}  {amount:>9}  {seconds:>6.2} s  {rate:>11}  {}",
            step.what, step.result
        );
    }
    let _ = write!(out, "\nMeasured: {}", report.table());
    let clean = report.is_clean();
    out += if clean { "\nEvery page was right.\n" } else { "\nPAGES WERE WRONG.\n" };
    cli::print(&out)?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(cli::FAILED) })
}

/// One thing done, for the summary.
struct Step {
    what: &'static str,
    bytes: u64,
    time: Duration,
    result: &'static str,
}

/// Writes, checks and trims the whole export.
fn exercise(client: &mut Client) -> Result<Vec<Step>> {
    let export = client.export();
    let bytes = export.bytes / EXTENT_BYTES as u64 * EXTENT_BYTES as u64;
    let page = |number| Page { number, version: 1, run: std::process::id() };
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut steps = Vec::new();

    let time = sweep("write", bytes, |at| {
        for (number, bytes) in buffer.chunks_exact_mut(PAGE_BYTES).enumerate() {
            page(at / PAGE_BYTES as u64 + number as u64).fill(bytes);
        }
        Ok(client.write(at, &buffer)?)
    })?;
    steps.push(Step { what: "write every page", bytes, time, result: "all accepted" });

    let time = sweep("read", bytes, |at| {
        client.read(at, &mut buffer)?;
        check(&buffer, at, page)
    })?;
    steps.push(Step { what: "read every page back", bytes, time, result: "all as written" });

    if !export.can(flag::SEND_TRIM) {
        bail!("the server does not offer TRIM");
    }
    // Every other extent: what a kernel that frees swap clusters does.
    let is_trimmed = |at: u64| (at / EXTENT_BYTES as u64).is_multiple_of(2);
    let time = sweep("trim", bytes, |at| {
        if is_trimmed(at) && at.is_multiple_of(EXTENT_BYTES as u64) {
            client.trim(at, EXTENT_BYTES as u32)?;
        }
        Ok(())
    })?;
    let half = bytes / 2;
    steps.push(Step { what: "trim every other 2 MiB", bytes: half, time, result: "given back" });

    let time = sweep("check", bytes, |at| {
        client.read(at, &mut buffer)?;
        if is_trimmed(at) {
            ensure!(buffer.iter().all(|byte| *byte == 0), "trimmed bytes at {at} are not zeros");
            return Ok(());
        }
        check(&buffer, at, page)
    })?;
    let result = "trimmed is zeros, the rest as written";
    steps.push(Step { what: "read everything again", bytes, time, result });
    Ok(steps)
}

fn check(found: &[u8], at: u64, page: impl Fn(u64) -> Page) -> Result<()> {
    for (number, found) in found.chunks_exact(PAGE_BYTES).enumerate() {
        let expected = page(at / PAGE_BYTES as u64 + number as u64);
        ensure!(expected.is(found), "{}", Difference { expected, found });
    }
    Ok(())
}

/// Calls `work` for every chunk and shows how far it is.
fn sweep(what: &str, bytes: u64, mut work: impl FnMut(u64) -> Result<()>) -> Result<Duration> {
    let mut screen = std::io::stderr();
    let live = screen.is_terminal();
    let start = Instant::now();
    let mut shown = u64::MAX;
    for at in (0..bytes).step_by(CHUNK_BYTES) {
        let percent = at * 100 / bytes;
        if live && percent != shown {
            shown = percent;
            let bar = "#".repeat((percent / 4) as usize);
            write!(screen, "\r  {what:<6} [{bar:<25}] {percent:>3} %")?;
        }
        work(at).with_context(|| format!("{what} at byte {at}"))?;
    }
    let time = start.elapsed();
    if live {
        writeln!(screen, "\r  {what:<6} [{:#<25}] 100 %", "")?;
    }
    Ok(time)
}

/// The same through a block device of the kernel, with the program that holds
/// swapped pages, which is told not to switch swap on.
fn through_the_kernel(args: &DemoArgs, place: &Place) -> Result<ExitCode> {
    let (config, socket) = (place.0.join("demo.toml"), place.0.join("control.sock"));
    let text = format!(
        "[swap]\nsize = \"{}\"\nswapon = false\n[tier]\nkind = \"{}\"\n",
        crate::config::schema::spelled(args.size),
        args.tier.name()
    );
    std::fs::write(&config, &text)?;
    let program = std::env::current_exe()
        .context("cannot find this program's own file")?
        .with_file_name("sluice-store");
    cli::print(&format!(
        "Starting: {} run --config {}\n{text}",
        program.display(),
        config.display()
    ))?;
    let child = std::process::Command::new(&program)
        .arg("run")
        .args([Path::new("--config"), &config, Path::new("--socket"), &socket])
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut store = Store { child, socket };
    let device = store.wait_for("did not attach a device", |socket| {
        let status = control_client::status(socket)?;
        let ready = status.state == State::Serving;
        let device = status.devices.into_iter().next().filter(|_| ready);
        Ok(PathBuf::from(device.context("no device yet")?.path))
    })?;
    let report = measure(Target::Path(device), args.seconds);
    store.stop()?;
    let report = report?;
    let clean = report.is_clean();
    let end = if clean { "Every page was right.\n" } else { "PAGES WERE WRONG.\n" };
    cli::print(&format!("\nMeasured: {}\n{end}", report.table()))?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(cli::FAILED) })
}

fn measure(target: Target, seconds: u64) -> Result<bench::report::Report> {
    let plan = Plan {
        targets: vec![target],
        names: vec!["the store".to_owned()],
        rounds: 1,
        connections: 1,
        depth: 32,
        write_percent: 50,
        block_bytes: PAGE_BYTES as u32,
        seconds,
        span: None,
        pattern: Pattern::Random,
        pace: Pace::Full,
        fill: true,
        destroy_contents: true,
    };
    if std::io::stderr().is_terminal() {
        eprintln!("  measuring random 4 KiB reads and writes for {seconds} s ...");
    }
    Ok(bench::run(&plan, &mut |_, _, _| {})?)
}

/// The child process; it is stopped when this goes away.
struct Store {
    child: Child,
    socket: PathBuf,
}

impl Store {
    fn start(args: &DemoArgs, socket: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let child = std::process::Command::new(program)
            .args(["serve", "--tier", args.tier.name()])
            .args(["--size", &crate::config::schema::spelled(args.size)])
            .arg("--socket")
            .arg(socket)
            .spawn()
            .context("cannot start the store")?;
        Ok(Self { child, socket: socket.to_path_buf() })
    }

    fn connect(&mut self) -> Result<Client> {
        self.wait_for("did not start", |socket| Ok(Client::connect(socket, "")?))
    }

    /// Tries until it works, the store ends or patience does.
    fn wait_for<T>(&mut self, failed: &str, attempt: impl Fn(&Path) -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match attempt(&self.socket) {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("the store {failed}"));
                }
                Err(_) => {}
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the store ended at once ({status}); its own message is above");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(mut self) -> Result<()> {
        self.signal();
        let status = self.child.wait()?;
        ensure!(status.success(), "the store did not stop in order: {status}");
        Ok(())
    }

    fn signal(&mut self) {
        // Only while it is our child and not yet waited for is the number its own.
        if let (Ok(None), Some(pid)) =
            (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed()))
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.signal();
        let _ = self.child.wait();
    }
}

/// A directory for the socket that only this user can enter.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("sluice-demo-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
