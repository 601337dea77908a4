// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NBD server in memory that can be wrong in one chosen way, so that tests
//! can see whether a client notices.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sluice::block::nbd::wire::{
    CLIENT_FLAGS_BYTES, GREETING_BYTES, Greeting, Info, OPTION_HEADER_BYTES, OptionHeader,
    OptionReply, REQUEST_BYTES, Reply, Request, cmd, errno, flag, handshake, opt, rep,
};

/// What the server does wrong, at every `every`th read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// One bit of what is read is another.
    FlippedBit,
    /// Writes are answered and not done.
    LostWrite,
    /// Writes land one page further.
    MisplacedWrite,
    /// Reads give zeros.
    Zeros,
    /// Only the first sector of a write is done.
    TornWrite,
    /// Requests fail.
    Error,
    /// The connection closes.
    Close,
    /// A reply begins with another magic.
    BadMagic,
    /// A reply is to a request that was never made.
    BadCookie,
}

/// Serves until the process ends.
pub fn serve(dir: &Path, bytes: usize, fault: Fault, every: u64) -> PathBuf {
    let socket = dir.join(format!("{fault:?}.sock"));
    let listener = UnixListener::bind(&socket).unwrap();
    let memory = Arc::new(Mutex::new(vec![0; bytes]));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let memory = Arc::clone(&memory);
            // A client that leaves early ends its thread with an error; that is its business.
            std::thread::spawn(move || talk(stream?, &memory, fault, every));
        }
    });
    socket
}

fn talk(
    mut stream: UnixStream,
    memory: &Mutex<Vec<u8>>,
    fault: Fault,
    every: u64,
) -> std::io::Result<()> {
    let greeting: [u8; GREETING_BYTES] =
        Greeting { flags: handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES }.encode();
    stream.write_all(&greeting)?;
    stream.read_exact(&mut [0; CLIENT_FLAGS_BYTES])?;
    let mut head = [0; OPTION_HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let option = OptionHeader::parse(&head).unwrap();
    assert_eq!(option.option, opt::GO);
    stream.read_exact(&mut vec![0; option.bytes as usize])?;
    let flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_TRIM | flag::CAN_MULTI_CONN;
    let mut data = Vec::new();
    Info::Export { bytes: memory.lock().unwrap().len() as u64, flags }.encode_into(&mut data);
    let reply = |kind, bytes| OptionReply { option: opt::GO, kind, bytes }.encode();
    stream.write_all(&reply(rep::INFO, data.len() as u32))?;
    stream.write_all(&data)?;
    stream.write_all(&reply(rep::ACK, 0))?;

    let mut count = 0;
    loop {
        let mut head = [0; REQUEST_BYTES];
        stream.read_exact(&mut head)?;
        let request = Request::parse(&head).unwrap();
        if request.kind == cmd::DISC {
            return Ok(());
        }
        let range = request.offset as usize..request.offset as usize + request.bytes as usize;
        let mut payload = vec![0; request.bytes as usize];
        if request.kind == cmd::WRITE {
            stream.read_exact(&mut payload)?;
        }
        count += 1;
        let fault = if count % every == 0 { fault } else { Fault::None };
        let mut memory = memory.lock().unwrap();
        match (request.kind, fault) {
            (_, Fault::Close) => return Ok(()),
            // Answered, and nothing done: as asked of a flush, as is wrong of the others.
            (_, Fault::Error)
            | (cmd::WRITE, Fault::LostWrite)
            | (cmd::READ, Fault::Zeros)
            | (cmd::FLUSH, _) => {}
            (cmd::WRITE, Fault::MisplacedWrite) => {
                let last = memory.len() - payload.len();
                let start = (range.start + 4096).min(last);
                memory[start..start + payload.len()].copy_from_slice(&payload);
            }
            (cmd::WRITE, Fault::TornWrite) => {
                memory[range.start..range.start + 512].copy_from_slice(&payload[..512]);
            }
            (cmd::WRITE, _) => memory[range].copy_from_slice(&payload),
            (cmd::READ, _) => payload.copy_from_slice(&memory[range]),
            (cmd::TRIM, _) => memory[range].fill(0),
            (kind, _) => panic!("unexpected request {kind}"),
        }
        drop(memory);
        let error = if fault == Fault::Error { errno::EIO } else { 0 };
        let cookie = request.cookie ^ if fault == Fault::BadCookie { 1 << 40 } else { 0 };
        let mut reply = Reply { error, cookie }.encode();
        if fault == Fault::BadMagic {
            reply[0] ^= 1;
        }
        stream.write_all(&reply)?;
        if request.kind == cmd::READ && error == 0 {
            if fault == Fault::FlippedBit {
                payload[2000] ^= 4;
            }
            stream.write_all(&payload)?;
        }
    }
}
