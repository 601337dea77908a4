// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    // No NUL: the protocol forbids it in strings.
    prop::collection::vec(any::<char>().prop_filter("NUL", |c| *c != '\0'), 0..40)
        .prop_map(String::from_iter)
}

#[test]
fn the_greeting_has_the_documented_bytes() {
    let greeting = Greeting { flags: handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES };
    assert_eq!(&greeting.encode(), b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn a_go_request_has_the_documented_bytes() {
    let mut data = Vec::new();
    InfoRequest::encode_into("ab", &[info::BLOCK_SIZE], &mut data);
    assert_eq!(data, [0, 0, 0, 2, b'a', b'b', 0, 1, 0, 3]);
    let header = OptionHeader { option: opt::GO, bytes: data.len() as u32 };
    assert_eq!(&header.encode(), b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x0a");
}

#[test]
fn an_option_reply_has_the_documented_bytes() {
    let reply = OptionReply { option: opt::LIST, kind: rep::ERR_UNSUP, bytes: 0 };
    assert_eq!(
        reply.encode(),
        [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 3, 0x80, 0, 0, 1, 0, 0, 0, 0]
    );
}

#[test]
fn lengths_that_lie_are_refused() {
    for data in [
        &[][..],
        &[0, 0, 0],
        &[0, 0, 0, 1],
        &[0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 9],
        &[0xff, 0xff, 0xff, 0xff, 0, 0],
    ] {
        let parsed = InfoRequest::parse(data);
        assert!(matches!(parsed, Err(Malformed::Length { .. })), "{data:?} gave {parsed:?}");
    }
    for data in [&[][..], &[0], &[0, 0], &[0, 0, 1, 2, 3], &[0, 3, 0, 0, 0, 1]] {
        let parsed = Info::parse(data);
        assert!(matches!(parsed, Err(Malformed::Length { .. })), "{data:?} gave {parsed:?}");
    }
}

#[test]
fn strings_the_protocol_forbids_are_refused() {
    let long = vec![b'x'; MAX_STRING_BYTES + 1];
    for bytes in [&b"a\0b"[..], &[0xff, 0xfe], &long] {
        assert_eq!(text(bytes, "name"), Err(Malformed::Text("name")));
    }
    assert!(text(&long[1..], "name").is_ok());
}

proptest! {
    #[test]
    fn heads_survive_the_wire(option: u32, kind: u32, bytes: u32, flags: u16, size: u64) {
        let header = OptionHeader { option, bytes };
        prop_assert_eq!(OptionHeader::parse(&header.encode()), Ok(header));
        let reply = OptionReply { option, kind, bytes };
        prop_assert_eq!(OptionReply::parse(&reply.encode()), Ok(reply));
        let greeting = Greeting { flags };
        prop_assert_eq!(Greeting::parse(&greeting.encode()), Ok(greeting));
        let chosen = ExportNameReply { bytes: size, flags };
        prop_assert_eq!(ExportNameReply::parse(&chosen.encode()), chosen);
        prop_assert_eq!(parse_client_flags(&encode_client_flags(kind)), kind);
    }

    #[test]
    fn information_requests_survive_the_wire(name in name(), wanted: Vec<u16>) {
        let mut data = Vec::new();
        InfoRequest::encode_into(&name, &wanted, &mut data);
        let parsed = InfoRequest::parse(&data).unwrap();
        prop_assert_eq!(parsed.name, name.as_str());
        prop_assert_eq!(parsed.wanted().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn information_survives_the_wire(
        name in name(), bytes: u64, flags: u16, sizes: (u32, u32, u32), other in 4u16..,
    ) {
        let (minimum, preferred, maximum) = sizes;
        for info in [
            Info::Export { bytes, flags },
            Info::Name(&name),
            Info::Description(&name),
            Info::BlockSize { minimum, preferred, maximum },
            Info::Other(other),
        ] {
            let mut data = Vec::new();
            info.encode_into(&mut data);
            prop_assert_eq!(Info::parse(&data), Ok(info));
        }
        let entry = ServerEntry { name: &name, description: &name };
        let mut data = Vec::new();
        entry.encode_into(&mut data);
        prop_assert_eq!(ServerEntry::parse(&data), Ok(entry));
    }

    #[test]
    fn parsing_any_bytes_gives_a_value_or_an_error(data: Vec<u8>) {
        // What parses says the same when it is written again: nothing is invented.
        if let Ok(request) = InfoRequest::parse(&data) {
            let mut again = Vec::new();
            let wanted: Vec<u16> = request.wanted().collect();
            InfoRequest::encode_into(request.name, &wanted, &mut again);
            prop_assert_eq!(&again, &data);
        }
        if let Ok(entry) = ServerEntry::parse(&data) {
            let mut again = Vec::new();
            entry.encode_into(&mut again);
            prop_assert_eq!(&again, &data);
        }
        if let Ok(info) = Info::parse(&data) {
            let mut again = Vec::new();
            info.encode_into(&mut again);
            prop_assert!(data.starts_with(&again));
        }
    }
}
