// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite on every tier that needs no GPU, and what these do beyond it.

mod conformance;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use conformance::{Bench, PAGE, conforms, op};
use sluice::engine::error::Kind;
use sluice::engine::tier::{Direction, Fault, PageOp, Tier};
use sluice::engine::units::{ByteLen, SLAB_BYTES, SlabIndex};
use sluice::tier::fault::{FaultTier, Faults};
use sluice::tier::ram::{Pinning, RamTier};
use sluice::tier::spill::{HEADER_BYTES, Prepare, SpillTier, check, create};

fn ram(slabs: u32, pinning: Pinning) -> RamTier {
    RamTier::new(slabs, pinning, Box::new(|| Ok(1 << 40)))
}

fn no_preparation() -> Prepare {
    Arc::new(|| {})
}

/// A fully written file on a disk filesystem, under the build folder.
fn written_file(name: &str, bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join(name);
    let mut file = File::create(&path).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeros).unwrap();
    }
    file.sync_all().unwrap();
    (folder, path)
}

fn spill_bytes(slabs: u64) -> u64 {
    HEADER_BYTES + slabs * SLAB_BYTES as u64
}

#[test]
fn ram_conforms() {
    conforms(&ram(2, Pinning::Pageable));
}

#[test]
fn locked_ram_conforms() {
    conforms(&ram(2, Pinning::Locked));
}

#[test]
fn spill_on_a_file_conforms() {
    let (_folder, path) = written_file("spill", spill_bytes(2));
    conforms(&SpillTier::open(&path, 3, &no_preparation()).unwrap());
}

#[test]
fn a_tier_with_late_answers_conforms() {
    let faults = Arc::<Faults>::default();
    faults.delay_polls.store(3, Ordering::Relaxed);
    conforms(&FaultTier::new(ram(2, Pinning::Pageable), faults));
}

#[test]
fn a_failing_tier_reports_every_failure_once() {
    let faults = Arc::<Faults>::default();
    let tier = FaultTier::new(ram(1, Pinning::Pageable), Arc::clone(&faults));
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    faults.fail_every.store(3, Ordering::Relaxed);
    faults.errno.store(5, Ordering::Relaxed);
    let ops: Vec<PageOp> = (0..9).map(|n| op(n, Direction::Read, 0, 0, n * PAGE, PAGE)).collect();
    let failed = bench.run(&ops).iter().filter(|d| d.result == Err(Fault::Device(5))).count();
    assert_eq!(failed, 3);
    faults.fail_every.store(0, Ordering::Relaxed);
    faults.hang_every.store(1, Ordering::Relaxed);
    bench.lane.submit(&ops[..2]);
    let mut done = Vec::with_capacity(8);
    for _ in 0..100 {
        bench.lane.poll(&mut done);
    }
    assert!(done.is_empty());
    assert_eq!(bench.lane.pending(), 2);
}

#[test]
fn an_operation_on_a_slab_not_held_is_a_fault() {
    let tier = ram(2, Pinning::Pageable);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    let result = bench.run(&[op(1, Direction::Write, 1, 0, 0, PAGE)])[0].result;
    assert_eq!(result, Err(Fault::NotHeld));
}

