// SPDX-License-Identifier: MIT OR Apache-2.0
//! A blocking NBD client on a Unix socket: the handshake, and one request at a
//! time. For the load generator (which takes the socket over after the
//! handshake), the demonstration and tests; nothing that serves swap uses it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::wire::{
    CLIENT_FLAGS_BYTES, EXPORT_NAME_REPLY_BYTES, EXPORT_NAME_ZEROES, ExportNameReply,
    GREETING_BYTES, Greeting, Info, InfoRequest, OPTION_HEADER_BYTES, OPTION_REPLY_BYTES,
    OptionHeader, OptionReply, REPLY_BYTES, Reply, Request, client, cmd, encode_client_flags,
    errno, flag, handshake, info, opt, rep,
};
use crate::engine::error::{Error, Kind, Result};

/// A server that is silent for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(30);
/// As much as the kernel's own client could have under way; the system's limit may be lower.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Far above any option reply's data.
const MAX_OPTION_DATA: u32 = 64 << 10;
/// What a server takes in one request unless it says otherwise (proto.md "Size constraints").
const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;

/// What the server said about the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size.
    pub bytes: u64,
    /// What it can do, see [`flag`].
    pub flags: u16,
    /// Offsets and lengths are multiples of this.
    pub min_block: u32,
    /// The largest payload of one request.
    pub max_payload: u32,
}

impl Export {
    /// Whether the server said that `what` (of [`flag`]) works.
    #[must_use]
    pub fn can(&self, what: u16) -> bool {
        self.flags & what != 0
    }
}

/// A connection in transmission phase with nothing in flight.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    export: Export,
    /// For error messages.
    place: String,
    cookie: u64,
}

