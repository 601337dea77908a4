// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real NBD clients against our server. They are required: a tool that is
//! missing is a failure that names its Debian package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use sluice::block::nbd::listener::Server;

use crate::nbd_listener::{options, serve};
use crate::nbd_support::memory_io::{Disk, Style};
use crate::nbd_support::pattern;

const BYTES: usize = 64 << 20;

/// A server on a socket of its own.
struct Peer {
    folder: tempfile::TempDir,
    disk: Arc<Disk>,
    server: Server,
}

impl Peer {
    fn new(style: Style) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(BYTES);
        let server = serve(options(&folder.path().join("nbd"), BYTES), &disk, style);
        Self { folder, disk, server }
    }

    fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket())
    }

    fn socket(&self) -> String {
        self.path("nbd").to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Runs a tool that must succeed and returns what it printed.
fn run(package: &str, tool: &str, args: &[&str]) -> String {
    // The packages' own interpreters come first: nbdsh needs the python3 that
    // python3-libnbd is for.
    let path = format!("/usr/bin:/usr/sbin:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new(tool);
    let output = command.args(args).env("PATH", path).output().unwrap_or_else(|error| {
        panic!("{tool}: {error}; this test needs it: apt-get install {package}")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {}\n{text}{errors}", output.status);
    text
}

fn image(path: &Path) -> Vec<u8> {
    let bytes: Vec<u8> = (0..BYTES as u64 / 4096).flat_map(pattern).collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_sees_size_flags_and_constraints() {
    let peer = Peer::new(Style::Prompt);
    for name in ["", "test"] {
        let text = run("libnbd-bin", "nbdinfo", &["--json", &peer.uri(name)]);
        for part in [
            format!("\"export-size\": {BYTES}"),
            "\"protocol\": \"newstyle-fixed\"".into(),
            "\"structured\": false".into(),
            "\"can_fua\": true".into(),
            "\"can_flush\": true".into(),
            "\"can_trim\": true".into(),
            "\"can_zero\": true".into(),
            "\"can_fast_zero\": true".into(),
            "\"can_multi_conn\": true".into(),
            "\"can_df\": false".into(),
            "\"is_read_only\": false".into(),
            "\"block_size_minimum\": 4096".into(),
            "\"block_size_preferred\": 4096".into(),
            "\"block_size_maximum\": 1048576".into(),
        ] {
            assert!(text.contains(&part), "no {part} in {text}");
        }
    }
    let list = run("libnbd-bin", "nbdinfo", &["--list", &peer.uri("")]);
    assert!(list.contains("export=\"test\"") && list.contains("a store in memory"), "{list}");
    peer.server.stop();
}

#[test]
fn nbdcopy_brings_an_image_there_and_back() {
    for style in [Style::Prompt, Style::Shuffled(5), Style::Woken(6)] {
        let peer = Peer::new(style);
        let (there, back) = (peer.path("there"), peer.path("back"));
        let bytes = image(&there);
        let uri = peer.uri("test");
        let copy = |from: &str, to: &str| {
            run("libnbd-bin", "nbdcopy", &["--connections=4", "--flush", from, to]);
        };
        copy(there.to_str().unwrap(), &uri);
        assert!(*peer.disk.bytes() == bytes, "{style:?}: the copy there differs");
        copy(&uri, back.to_str().unwrap());
        assert!(std::fs::read(&back).unwrap() == bytes, "{style:?}: the copy back differs");
        peer.server.stop();
    }
}

#[test]
fn nbdsh_writes_zeroes_trims_and_gets_its_errors() {
    const SCRIPT: &str = r#"
import errno
page = 4096
size = h.get_size()
h.pwrite(b"\x11" * page, 0, nbd.CMD_FLAG_FUA)
h.pwrite(b"\x22" * page, page)
h.zero(page, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
assert h.pread(page, 0) == bytes(page)
h.trim(page, page)
h.flush()
assert h.pread(page, page) == bytes(page)
h.set_strict_mode(0)
for what, wrong, call in [
    ("odd offset", errno.EINVAL, lambda: h.pread(512, 512)),
    ("odd length", errno.EINVAL, lambda: h.pwrite(b"x" * 100, 0)),
    ("read past the end", errno.EINVAL, lambda: h.pread(page, size)),
    ("write past the end", errno.ENOSPC, lambda: h.pwrite(b"x" * page, size)),
    ("trim past the end", errno.EINVAL, lambda: h.trim(page, size)),
    ("cache", errno.EINVAL, lambda: h.cache(page, 0)),
]:
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == wrong, (what, error)
    else:
        raise AssertionError(what)
assert h.pread(page, 0) == bytes(page)
h.shutdown()
"#;
    let peer = Peer::new(Style::Woken(1));
    let package = "python3-libnbd libnbd-bin";
    run(package, "nbdsh", &["--uri", &peer.uri("test"), "--command", SCRIPT]);
    peer.server.stop();
}

#[test]
fn qemu_io_reads_back_patterns_discards_and_zeroes() {
    let peer = Peer::new(Style::Shuffled(2));
    let uri = peer.uri("test");
    let mut args = vec!["-f", "raw", "-d", "unmap"];
    for command in [
        "write -P 0x5a 0 1M",
        "write -f -P 0x77 1M 16M",
        "aio_write -P 0x12 20M 4M",
        "aio_flush",
        "read -P 0x5a 0 1M",
        "read -P 0x77 1M 16M",
        "read -P 0x12 20M 4M",
        "write -P 0x33 512 1024",
        "read -P 0x5a 0 512",
        "read -P 0x33 512 1024",
        "read -P 0x5a 1536 2560",
        "discard 1M 2M",
        "read -P 0 1M 2M",
        "write -z 4M 1M",
        "write -z -u 6M 1M",
        "read -P 0 4M 1M",
        "read -P 0 6M 1M",
        "read -P 0x77 5M 1M",
        "flush",
    ] {
        args.extend(["-c", command]);
    }
    args.push(&uri);
    let text = run("qemu-utils", "qemu-io", &args);
    // qemu-io of Debian 12 exits 0 even when a pattern does not match.
    assert!(!text.contains("verification failed") && !text.contains("failed:"), "{text}");
    peer.server.stop();
}

#[test]
fn qemu_img_converts_and_compares() {
    let peer = Peer::new(Style::Woken(9));
    let (there, back) = (peer.path("there"), peer.path("back"));
    let bytes = image(&there);
    let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
    let uri = peer.uri("");
    let qemu = |args: &[&str]| run("qemu-utils", "qemu-img", args);
    qemu(&["convert", "-n", "-m", "16", "-W", "-f", "raw", "-O", "raw", there, &uri]);
    assert!(*peer.disk.bytes() == bytes);
    let text = qemu(&["compare", "-f", "raw", "-F", "raw", there, &uri]);
    assert!(text.contains("Images are identical"), "{text}");
    qemu(&["convert", "-f", "raw", "-O", "qcow2", &uri, back]);
    let text = qemu(&["compare", "-f", "raw", "-F", "qcow2", &uri, back]);
    assert!(text.contains("Images are identical"), "{text}");
    peer.server.stop();
}

#[test]
fn fio_verifies_what_several_jobs_wrote() {
    let peer = Peer::new(Style::Shuffled(3));
    let uri = format!("--uri={}", peer.uri("test"));
    let text = run(
        "fio",
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=4k-128k",
            "--blockalign=4k",
            "--bs_unaligned=0",
            "--size=12m",
            "--offset_increment=16m",
            "--numjobs=4",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--do_verify=1",
            "--randseed=7",
            "--output-format=terse",
        ],
    );
    assert_eq!(text.lines().filter(|line| line.contains(";verify;0;0;")).count(), 4, "{text}");
    peer.server.stop();
}

#[test]
fn nbd_client_lists_the_export() {
    let peer = Peer::new(Style::Prompt);
    let text = run("nbd-client", "nbd-client", &["-l", "-unix", &peer.socket()]);
    assert!(text.lines().any(|line| line.contains("test")), "{text}");
    peer.server.stop();
}
