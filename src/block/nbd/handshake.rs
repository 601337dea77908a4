// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's side of the fixed newstyle handshake: bytes in, bytes out.
//!
//! It knows one export and no socket, clock or thread. Its memory is bounded by
//! [`MAX_OPTION_BYTES`] whatever the client sends; how long a client may take is
//! its caller's business. TLS, structured replies, metadata contexts and 64-bit
//! headers are not served and answered `ERR_UNSUP` (proto.md: the client then
//! goes on without).

use crate::engine::units::PAGE_BYTES;

use super::connection::TRANSMISSION_FLAGS;
use super::wire::{
    CLIENT_FLAGS_BYTES, EXPORT_NAME_ZEROES, ExportNameReply, Greeting, Info, InfoRequest,
    MAX_STRING_BYTES, Malformed, OPTION_HEADER_BYTES, OptionHeader, OptionReply, ServerEntry,
    client, handshake, info, opt, parse_client_flags, rep, text,
};

/// Longest option data that is looked at: a name of the longest legal length
/// and room for thousands of information requests.
pub const MAX_OPTION_BYTES: u32 = 16 * 1024;

/// Longest option data that is read past and then refused; a longer claim
/// closes the connection.
pub const MAX_SKIPPED_BYTES: u32 = 1 << 20;

/// What is offered to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The export's name. The empty name, the protocol's default export, works too.
    pub name: String,
    /// Text for people, e.g. in `nbdinfo --list`.
    pub description: String,
    /// Size in bytes, a multiple of 4096.
    pub bytes: u64,
    /// Largest read or write in bytes.
    pub max_payload: u32,
}

/// Why a handshake ended without transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client said goodbye; nothing is wrong.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client set flags that were not offered (proto.md: must be closed).
    #[error("the client set the unknown flags {0:#x}")]
    Flags(u32),
    /// The client does not speak the protocol.
    #[error("the client broke the protocol: {0}")]
    Malformed(#[from] Malformed),
    /// `EXPORT_NAME` named another export; closing is its only error.
    #[error("the client asked for an export that is not served here")]
    UnknownExport,
    /// An option claims more data than anybody needs.
    #[error("an option claims {0} bytes of data")]
    TooBig(u32),
}

/// Where a handshake stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Haggling,
    /// Done: what the client sends next is a transmission request.
    Transmission,
    /// Send what is left of the output, then close.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    ClientFlags,
    Header,
    Data(OptionHeader),
    /// Data to read past; then the option is answered with the error `kind`.
    Skip {
        header: OptionHeader,
        left: u32,
        kind: u32,
    },
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    export: Export,
    expect: Expect,
    partial: Vec<u8>,
    output: Vec<u8>,
    progress: Progress,
    no_zeroes: bool,
}

impl Handshake {
    /// A handshake whose greeting is ready to be sent.
    #[must_use]
    pub fn new(export: Export) -> Self {
        let greeting = Greeting { flags: handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES };
        Self {
            export,
            expect: Expect::ClientFlags,
            partial: Vec::with_capacity(OPTION_HEADER_BYTES),
            output: greeting.encode().to_vec(),
            progress: Progress::Haggling,
            no_zeroes: false,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// How many bytes the next step needs: reading no more than this from the
    /// socket leaves every transmission byte there. 0 when no longer haggling.
    #[must_use]
    pub fn wants(&self) -> usize {
        if self.progress != Progress::Haggling {
            return 0;
        }
        self.target() - self.partial.len()
    }

    /// Takes bytes to send to the client.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Digests bytes from the client and says how many it used: all of them
    /// while it is haggling.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let wants = self.wants();
            if self.progress != Progress::Haggling || (wants > 0 && used == bytes.len()) {
                return used;
            }
            let take = wants.min(bytes.len() - used);
            if let Expect::Skip { left, .. } = &mut self.expect {
                *left -= take as u32;
            } else {
                self.partial.extend_from_slice(&bytes[used..used + take]);
            }
            used += take;
            if self.wants() == 0 {
                self.step();
            }
        }
    }

    fn target(&self) -> usize {
        match self.expect {
            Expect::ClientFlags => CLIENT_FLAGS_BYTES,
            Expect::Header => OPTION_HEADER_BYTES,
            Expect::Data(header) => header.bytes as usize,
            Expect::Skip { left, .. } => left as usize,
        }
    }

    /// Acts on a complete unit.
    fn step(&mut self) {
        let unit = std::mem::take(&mut self.partial);
        let expect = std::mem::replace(&mut self.expect, Expect::Header);
        let outcome = match expect {
            Expect::ClientFlags => self.client_flags(&unit),
            Expect::Header => self.header(&unit),
            Expect::Data(header) => self.option(header.option, &unit),
            Expect::Skip { header, kind, .. } => {
                let reason = if kind == rep::ERR_TOO_BIG { "too much data" } else { "not served" };
                self.reply(header.option, kind, reason.as_bytes());
                Ok(())
            }
        };
        if let Err(refusal) = outcome {
            self.progress = Progress::Refused(refusal);
        }
    }

