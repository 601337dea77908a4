// SPDX-License-Identifier: MIT OR Apache-2.0
//! What store and holder say to each other: records of one fixed size, so that
//! neither ever needs memory for one. They may be of different versions, so a
//! record never changes its layout; new kinds and roles may be added.
//!
//! | byte | |
//! | --- | --- |
//! | 0 | `SLH1` |
//! | 4 | kind, 2 bytes |
//! | 6 | role, 2 bytes |
//! | 8 | number, 4 bytes |
//! | 12 | sequence, 4 bytes: an answer has its request's |
//! | 16 | bytes to be locked, 8 bytes; 0: none |
//! | 24 | code, 4 bytes: an errno, or an [`End`] |
//! | 28 | length of the text, 2 bytes |
//! | 32 | text, at most 96 bytes of UTF-8 |
//!
//! Numbers are little endian. A descriptor goes with `Keep` and `Item`.

/// Bytes of a record.
pub const BYTES: usize = 128;
const MAGIC: [u8; 4] = *b"SLH1";
const TEXT: usize = 32;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Store: I am here; give me what you hold.
    Hello = 1,
    /// Store: keep this descriptor, in place of one of the same role and number.
    /// Answered.
    Keep = 2,
    /// Store: let go of it.
    Forget = 3,
    /// Store: I answer requests; `bytes` is how much memory the next one needs.
    Serving = 4,
    /// Store: I am about to end, as `code` ([`End`]) says.
    Goodbye = 5,
    /// Holder: something that I hold.
    Item = 16,
    /// Holder: that was all; `number` of them.
    All = 17,
    /// Holder: the errno of what was asked, 0 if done.
    Answer = 18,
    /// Store, to one who wants to hold: somebody does, process `number`.
    Taken = 19,
}

/// What a kept descriptor is of. The holder treats all alike but the sockets,
/// which it shuts down, and the program, which it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Role {
    /// The index.
    Index = 1,
    /// The text that says what the store is ([`super::description`]).
    Description = 2,
    /// A slab: its tier's number in the top byte of the number, its own below.
    Slab = 3,
    /// The server's end of a device's connection; the number is the device's.
    Socket = 4,
    /// The spill, with its claim.
    Spill = 5,
    /// The executable that the store runs.
    Program = 6,
    /// A library that it has mapped.
    Library = 7,
}

/// How a store ends that says goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum End {
    /// Nothing is held any more. Its exit code is the holder's.
    Finished = 0,
    /// Another store takes over at once, of the program at the holder's path.
    HandingOver = 1,
    /// What is held cannot be trusted: keep it, start nothing.
    Distrust = 2,
    /// It could not take over now. Another one tries.
    Failed = 3,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// Of what; `Index` where it does not matter.
    pub role: Role,
    /// Of which of them.
    pub number: u32,
    /// Which request it answers.
    pub sequence: u32,
    /// How many bytes.
    pub bytes: u64,
    /// Errno or [`End`].
    pub code: i32,
    text: [u8; BYTES - TEXT],
    text_bytes: u16,
}

impl Message {
    /// A record that says nothing but its kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            role: Role::Index,
            number: 0,
            sequence: 0,
            bytes: 0,
            code: 0,
            text: [0; BYTES - TEXT],
            text_bytes: 0,
        }
    }

    /// A record about one thing.
    #[must_use]
    pub fn about(kind: Kind, role: Role, number: u32) -> Self {
        Self { role, number, ..Self::new(kind) }
    }

    /// With as much of a text as fits.
    #[must_use]
    pub fn saying(mut self, text: &str) -> Self {
        let mut end = text.len().min(self.text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.text[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.text_bytes = end as u16;
        self
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.text_bytes)]).unwrap_or("")
    }

    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut record = [0; BYTES];
        record[..4].copy_from_slice(&MAGIC);
        record[4..6].copy_from_slice(&(self.kind as u16).to_le_bytes());
        record[6..8].copy_from_slice(&(self.role as u16).to_le_bytes());
        record[8..12].copy_from_slice(&self.number.to_le_bytes());
        record[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        record[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        record[24..28].copy_from_slice(&self.code.to_le_bytes());
        record[28..30].copy_from_slice(&self.text_bytes.to_le_bytes());
        record[TEXT..].copy_from_slice(&self.text);
        record
    }

    /// `None`: no record, or of a kind or role that this version does not know.
    #[must_use]
    pub fn decode(record: &[u8]) -> Option<Self> {
        let record: &[u8; BYTES] = record.try_into().ok()?;
        let two = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        let four = |at: usize| u32::from(two(at)) | u32::from(two(at + 2)) << 16;
        let kind = [
            Kind::Hello,
            Kind::Keep,
            Kind::Forget,
            Kind::Serving,
            Kind::Goodbye,
            Kind::Item,
            Kind::All,
            Kind::Answer,
            Kind::Taken,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == two(4))?;
        let role = Role::from_number(two(6))?;
        let text_bytes = two(28);
        (record[..4] == MAGIC && usize::from(text_bytes) <= BYTES - TEXT).then(|| Self {
            kind,
            role,
            number: four(8),
            sequence: four(12),
            bytes: u64::from(four(16)) | u64::from(four(20)) << 32,
            code: four(24).cast_signed(),
            text: *record[TEXT..].first_chunk().unwrap_or(&[0; BYTES - TEXT]),
            text_bytes,
        })
    }

    /// How the store that said goodbye ends.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        [End::Finished, End::HandingOver, End::Distrust, End::Failed]
            .into_iter()
            .find(|end| *end as i32 == self.code)
    }
}

impl Role {
    fn from_number(number: u16) -> Option<Self> {
        [
            Self::Index,
            Self::Description,
            Self::Slab,
            Self::Socket,
            Self::Spill,
            Self::Program,
            Self::Library,
        ]
        .into_iter()
        .find(|role| *role as u16 == number)
    }
}

/// The number of a slab among all tiers'; `None`: beyond what a record can say.
#[must_use]
pub fn slab_number(tier: usize, slab: u32) -> Option<u32> {
    let tier = u32::try_from(tier).ok().filter(|tier| *tier < 1 << 8)?;
    (slab < 1 << 24).then_some(tier << 24 | slab)
}

/// Tier and slab of [`slab_number`].
#[must_use]
pub fn slab_of(number: u32) -> (usize, u32) {
    ((number >> 24) as usize, number & 0x00ff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut message = Message::about(Kind::Keep, Role::Slab, 0x0102_0304).saying("größer");
        (message.sequence, message.bytes, message.code) = (u32::MAX, u64::MAX - 1, -5);
        let record = message.encode();
        assert_eq!(record[..12], *b"SLH1\x02\0\x03\0\x04\x03\x02\x01");
        assert_eq!(Message::decode(&record), Some(message));
        assert_eq!(message.text(), "größer");
        assert_eq!(Message::new(Kind::Hello).saying(&"ü".repeat(99)).text(), "ü".repeat(48));
    }

    #[test]
    fn what_is_no_record_of_ours_is_not_read() {
        let good = Message::new(Kind::All).encode();
        assert_eq!(Message::decode(&good[1..]), None);
        for (at, value) in [(0, b'X'), (4, 99), (6, 0), (28, 97)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Message::decode(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn a_slab_and_its_tier_fit_one_number() {
        assert_eq!(slab_of(slab_number(255, (1 << 24) - 1).unwrap()), (255, (1 << 24) - 1));
        assert_eq!((slab_number(256, 0), slab_number(0, 1 << 24)), (None, None));
    }
}
