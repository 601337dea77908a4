// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests against bytes laid out by hand from the kernel's headers, replies
//! against bytes a Linux 6.12.95 sent. A real attach is a VM test.

use super::message::{Content, Received, Request, attributes, messages};
use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::net::UnixStream;

/// Captured from Linux 6.12.95: the family's description.
const FAMILY: &str = "b4000000 1000 0000 01000000 96010000  01020000
    0800 0200 6e626400  0600 0100 2000 0000  0800 0300 01000000  0800 0400 00000000
    0800 0500 0a000000
    5400 0600 1400 0100 0800 0100 01000000 0800 0200 0a000000
              1400 0200 0800 0100 02000000 0800 0200 0a000000
              1400 0300 0800 0100 03000000 0800 0200 0a000000
              1400 0400 0800 0100 05000000 0800 0200 0a000000
    2400 0700 2000 0100 0800 0200 0d000000
                        1100 0100 6e62645f6d635f67726f7570 00 000000";
const FAMILY_IDS: (u16, u32) = (0x20, 13);
/// Captured: the reply to an attach at index 1, and its acknowledgement.
const CONNECTED: &str = "1c000000 2000 0000 02000000 96010000  01010000  0800 0100 01000000";
const ACK: &str = "24000000 0200 0001 02000000 96010000  00000000
    80000000 2000 0500 02000000 00000000";
/// Captured: the refusal of an attach at an index that is taken.
const BUSY: &str = "24000000 0200 0001 03000000 96010000  f0ffffff
    80000000 2000 0500 03000000 00000000";
/// Captured: nbd0 free, nbd1 attached.
const STATUS: &str = "40000000 2000 0000 04000000 96010000  05010000
    2c00 0900 1400 0100 0800 0100 00000000 0500 0200 00 000000
              1400 0100 0800 0100 01000000 0500 0200 01 000000";