    fn client_flags(&mut self, unit: &[u8]) -> Result<(), Refusal> {
        let mut bytes = [0; CLIENT_FLAGS_BYTES];
        bytes.copy_from_slice(unit);
        let flags = parse_client_flags(&bytes);
        if flags & !(client::FIXED_NEWSTYLE | client::NO_ZEROES) != 0 {
            return Err(Refusal::Flags(flags));
        }
        self.no_zeroes = flags & client::NO_ZEROES != 0;
        Ok(())
    }

    fn header(&mut self, unit: &[u8]) -> Result<(), Refusal> {
        let mut bytes = [0; OPTION_HEADER_BYTES];
        bytes.copy_from_slice(unit);
        let header = OptionHeader::parse(&bytes)?;
        if header.bytes > MAX_SKIPPED_BYTES {
            return Err(Refusal::TooBig(header.bytes));
        }
        let known = matches!(
            header.option,
            opt::EXPORT_NAME | opt::LIST | opt::INFO | opt::GO | opt::ABORT
        );
        self.expect = if known && header.bytes <= MAX_OPTION_BYTES {
            Expect::Data(header)
        } else if header.option == opt::EXPORT_NAME {
            return Err(Refusal::TooBig(header.bytes));
        } else {
            let kind = if known { rep::ERR_TOO_BIG } else { rep::ERR_UNSUP };
            Expect::Skip { header, left: header.bytes, kind }
        };
        Ok(())
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), Refusal> {
        match option {
            opt::EXPORT_NAME => return self.export_name(data),
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                return Err(Refusal::Aborted);
            }
            opt::LIST if data.is_empty() => {
                let mut entry = Vec::new();
                let (name, description) = (&self.export.name, &self.export.description);
                ServerEntry { name, description }.encode_into(&mut entry);
                self.reply(option, rep::SERVER, &entry);
                self.reply(option, rep::ACK, &[]);
            }
            opt::LIST => self.reply(option, rep::ERR_INVALID, b"LIST takes no data"),
            _ => self.info(option, data),
        }
        Ok(())
    }

    fn export_name(&mut self, data: &[u8]) -> Result<(), Refusal> {
        if !self.is_served(text(data, "export name")?) {
            return Err(Refusal::UnknownExport);
        }
        let reply = ExportNameReply { bytes: self.export.bytes, flags: TRANSMISSION_FLAGS };
        self.output.extend_from_slice(&reply.encode());
        if !self.no_zeroes {
            self.output.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        self.progress = Progress::Transmission;
        Ok(())
    }

    /// `INFO` and `GO`: the same answer, after which `GO` starts transmission.
    ///
    /// A client that does not ask for the block size may go on: proto.md lets
    /// a server with stricter constraints do so if it cleanly refuses requests
    /// that fall outside them, and ours does.
    fn info(&mut self, option: u32, data: &[u8]) {
        let request = match InfoRequest::parse(data) {
            Ok(request) => request,
            Err(malformed) => {
                let reason = malformed.to_string();
                return self.reply(option, rep::ERR_INVALID, reason.as_bytes());
            }
        };
        if !self.is_served(request.name) {
            let reason = format!("no such export; this server has {:?}", self.export.name);
            return self.reply(option, rep::ERR_UNKNOWN, reason.as_bytes());
        }
        let export = self.export.clone();
        self.info_reply(option, Info::Export { bytes: export.bytes, flags: TRANSMISSION_FLAGS });
        let page = PAGE_BYTES as u32;
        // A page is the unit of checksums, so it is the smallest request. It is
        // also the preferred one: "preferred" means "no read-modify-write", which
        // holds for any whole pages, and a larger value would make clients pad.
        let sizes = Info::BlockSize { minimum: page, preferred: page, maximum: export.max_payload };
        for (kind, item) in [
            (info::BLOCK_SIZE, sizes),
            (info::NAME, Info::Name(&export.name)),
            (info::DESCRIPTION, Info::Description(&export.description)),
        ] {
            if request.wanted().any(|wanted| wanted == kind) {
                self.info_reply(option, item);
            }
        }
        self.reply(option, rep::ACK, &[]);
        if option == opt::GO {
            self.progress = Progress::Transmission;
        }
    }

    fn is_served(&self, name: &str) -> bool {
        name.is_empty() || name == self.export.name
    }

    fn info_reply(&mut self, option: u32, item: Info<'_>) {
        let mut data = Vec::new();
        item.encode_into(&mut data);
        self.reply(option, rep::INFO, &data);
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        // An error's text is a string of the protocol, with its limit.
        let data = if kind & rep::ERROR_BIT == 0 {
            data
        } else {
            &data[..data.len().min(MAX_STRING_BYTES)]
        };
        let head = OptionReply { option, kind, bytes: data.len() as u32 };
        self.output.extend_from_slice(&head.encode());
        self.output.extend_from_slice(data);
    }
}
