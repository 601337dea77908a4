// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs that outlive the process that took them, behind their descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use sluice::engine::tier::{Direction, Tier};
use sluice::engine::units::{SLAB_BYTES, SlabIndex};

use crate::conformance::{Bench, PAGE, op};

/// Set in the process that a test starts to take the slabs.
const PART: &str = "SLUICE_TEST_EXPORTER";
const SLABS: u32 = 2;

/// The pages that are written: the ends, and some between.
fn pages() -> impl Iterator<Item = usize> {
    let last = SLAB_BYTES / PAGE as usize - 1;
    (0..last).step_by(611).chain([last])
}

fn seed(slab: u32, page: usize) -> u64 {
    u64::from(slab) * 100_000 + page as u64 + 1
}

/// Fills slabs of `tier` and sends their descriptors over standard input, which is
/// a socket; then waits to be killed.
fn take_and_send(tier: &dyn Tier) -> ! {
    let mut bench = Bench::new(tier);
    for slab in 0..SLABS {
        tier.take(SlabIndex(slab)).unwrap();
        for page in pages() {
            bench.fill(0, PAGE, seed(slab, page));
            let write = op(1, Direction::Write, slab, page * PAGE as usize, 0, PAGE);
            assert_eq!(bench.run(&[write])[0].result, Ok(()));
        }
    }
    let slabs: Vec<OwnedFd> =
        (0..SLABS).map(|slab| tier.export(SlabIndex(slab)).unwrap()).collect();
    let borrowed: Vec<_> = slabs.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    sendmsg(std::io::stdin(), &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    loop {
        std::thread::park();
    }
}

/// The test called `name`: slabs that a process took are taken over from its
/// descriptors after it was killed, every page as it was. `open` gives a tier of so
/// many slabs.
pub fn slabs_survive_their_process<T: Tier>(name: &str, open: impl Fn(u32) -> T) {
    if std::env::var_os(PART).is_some() {
        take_and_send(&open(SLABS));
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut exporter = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(PART, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [0];
    recvmsg(&ours, &mut [IoSliceMut::new(&mut data)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .unwrap();
    let slabs: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    assert_eq!(slabs.len(), SLABS as usize, "the exporter ended early; its words are above");
    // In other places than they were, and one place more than there are.
    let tier = open(SLABS + 1);
    let mut bench = Bench::new(&tier);
    for (slab, descriptor) in (0..SLABS).zip(slabs) {
        let place = SLABS - slab;
        tier.import(SlabIndex(place), descriptor).unwrap();
        for page in pages() {
            bench.fill(0, PAGE, !seed(slab, page));
            bench.fill(PAGE, PAGE, seed(slab, page));
            let read = op(1, Direction::Read, place, page * PAGE as usize, 0, PAGE);
            assert_eq!(bench.run(&[read])[0].result, Ok(()));
            assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE), "slab {slab} page {page}");
        }
        // It can be written and given back like one of the tier's own.
        let page = PAGE as usize;
        let (write, read) = (
            op(1, Direction::Write, place, page, 0, PAGE),
            op(1, Direction::Read, place, page, PAGE, PAGE),
        );
        bench.fill(0, PAGE, u64::MAX);
        assert_eq!(bench.run(&[write])[0].result, Ok(()));
        assert_eq!(bench.run(&[read])[0].result, Ok(()));
        assert_eq!(bench.bytes(0, PAGE), bench.bytes(PAGE, PAGE), "slab {slab} written anew");
        tier.release(SlabIndex(place)).unwrap();
    }
}
