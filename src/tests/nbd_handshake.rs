// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handshake as a pure machine: what goes in, what comes out.

use proptest::prelude::*;
use sluice::block::nbd::connection::TRANSMISSION_FLAGS;
use sluice::block::nbd::handshake::{
    Export, Handshake, MAX_OPTION_BYTES, MAX_SKIPPED_BYTES, Progress, Refusal,
};
use sluice::block::nbd::wire::{
    EXPORT_NAME_REPLY_BYTES, ExportNameReply, GREETING_BYTES, Greeting, Info, InfoRequest,
    MAX_STRING_BYTES, Malformed, OPTION_REPLY_BYTES, OptionHeader, OptionReply, ServerEntry,
    client, encode_client_flags, handshake, info, opt, rep,
};

const BYTES: u64 = 3 << 30;
const BOTH: u32 = client::FIXED_NEWSTYLE | client::NO_ZEROES;

fn export() -> Export {
    Export {
        name: "vram".into(),
        description: "idle memory".into(),
        bytes: BYTES,
        max_payload: 1 << 20,
    }
}

/// A handshake that has the client's flags and whose greeting is taken.
fn started(flags: u32) -> Handshake {
    let mut machine = Handshake::new(export());
    machine.take_output();
    machine.feed(&encode_client_flags(flags));
    machine
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader { option, bytes: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    InfoRequest::encode_into(name, wanted, &mut data);
    data
}

/// Splits output into option replies; panics on anything else.
fn replies(mut output: &[u8]) -> Vec<(OptionReply, Vec<u8>)> {
    let mut replies = Vec::new();
    while let Some(head) = output.first_chunk::<OPTION_REPLY_BYTES>() {
        let head = OptionReply::parse(head).unwrap();
        let (data, rest) = output[OPTION_REPLY_BYTES..].split_at(head.bytes as usize);
        replies.push((head, data.to_vec()));
        output = rest;
    }
    assert!(output.is_empty(), "{output:?}");
    replies
}

fn kinds(output: &[u8]) -> Vec<u32> {
    replies(output).iter().map(|(head, _)| head.kind).collect()
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let output = Handshake::new(export()).take_output();
    let greeting = Greeting::parse(output.first_chunk::<GREETING_BYTES>().unwrap()).unwrap();
    assert_eq!(greeting.flags, handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    assert_eq!(output.len(), GREETING_BYTES);
}

#[test]
fn export_name_starts_with_zeroes_unless_they_are_declined() {
    for (flags, zeroes) in [(0, 124), (client::FIXED_NEWSTYLE, 124), (BOTH, 0)] {
        for name in ["", "vram"] {
            let mut machine = started(flags);
            machine.feed(&option(opt::EXPORT_NAME, name.as_bytes()));
            assert_eq!(machine.progress(), Progress::Transmission);
            let output = machine.take_output();
            let (head, rest) = output.split_first_chunk::<EXPORT_NAME_REPLY_BYTES>().unwrap();
            let said = ExportNameReply { bytes: BYTES, flags: TRANSMISSION_FLAGS };
            assert_eq!(ExportNameReply::parse(head), said);
            assert_eq!(rest, vec![0; zeroes]);
        }
    }
}

#[test]
fn go_tells_what_was_asked_for_and_starts() {
    let wanted = [info::BLOCK_SIZE, info::NAME, info::DESCRIPTION, 77];
    for name in ["", "vram"] {
        let mut machine = started(BOTH);
        machine.feed(&option(opt::GO, &info_data(name, &wanted)));
        assert_eq!(machine.progress(), Progress::Transmission);
        assert_eq!(machine.wants(), 0);
        let output = machine.take_output();
        let replies = replies(&output);
        let told: Vec<_> =
            replies[..4].iter().map(|(_, data)| Info::parse(data).unwrap()).collect();
        let sizes = Info::BlockSize { minimum: 4096, preferred: 4096, maximum: 1 << 20 };
        assert_eq!(
            told,
            [
                Info::Export { bytes: BYTES, flags: TRANSMISSION_FLAGS },
                sizes,
                Info::Name("vram"),
                Info::Description("idle memory"),
            ]
        );
        assert_eq!(kinds(&output), [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]);
        assert!(replies.iter().all(|(head, _)| head.option == opt::GO));
    }
}

#[test]
fn info_answers_like_go_and_goes_on() {
    let mut machine = started(BOTH);
    let data = info_data("vram", &[info::BLOCK_SIZE]);
    machine.feed(&option(opt::INFO, &data));
    let info: Vec<_> = replies(&machine.take_output()).into_iter().map(|(_, data)| data).collect();
    assert_eq!(machine.progress(), Progress::Haggling);
    machine.feed(&option(opt::GO, &data));
    let go: Vec<_> = replies(&machine.take_output()).into_iter().map(|(_, data)| data).collect();
    assert_eq!(info, go);
    assert_eq!(machine.progress(), Progress::Transmission);
}

#[test]
fn list_names_the_export() {
    let mut machine = started(BOTH);
    machine.feed(&option(opt::LIST, &[]));
    let output = machine.take_output();
    assert_eq!(kinds(&output), [rep::SERVER, rep::ACK]);
    let entry = ServerEntry { name: "vram", description: "idle memory" };
    assert_eq!(ServerEntry::parse(&replies(&output)[0].1), Ok(entry));
}

#[test]
fn options_that_cannot_be_served_are_answered_and_the_talk_goes_on() {
    let long_name = "x".repeat(MAX_STRING_BYTES + 1);
    let big = vec![0; MAX_OPTION_BYTES as usize + 1];
    let skipped = vec![0; MAX_SKIPPED_BYTES as usize];
    for (what, kind, data, error) in [
        ("TLS", opt::STARTTLS, &[][..], rep::ERR_UNSUP),
        ("structured replies", opt::STRUCTURED_REPLY, &[], rep::ERR_UNSUP),
        ("metadata list", opt::LIST_META_CONTEXT, &[1, 2, 3], rep::ERR_UNSUP),
        ("metadata choice", opt::SET_META_CONTEXT, &[0; 99], rep::ERR_UNSUP),
        ("extended headers", opt::EXTENDED_HEADERS, &[], rep::ERR_UNSUP),
        ("unknown", 0xdead_beef, &[0; 5000], rep::ERR_UNSUP),
        ("unknown and large", 0xdead_beef, &skipped, rep::ERR_UNSUP),
        ("unknown export", opt::GO, &info_data("other", &[]), rep::ERR_UNKNOWN),
        ("unknown export", opt::INFO, &info_data("other", &[]), rep::ERR_UNKNOWN),
        ("no data", opt::GO, &[], rep::ERR_INVALID),
        ("name longer than the data", opt::GO, &[0, 0, 0, 9, b'a'], rep::ERR_INVALID),
        ("count that lies", opt::INFO, &[0, 0, 0, 0, 0, 1], rep::ERR_INVALID),
        ("name with NUL", opt::GO, &info_data("a\0b", &[]), rep::ERR_INVALID),
        ("name too long", opt::GO, &info_data(&long_name, &[]), rep::ERR_INVALID),
        ("list with data", opt::LIST, &[0], rep::ERR_INVALID),
        ("list with much data", opt::LIST, &big, rep::ERR_TOO_BIG),
        ("go with much data", opt::GO, &big, rep::ERR_TOO_BIG),
        ("abort with much data", opt::ABORT, &big, rep::ERR_TOO_BIG),
    ] {
        let mut machine = started(BOTH);
        machine.feed(&option(kind, data));
        let output = machine.take_output();
        assert_eq!(kinds(&output), [error], "{what}");
        assert_eq!(replies(&output)[0].0.option, kind, "{what}");
        machine.feed(&option(opt::GO, &info_data("", &[])));
        assert_eq!(machine.progress(), Progress::Transmission, "{what}");
    }
}

#[test]
fn what_cannot_be_answered_closes() {
    let huge = OptionHeader { option: 99, bytes: MAX_SKIPPED_BYTES + 1 }.encode();
    let huge_name = OptionHeader { option: opt::EXPORT_NAME, bytes: MAX_OPTION_BYTES + 1 }.encode();
    let mut out_of_step = OptionHeader { option: opt::LIST, bytes: 0 }.encode();
    out_of_step[0] = 0;
    let found = u64::from_be_bytes(*out_of_step.first_chunk().unwrap());
    let magic = Malformed::Magic { expected: 0x4948_4156_454f_5054, found };
    for (sent, refusal) in [
        (&huge[..], Refusal::TooBig(MAX_SKIPPED_BYTES + 1)),
        (&huge_name, Refusal::TooBig(MAX_OPTION_BYTES + 1)),
        (&out_of_step, Refusal::Malformed(magic)),
        (&option(opt::EXPORT_NAME, b"other"), Refusal::UnknownExport),
        (&option(opt::EXPORT_NAME, b"\xff"), Refusal::Malformed(Malformed::Text("export name"))),
    ] {
        let mut machine = started(BOTH);
        machine.feed(sent);
        assert_eq!(machine.progress(), Progress::Refused(refusal));
        assert!(machine.take_output().is_empty());
        assert_eq!(machine.feed(&option(opt::LIST, &[])), 0, "it listens after {refusal}");
    }
    for flags in [1 << 2, 1 << 31, u32::MAX] {
        assert_eq!(started(flags).progress(), Progress::Refused(Refusal::Flags(flags)));
    }
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let mut machine = started(BOTH);
    machine.feed(&option(opt::ABORT, &[]));
    assert_eq!(kinds(&machine.take_output()), [rep::ACK]);
    assert_eq!(machine.progress(), Progress::Refused(Refusal::Aborted));
}

#[test]
fn transmission_bytes_are_left_alone() {
    let mut machine = started(BOTH);
    let mut sent = option(opt::EXPORT_NAME, b"");
    let handshake = sent.len();
    sent.extend_from_slice(b"the first request");
    assert_eq!(machine.feed(&sent), handshake);
}

proptest! {
    #[test]
    fn any_splitting_of_the_same_bytes_gives_the_same_answer(
        cuts in prop::collection::vec(1usize..60, 1..40),
    ) {
        let sent = [
            encode_client_flags(BOTH).to_vec(),
            option(opt::STRUCTURED_REPLY, &[]),
            option(opt::LIST, &[]),
            option(77, &[9; 50]),
            option(opt::INFO, &info_data("vram", &[info::NAME])),
            option(opt::GO, &info_data("", &[info::BLOCK_SIZE])),
        ]
        .concat();
        let mut whole = Handshake::new(export());
        prop_assert_eq!(whole.feed(&sent), sent.len());
        let mut pieces = Handshake::new(export());
        let mut output = Vec::new();
        let (mut at, mut cut) = (0, cuts.iter().cycle());
        while at < sent.len() {
            let end = sent.len().min(at + cut.next().unwrap());
            prop_assert_eq!(pieces.feed(&sent[at..end]), end - at);
            output.append(&mut pieces.take_output());
            at = end;
        }
        prop_assert_eq!(output, whole.take_output());
        prop_assert_eq!(pieces.progress(), Progress::Transmission);
    }
}