/// Captured: the event when the server's end of nbd1's socket was closed.
const LINK_DEAD: &str = "1c000000 2000 0000 00000000 00000000  04010000  0800 0100 01000000";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| (byte as char).to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn spec<'a>(sockets: &'a [BorrowedFd<'a>]) -> ConnectSpec<'a> {
    ConnectSpec {
        index: Some(3),
        size_bytes: 1 << 30,
        block_bytes: 4096,
        server_flags: 0x016d,
        timeout_s: 0,
        dead_conn_timeout_s: 86400,
        backend_identifier: "sluice".to_owned(),
        sockets,
        patience: Duration::ZERO,
    }
}

#[test]
fn an_attach_is_laid_out_as_the_headers_say() {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let sockets = [input.as_fd(), output.as_fd()];
    let request = protocol::connect(0x1d, &spec(&sockets)).unwrap().into_bytes(7);
    let expected = hex("8c000000 1d00 0500 07000000 00000000  01 01 0000
         0800 0100 03000000
         0c00 0200 00000040 00000000
         0c00 0300 00100000 00000000
         0c00 0400 00000000 00000000
         0c00 0800 80510100 00000000
         0c00 0500 6d010000 00000000
         0c00 0600 00000000 00000000
         0b00 0a00 736c75696365 00 00
         1c00 0780  0c00 0180 0800 0100 00000000
                    0c00 0180 0800 0100 01000000");
    assert_eq!(request, expected);
}

#[test]
fn other_requests_carry_what_they_need_and_no_timeout() {
    let input = std::io::stdin();
    let request = protocol::reconfigure(0x1d, 3, "abc", &[input.as_fd()]).unwrap();
    let expected = hex("34000000 1d00 0500 01000000 00000000  03 01 0000
         0800 0100 03000000
         0800 0a00 61626300
         1000 0780  0c00 0180 0800 0100 00000000");
    assert_eq!(request.into_bytes(1), expected);
    let expected = hex("1c000000 1d00 0500 02000000 00000000  02 01 0000
         0800 0100 03000000");
    assert_eq!(protocol::disconnect(0x1d, 3).into_bytes(2), expected);
    let expected = hex("14000000 1d00 0500 03000000 00000000  05 01 0000");
    assert_eq!(protocol::status(0x1d).into_bytes(3), expected);
    let expected = hex("1c000000 1000 0500 04000000 00000000  03 02 0000
         0800 0200 6e626400");
    assert_eq!(protocol::family().into_bytes(4), expected);
}

fn invalid(change: impl FnOnce(&mut ConnectSpec<'_>)) -> String {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let sockets = [input.as_fd(), output.as_fd()];
    let mut spec = spec(&sockets);
    change(&mut spec);
    let error = protocol::connect(1, &spec).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    error.to_string()
}

#[test]
fn attaches_that_can_not_work_are_refused_with_the_value() {
    assert!(invalid(|spec| spec.block_bytes = 256).contains("256"));
    assert!(invalid(|spec| spec.block_bytes = 8192).contains("8192"));
    assert!(invalid(|spec| spec.block_bytes = 3000).contains("3000"));
    assert!(invalid(|spec| spec.size_bytes = 0).contains("0 bytes"));
    assert!(invalid(|spec| spec.size_bytes = 4097).contains("4097 bytes"));
    assert!(invalid(|spec| spec.dead_conn_timeout_s = 0).contains("0 s"));
    assert!(invalid(|spec| spec.server_flags = 0x6d).contains("2 nbd sockets"));
    assert!(invalid(|spec| spec.backend_identifier = String::new()).contains("\"\""));
    assert!(invalid(|spec| spec.backend_identifier = "a\0b".to_owned()).contains("a\\0b"));
    assert!(invalid(|spec| spec.backend_identifier = "x".repeat(4095)).contains("4094"));
    assert!(invalid(|spec| spec.sockets = &[]).contains("one socket"));
}

fn only(bytes: &[u8]) -> Received<'_> {
    let mut all = messages(bytes).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn an_acknowledgement_and_a_refusal_differ_by_their_errno() {
    let ack = hex(ACK);
    assert_eq!(only(&ack), Received { sequence: 2, content: Content::Done });
    let busy = hex(BUSY);
    let refused = Content::Refused { errno: libc::EBUSY, reason: None };
    assert_eq!(only(&busy), Received { sequence: 3, content: refused });
}

#[test]
fn the_kernels_reason_is_read_with_and_without_the_request_repeated() {
    // NLMSGERR_ATTR_OFFS, then NLMSGERR_ATTR_MSG "no".
    let details = "0800 0200 18000000 0700 0100 6e6f00 00";
    let request = "24000000 1d00 0500 09000000 00000000";
    for (flags, repeated, length) in [
        ("0003", "", "34000000"),
        ("0002", "01010000 0c000100 01000000 00000000 00000000", "48000000"),
    ] {
        let text = format!(
            "{length} 0200 {flags} 09000000 00000000 eaffffff {request} {repeated} {details}"
        );
        let bytes = hex(&text);
        let content = Content::Refused { errno: libc::EINVAL, reason: Some("no".to_owned()) };
        assert_eq!(only(&bytes), Received { sequence: 9, content }, "{flags}");
    }
}

#[test]
fn refusals_say_what_failed_why_and_what_next() {
    let error = |errno, reason: Option<&str>| {
        let reason = reason.map(str::to_owned);
        Failure::Refused { errno, reason }.into_error("cannot attach /dev/nbd0".to_owned())
    };
    let denied = error(libc::EPERM, None);
    assert_eq!(denied.kind(), Kind::Denied);
    assert!(denied.hint().unwrap().contains("CAP_SYS_ADMIN"));
    let silent = error(libc::EINVAL, None);
    assert_eq!(
        (silent.kind(), silent.to_string().as_str()),
        (Kind::Invalid, "cannot attach /dev/nbd0")
    );
    assert!(silent.hint().unwrap().contains("dmesg"));
    let told = error(libc::EINVAL, Some("bad size"));
    assert_eq!(told.to_string(), "cannot attach /dev/nbd0: bad size");
    assert_eq!(told.hint(), None);
    assert_eq!(error(libc::EBUSY, None).kind(), Kind::Busy);
    assert_eq!(error(libc::ENOMEM, None).kind(), Kind::NoSpace);
}

fn payload(bytes: &[u8]) -> Vec<u8> {
    match only(bytes).content {
        Content::Data { attributes, .. } => attributes.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_family_and_its_event_group_are_found_in_the_kernels_reply() {
    let reply = payload(&hex(FAMILY));
    assert_eq!(protocol::family_ids(&[reply]).unwrap(), FAMILY_IDS);
    let error = protocol::family_ids(&[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Protocol);
}

#[test]
fn the_index_of_an_attach_is_read() {
    assert_eq!(protocol::connected_index(&[payload(&hex(CONNECTED))]).unwrap(), 1);
    assert_eq!(protocol::connected_index(&[vec![]]).unwrap_err().kind(), Kind::Protocol);
}

#[test]
fn the_list_of_devices_is_read() {
    let devices = protocol::device_list(&payload(&hex(STATUS))).unwrap();
    assert_eq!(devices, [(0, false), (1, true)]);
}

#[test]
fn a_dead_link_names_its_device_and_other_multicasts_are_ignored() {
    let bytes = hex(LINK_DEAD);
    let event = only(&bytes);
    assert_eq!(event.sequence, 0);
    let nbd = FAMILY_IDS.0;
    assert_eq!(protocol::link_dead(nbd, &event.content).unwrap(), Some(Event::LinkDead(1)));
    assert_eq!(protocol::link_dead(nbd + 1, &event.content).unwrap(), None);
    let other = Content::Data { family: nbd, command: 5, attributes: &[] };
    assert_eq!(protocol::link_dead(nbd, &other).unwrap(), None);
    let without_index = Content::Data { family: nbd, command: 4, attributes: &[] };
    assert!(protocol::link_dead(nbd, &without_index).is_err());
}

#[test]
fn several_messages_in_one_datagram_are_all_read() {
    let bytes = [hex(CONNECTED), hex(ACK)].concat();
    let all = messages(&bytes).unwrap();
    assert!(matches!(all[0].content, Content::Data { command: 1, .. }));
    assert_eq!(all[1].content, Content::Done);
}

#[test]
fn messages_that_break_the_format_are_refused_whole() {
    let good = hex(BUSY);
    for cut in 1..good.len() {
        assert_eq!(messages(&good[..cut]).unwrap_err().kind(), Kind::Protocol, "{cut}");
    }
    for broken in ["0300 0100", "0900 0100 00000000", "0400"] {
        assert_eq!(attributes(&hex(broken)).unwrap_err().kind(), Kind::Protocol, "{broken}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = messages(&bytes);
        let _ = protocol::family_ids(std::slice::from_ref(&bytes));
        let _ = protocol::device_list(&bytes);
        let _ = protocol::connected_index(std::slice::from_ref(&bytes));
    }

    #[test]
    fn damaged_replies_do_not_make_the_parsers_panic(at in 0usize..500, value in any::<u8>()) {
        for text in [FAMILY, STATUS, BUSY, CONNECTED] {
            let mut bytes = hex(text);
            let at = at % bytes.len();
            bytes[at] = value;
            for message in messages(&bytes).unwrap_or_default() {
                if let Content::Data { attributes, .. } = message.content {
                    let _ = protocol::family_ids(&[attributes.to_vec()]);
                    let _ = protocol::device_list(attributes);
                }
            }
        }
    }

    #[test]
    fn attributes_come_back_as_they_were_put(number in any::<u32>(), wide in any::<u64>(),
                                             text in "[a-z]{0,9}") {
        let c_text = std::ffi::CString::new(text.clone()).unwrap();
        let bytes = Request::new(1, 2, 3)
            .text(1, &c_text)
            .nested(2, |inside| inside.u32(3, number).u64(4, wide))
            .into_bytes(5);
        let outer = attributes(&bytes[20..]).unwrap();
        prop_assert_eq!(outer[0].0, 1);
        prop_assert_eq!(message::without_nul(outer[0].1), text.as_bytes());
        let inner = attributes(outer[1].1).unwrap();
        prop_assert_eq!(message::as_u32(inner[0].1).unwrap(), number);
        prop_assert_eq!(inner[1].1, wide.to_ne_bytes());
    }
}

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn an_attachment_tells_process_and_back_end() {
    let root = tree(&[
        ("sys/block/nbd0/pid", "41\n"),
        ("sys/block/nbd0/backend", "sluice\n"),
        ("proc/41/comm", "sluice-store\n"),
        ("sys/block/nbd1/pid", "42\n"),
        ("sys/block/nbd2/size", "0\n"),
        ("sys/block/nbd3/pid", "x\n"),
        ("sys/block/nbd4/pid", "41\n"),
        ("sys/block/nbd4/backend", "\n"),
    ]);
    let text = |index| attachment(root.path(), index).unwrap().map(|found| found.to_string());
    assert_eq!(text(0).unwrap(), "process 41 (sluice-store), back-end sluice");
    assert_eq!(text(1).unwrap(), "process 42, which has ended");
    assert_eq!(text(2), None);
    assert_eq!(attachment(root.path(), 3).unwrap_err().kind(), Kind::Protocol);
    assert_eq!(text(4).unwrap(), "process 41 (sluice-store)");
    assert_eq!(text(5), None);
}

#[test]
fn a_socket_is_adopted_while_somebody_holds_its_other_end() {
    let (server, kernel) = UnixStream::pair().unwrap();
    let held = kernel.try_clone().unwrap();
    drop(kernel);
    assert!(was_adopted(server.as_fd()).unwrap());
    drop(held);
    assert!(!was_adopted(server.as_fd()).unwrap());
}

#[test]
fn the_driver_is_found_or_its_absence_names_modprobe() {
    match Family::open(Path::new("/")) {
        Ok(family) => assert!(family.id >= 0x10, "{family:?}"),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Missing, "{error:?}");
            assert_eq!(error.hint(), Some("modprobe nbd"));
        }
    }
}

#[test]
fn a_channel_answers_for_a_family_every_kernel_has() {
    let mut channel = Channel::open().unwrap();
    // Two questions, so that the numbering of answers is in play.
    for _ in 0..2 {
        let request = Request::new(0x10, 3, 2).text(2, c"nlctrl");
        let reply = channel.ask(request).unwrap();
        let id = attributes(&reply[0]).unwrap().into_iter().find(|(kind, _)| *kind == 1).unwrap();
        assert_eq!(message::as_u16(id.1).unwrap(), 0x10);
    }
    let request = Request::new(0x10, 3, 2).text(2, c"no-such-family");
    match channel.ask(request).unwrap_err() {
        Failure::Refused { errno, .. } => assert_eq!(errno, libc::ENOENT),
        Failure::Broken(error) => panic!("{error:?}"),
    }
}