#[test]
fn a_ram_slab_outlives_its_tier_behind_its_descriptor() {
    let tier = ram(1, Pinning::Pageable);
    tier.take(SlabIndex(0)).unwrap();
    let mut bench = Bench::new(&tier);
    bench.fill(0, PAGE, 42);
    bench.run(&[op(1, Direction::Write, 0, 8192, 0, PAGE)]);
    let memory = tier.export(SlabIndex(0)).unwrap();
    let expected = bench.bytes(0, PAGE);
    drop((bench, tier));
    let heir = ram(4, Pinning::Pageable);
    heir.import(SlabIndex(3), memory).unwrap();
    let mut bench = Bench::new(&heir);
    bench.run(&[op(1, Direction::Read, 3, 8192, 0, PAGE)]);
    assert_eq!(bench.bytes(0, PAGE), expected);
    // Something that is not a slab is refused.
    let error = heir.import(SlabIndex(0), File::open("/dev/null").unwrap().into()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

fn refusal(path: &Path) -> (Kind, String) {
    let Err(error) = SpillTier::open(path, 1, &no_preparation()) else {
        panic!("{} was accepted as a spill", path.display());
    };
    assert!(error.to_string().contains(&path.display().to_string()), "{error} names the path");
    (error.kind(), format!("{error}; {}", error.hint().unwrap_or_default()))
}

#[test]
fn a_spill_that_could_fail_later_is_refused_now() {
    let (folder, good) = written_file("good", spill_bytes(1));
    assert_eq!(refusal(&folder.path().join("absent")).0, Kind::Missing);

    let hole = folder.path().join("hole");
    File::create(&hole).unwrap().set_len(spill_bytes(1)).unwrap();
    let (kind, text) = refusal(&hole);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("a hole") && text.contains("sluice spill create"), "{text}");

    let unwritten = folder.path().join("unwritten");
    let file = File::create(&unwritten).unwrap();
    // SAFETY: a plain system call on our own descriptor.
    let reserved = unsafe {
        libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, spill_bytes(1) as libc::off_t)
    };
    assert_eq!(reserved, 0);
    let (kind, text) = refusal(&unwritten);
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("not written"), "{text}");

    let (_keep, small) = written_file("small", spill_bytes(1) - (1 << 20));
    assert_eq!(refusal(&small).0, Kind::NoSpace);

    let (_keep2, foreign) = written_file("foreign", spill_bytes(1));
    let mut file = File::options().write(true).open(&foreign).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(1080)).unwrap();
    file.write_all(&[0x53, 0xef]).unwrap();
    let (kind, text) = refusal(&foreign);
    assert_eq!(kind, Kind::Busy);
    assert!(text.contains("ext4") && text.contains("wipefs"), "{text}");

    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(70_000)).unwrap();
    file.write_all(b"x").unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(1080)).unwrap();
    file.write_all(&[0, 0]).unwrap();
    assert!(refusal(&foreign).1.contains("data at byte 70000"));

    let (kind, text) = refusal(Path::new("/dev/null"));
    assert_eq!(kind, Kind::Invalid, "{text}");

    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("spill");
    File::create(&path).unwrap().set_len(spill_bytes(1)).unwrap();
    assert_eq!(refusal(&path).0, Kind::Invalid);

    let first = SpillTier::open(&good, 1, &no_preparation()).unwrap();
    assert_eq!(refusal(&good).0, Kind::Busy);
    drop(first);
    // Ours from before, whatever it holds now.
    SpillTier::open(&good, 1, &no_preparation()).unwrap();
}

#[test]
fn a_created_spill_is_whole_private_and_used_as_it_is() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("spill");
    let mut told = Vec::new();
    let bytes =
        create(&path, ByteLen(65 << 20), &mut |done, all| told.push((done.0, all.0))).unwrap();
    assert_eq!(bytes.0, spill_bytes(2), "65 MiB take two slabs");
    assert_eq!(told.last(), Some(&(bytes.0, bytes.0)));
    assert!(told.is_sorted());
    let data = std::fs::metadata(&path).unwrap();
    assert_eq!((data.len(), data.permissions().mode() & 0o777), (bytes.0, 0o600));

    for finding in check(&path, Some(ByteLen(128 << 20))) {
        assert!(finding.result.is_ok(), "{finding:?}");
    }
    let findings = check(&path, Some(ByteLen(129 << 20)));
    let refused: Vec<_> = findings.iter().filter(|finding| finding.result.is_err()).collect();
    assert_eq!(refused.len(), 1, "{findings:?}");
    let text = refused[0].result.as_ref().unwrap_err().to_string();
    assert!(text.contains("194 MiB") && text.contains("130 MiB"), "{text}");

    let again = create(&path, ByteLen(1 << 26), &mut |_, _| {}).unwrap_err();
    assert_eq!(again.kind(), Kind::Busy);
    conforms(&SpillTier::open(&path, 2, &no_preparation()).unwrap());
}

#[test]
fn a_spill_is_not_created_where_it_could_not_be() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("spill");
    let error = create(&path, ByteLen(1 << 26), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("tmpfs"), "{error}");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("spill");
    let error = create(&path, ByteLen(1 << 60), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("too few"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0);
    let lost = create(&path.join("x/y"), ByteLen(1 << 26), &mut |_, _| {}).unwrap_err();
    assert_eq!(lost.kind(), Kind::Missing);
}

#[test]
fn checking_a_spill_names_everything_that_is_wrong_and_changes_nothing() {
    let (folder, path) = written_file("spill", spill_bytes(1));
    let refused = |path: &Path| -> Vec<&'static str> {
        let findings = check(path, None);
        findings.iter().filter(|f| f.result.is_err()).map(|f| f.about).collect()
    };
    assert!(refused(&path).is_empty(), "{:?}", check(&path, None));
    let mut first = [1; 16];
    std::io::Read::read_exact(&mut File::open(&path).unwrap(), &mut first).unwrap();
    assert_eq!(first, [0; 16], "a check claims nothing");

    let hole = folder.path().join("hole");
    let mut file = File::create(&hole).unwrap();
    file.write_all(b"LUKS\xba\xbe").unwrap();
    file.set_len(1 << 20).unwrap();
    assert_eq!(refused(&hole), ["blocks", "size", "contents"]);
    assert_eq!(refused(&folder.path().join("absent")), ["opened"]);
    let held = SpillTier::open(&path, 1, &no_preparation()).unwrap();
    assert_eq!(refused(&path), ["lock"]);
    drop(held);
}