impl Client {
    /// Connects to `socket` and enters the export called `name`.
    ///
    /// Kinds: `Missing` (no server), `Denied`, `TimedOut`, `Protocol`,
    /// `Invalid` (no such export).
    pub fn connect(socket: &Path, name: &str) -> Result<Self> {
        let place = socket.display().to_string();
        let stream = UnixStream::connect(socket).map_err(|error| unreachable(&place, error))?;
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BUFFER_BYTES);
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|error| broken(&place, error))?;
        let export = Export { bytes: 0, flags: 0, min_block: 1, max_payload: DEFAULT_MAX_PAYLOAD };
        let mut client = Self { stream, export, place, cookie: 0 };
        client.shake_hands(name)?;
        Ok(client)
    }

    /// What the server said about the export.
    #[must_use]
    pub fn export(&self) -> Export {
        self.export
    }

    /// Gives up the socket, in transmission phase with nothing in flight.
    #[must_use]
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Reads `into.len()` bytes at `offset`.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.ask(cmd::READ, offset, into.len() as u32, &[])?;
        self.receive(into)
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.ask(cmd::WRITE, offset, data.len() as u32, data)
    }

    /// Tells that the range's contents are dead.
    pub fn trim(&mut self, offset: u64, bytes: u32) -> Result<()> {
        self.ask(cmd::TRIM, offset, bytes, &[])
    }

    /// Makes the range zeros.
    pub fn write_zeroes(&mut self, offset: u64, bytes: u32) -> Result<()> {
        self.ask(cmd::WRITE_ZEROES, offset, bytes, &[])
    }

    /// Makes what was answered before durable.
    pub fn flush(&mut self) -> Result<()> {
        self.ask(cmd::FLUSH, 0, 0, &[])
    }

    /// Takes leave. The server closes; there is no answer.
    pub fn disconnect(mut self) -> Result<()> {
        self.send_request(cmd::DISC, 0, 0)
    }

    fn shake_hands(&mut self, name: &str) -> Result<()> {
        let mut greeting = [0; GREETING_BYTES];
        self.receive(&mut greeting)?;
        let greeting = Greeting::parse(&greeting).map_err(|error| self.protocol(&error))?;
        if greeting.flags & handshake::FIXED_NEWSTYLE == 0 {
            return Err(self.protocol(&"the server lacks the fixed newstyle handshake"));
        }
        let mut flags = client::FIXED_NEWSTYLE;
        if greeting.flags & handshake::NO_ZEROES != 0 {
            flags |= client::NO_ZEROES;
        }
        let bytes: [u8; CLIENT_FLAGS_BYTES] = encode_client_flags(flags);
        self.send(&bytes)?;
        if self.go(name)? {
            return Ok(());
        }
        self.enter_by_name(name, flags & client::NO_ZEROES == 0)
    }

    /// Enters by `EXPORT_NAME`, all that old servers know.
    fn enter_by_name(&mut self, name: &str, zeroes: bool) -> Result<()> {
        let header = OptionHeader { option: opt::EXPORT_NAME, bytes: name.len() as u32 };
        self.send(&header.encode())?;
        self.send(name.as_bytes())?;
        let mut reply = [0; EXPORT_NAME_REPLY_BYTES];
        self.receive(&mut reply)?;
        let ExportNameReply { bytes, flags } = ExportNameReply::parse(&reply);
        self.export.bytes = bytes;
        self.export.flags = flags;
        self.receive(&mut [0; EXPORT_NAME_ZEROES][..if zeroes { EXPORT_NAME_ZEROES } else { 0 }])
    }

    /// Enters by `GO`; false if the server does not know that option.
    fn go(&mut self, name: &str) -> Result<bool> {
        let mut data = Vec::new();
        InfoRequest::encode_into(name, &[info::BLOCK_SIZE], &mut data);
        let header = OptionHeader { option: opt::GO, bytes: data.len() as u32 };
        let head: [u8; OPTION_HEADER_BYTES] = header.encode();
        self.send(&head)?;
        self.send(&data)?;
        loop {
            let mut head = [0; OPTION_REPLY_BYTES];
            self.receive(&mut head)?;
            let reply = OptionReply::parse(&head).map_err(|error| self.protocol(&error))?;
            if reply.option != opt::GO || reply.bytes > MAX_OPTION_DATA {
                return Err(self.protocol(&format!("unexpected option reply {reply:?}")));
            }
            data.resize(reply.bytes as usize, 0);
            self.receive(&mut data)?;
            match reply.kind {
                rep::ACK if self.export.flags & flag::HAS_FLAGS != 0 => return Ok(true),
                rep::ACK => return Err(self.protocol(&"entered an export of unknown size")),
                rep::INFO => self.learn(&data)?,
                rep::ERR_UNSUP => return Ok(false),
                rep::ERR_UNKNOWN => {
                    return Err(Error::new(
                        Kind::Invalid,
                        format!("the server at {} has no export {name:?}", self.place),
                    )
                    .with_hint("name the export: nbd+unix:///NAME?socket=PATH"));
                }
                kind if kind & rep::ERROR_BIT != 0 => {
                    let text = String::from_utf8_lossy(&data);
                    return Err(self.protocol(&format!("the export is refused ({kind:#x}) {text}")));
                }
                kind => return Err(self.protocol(&format!("unknown option reply {kind:#x}"))),
            }
        }
    }

    fn learn(&mut self, data: &[u8]) -> Result<()> {
        match Info::parse(data).map_err(|error| self.protocol(&error))? {
            Info::Export { bytes, flags } => {
                self.export.bytes = bytes;
                self.export.flags = flags;
            }
            Info::BlockSize { minimum, maximum, .. } => {
                self.export.min_block = minimum;
                self.export.max_payload = maximum;
            }
            Info::Name(_) | Info::Description(_) | Info::Other(_) => {}
        }
        Ok(())
    }

    fn ask(&mut self, kind: u16, offset: u64, bytes: u32, payload: &[u8]) -> Result<()> {
        self.send_request(kind, offset, bytes)?;
        self.send(payload)?;
        let mut head = [0; REPLY_BYTES];
        self.receive(&mut head)?;
        let reply = Reply::parse(&head).map_err(|error| self.protocol(&error))?;
        if reply.cookie != self.cookie {
            return Err(self.protocol(&format!("reply to cookie {}", reply.cookie)));
        }
        if reply.error != 0 {
            let failed = Error::new(
                match reply.error {
                    errno::EPERM => Kind::Denied,
                    errno::EINVAL | errno::EOVERFLOW => Kind::Invalid,
                    errno::ENOMEM | errno::ENOSPC => Kind::NoSpace,
                    _ => Kind::Io,
                },
                format!(
                    "{} answered request type {kind} of {bytes} bytes at {offset} with error {}",
                    self.place, reply.error
                ),
            );
            return Err(failed);
        }
        Ok(())
    }

    fn send_request(&mut self, kind: u16, offset: u64, bytes: u32) -> Result<()> {
        self.cookie += 1;
        let request = Request { flags: 0, kind, cookie: self.cookie, offset, bytes };
        self.send(&request.encode())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(|error| broken(&self.place, error))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        self.stream.read_exact(into).map_err(|error| broken(&self.place, error))
    }

    fn protocol(&self, what: &dyn std::fmt::Display) -> Error {
        Error::new(
            Kind::Protocol,
            format!("{} does not speak NBD as it should: {what}", self.place),
        )
    }
}

fn unreachable(place: &str, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Kind::Missing,
        ErrorKind::PermissionDenied => Kind::Denied,
        _ => Kind::Io,
    };
    Error::new(kind, format!("cannot reach an NBD server at {place}"))
        .with_source(error)
        .with_hint("start one there, e.g. sluice serve --tier ram --size 1G --socket PATH")
}

/// What a failed system call on an established connection means.
pub(in crate::block) fn broken(place: &str, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            Error::new(Kind::Io, format!("the server at {place} closed the connection"))
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::new(
            Kind::TimedOut,
            format!("the server at {place} was silent for {} s", PATIENCE.as_secs()),
        ),
        _ => Error::new(Kind::Io, format!("connection to {place}")).with_source(error),
    }
}
