// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice bench` against servers that are right and servers that are wrong:
//! no wrong page may pass, and no right one be blamed.

use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::Value;

use crate::faulty_server::{Fault, serve};
use crate::{Outcome, sluice_in};

const EXPORT_BYTES: usize = 4 << 20;

fn bench(dir: &Path, args: &[&str]) -> Outcome {
    sluice_in(dir, [&["bench", "--seconds", "1"], args].concat())
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", outcome.stdout, outcome.stderr))
}

#[test]
fn a_right_server_is_measured_and_not_blamed() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), EXPORT_BYTES, Fault::None, 1);
    let works: &[&[&str]] = &[
        &[],
        &["--connections", "3", "--depth", "7"],
        &["--depth", "1", "--write", "100"],
        &["--write", "0", "--fill"],
        &["--block", "64K", "--depth", "8", "--pattern", "sequential"],
        // A span that holds no more blocks than are open at once.
        &["--span", "128K", "--depth", "32"],
        // Far more in flight than the sockets hold, both ways.
        &["--block", "1M", "--depth", "4"],
        &["--pause", "500"],
        &["--sporadic", "--interval", "20", "--span", "1M"],
    ];
    for work in works {
        let outcome = bench(dir.path(), &[&["unix:None.sock", "--json"], *work].concat());
        let report = json(&outcome);
        assert_eq!(outcome.code, 0, "{work:?}: {report}");
        let result = &report["results"][0]["median"];
        assert_eq!((&result["mismatches"], &result["errors"]), (&0.into(), &0.into()), "{work:?}");
        assert!(result["iops"].as_f64().unwrap() > 0.0, "{work:?}: {report}");
        let (reads, writes) = (result["reads"].as_u64(), result["writes"].as_u64());
        assert_eq!(result["verified"].as_u64(), reads, "{work:?}");
        assert_eq!(
            writes == Some(0),
            ["--write", "0"].iter().all(|arg| work.contains(arg)) || work.contains(&"--sporadic"),
            "{work:?}"
        );
        assert_eq!(reads == Some(0), work.contains(&"100"), "{work:?}: {report}");
    }
}

#[test]
fn every_kind_of_wrong_data_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let faults = [
        (Fault::FlippedBit, "wrong bytes, the first at 2000"),
        (Fault::LostWrite, "read version"),
        // Seen as another page's contents, or as a write that never came.
        (Fault::MisplacedWrite, "read "),
        (Fault::Zeros, "read zeros"),
        (Fault::TornWrite, "wrong bytes, the first at"),
        (Fault::Error, "error 5"),
    ];
    for (fault, text) in faults {
        serve(dir.path(), EXPORT_BYTES, fault, 101);
        let target = format!("unix:{fault:?}.sock");
        let outcome = bench(dir.path(), &[&target, "--depth", "8", "--span", "1M"]);
        assert_eq!(outcome.code, 1, "{fault:?}: {}{}", outcome.stdout, outcome.stderr);
        assert!(outcome.stdout.contains(text), "{fault:?}: {}", outcome.stdout);
        let report = json(&bench(dir.path(), &[&target, "--span", "1M", "--json"]));
        let result = &report["results"][0]["median"];
        let count = |name: &str| result[name].as_u64().unwrap();
        if fault == Fault::Error {
            // A failed request is an error, and what it leaves is nobody's fault.
            assert!(count("errors") > 0 && count("mismatches") == 0, "{report}");
        } else {
            assert!(count("mismatches") > 0 && count("errors") == 0, "{report}");
        }
    }
}

#[test]
fn a_server_that_breaks_the_protocol_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let faults = [
        (Fault::Close, "closed the connection"),
        (Fault::BadMagic, "magic number"),
        (Fault::BadCookie, "a reply to no request"),
    ];
    for (fault, text) in faults {
        serve(dir.path(), EXPORT_BYTES, fault, 500);
        let outcome = bench(dir.path(), &[&format!("unix:{fault:?}.sock"), "--connections", "2"]);
        assert_eq!((outcome.code, &*outcome.stdout), (1, ""), "{fault:?}");
        assert!(outcome.stderr.contains(text), "{fault:?}: {}", outcome.stderr);
    }
}

#[test]
fn two_targets_are_measured_in_turns_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), EXPORT_BYTES, Fault::None, 1);
    // The same target twice: what one round wrote is not the other's to find.
    let args = ["unix:None.sock", "--against", "unix:None.sock", "--rounds", "2"];
    let outcome = bench(dir.path(), &args);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    for line in
        ["A round 1", "B round 1", "A round 2", "B round 2", "A median", "B median", "A / B"]
    {
        assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
    }
    let report = json(&bench(dir.path(), &[&args[..], &["--json"]].concat()));
    assert_eq!(report["results"][1]["rounds"].as_array().unwrap().len(), 2);
    assert!(report["ratio"]["iops"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_span_that_does_not_fit_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), EXPORT_BYTES, Fault::None, 1);
    for (args, text) in [
        (["--span", "1G"], "span 1 GiB is more than"),
        (["--span", "64K"], "fewer than the 32 requests"),
        (["--connections", "250"], "fewer than the 32 requests"),
    ] {
        let outcome = bench(dir.path(), &[&["unix:None.sock"], &args[..]].concat());
        assert_eq!(outcome.code, 2, "{args:?}");
        assert!(outcome.stderr.contains(text), "{args:?}: {}", outcome.stderr);
    }
}

/// A server by another hand, which knows `EXPORT_NAME` alone.
#[test]
fn an_old_server_of_another_make_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("old.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let mut data = vec![0_u8; EXPORT_BYTES];
        for stream in listener.incoming() {
            let mut stream = stream?;
            let export: nbd::Export =
                nbd::Export { size: EXPORT_BYTES as u64, ..Default::default() };
            nbd::server::handshake(&mut stream, |_| Ok(export))?;
            // It ends with an error when a client leaves; the next one comes.
            let _ = nbd::server::transmission(&mut stream, std::io::Cursor::new(&mut data[..]));
        }
        std::io::Result::Ok(())
    });
    let outcome = bench(dir.path(), &["nbd+unix:///rustnbd?socket=old.sock", "--json"]);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert!(json(&outcome)["results"][0]["median"]["verified"].as_u64() > Some(0));
}

#[test]
fn a_file_with_contents_is_spared_and_a_blank_one_measured() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("disk");
    let header: Vec<u8> =
        [vec![0; 4086], b"SWAPSPACE2".to_vec(), vec![0; EXPORT_BYTES - 4096]].concat();
    let work = ["disk", "--connections", "2", "--depth", "3"];

    std::fs::write(&file, &header).unwrap();
    let refused = bench(dir.path(), &work);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("disk holds a swap area"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--destroy-contents"), "{}", refused.stderr);
    let read = bench(dir.path(), &[&work[..], &["--write", "0"]].concat());
    assert_eq!(read.code, 0, "{}", read.stderr);
    assert!(read.stdout.contains("0 of "), "{}", read.stdout);
    assert_eq!(std::fs::read(&file).unwrap(), header, "only reading must not write");

    let told = bench(dir.path(), &[&work[..], &["--destroy-contents", "--json"]].concat());
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    assert!(json(&told)["results"][0]["median"]["verified"].as_u64() > Some(0));
    // What it left behind is its own, so it needs no leave the second time.
    assert_eq!(bench(dir.path(), &work).code, 0);
}
