// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client without opinions: it sends what it is told and reads what comes.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use sluice::block::nbd::wire::{REPLY_BYTES, Reply, Request, cmd};

/// One connection in the transmission phase.
pub struct Client {
    pub stream: UnixStream,
    cookie: u64,
    reads: HashMap<u64, usize>,
}

impl Client {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, cookie: 0xc00c_1e00, reads: HashMap::new() }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A request with the next cookie, remembered but not sent.
    pub fn request(&mut self, kind: u16, flags: u16, offset: u64, bytes: u32) -> Request {
        self.cookie += 1;
        if kind == cmd::READ {
            self.reads.insert(self.cookie, bytes as usize);
        }
        Request { flags, kind, cookie: self.cookie, offset, bytes }
    }

    /// Sends a request without payload and returns its cookie.
    pub fn ask(&mut self, kind: u16, offset: u64, bytes: u32) -> u64 {
        let request = self.request(kind, 0, offset, bytes);
        self.send(&request.encode());
        request.cookie
    }

    /// Sends a write and returns its cookie.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let request = self.request(cmd::WRITE, 0, offset, data.len() as u32);
        self.send(&[&request.encode()[..], data].concat());
        request.cookie
    }

    /// The next reply and the data that came with it; `None`: closed.
    pub fn reply(&mut self) -> Option<(Reply, Vec<u8>)> {
        let mut head = [0; REPLY_BYTES];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let reply = Reply::parse(&head).unwrap();
        let bytes = self.reads.remove(&reply.cookie).filter(|_| reply.error == 0).unwrap_or(0);
        let mut data = vec![0; bytes];
        self.stream.read_exact(&mut data).unwrap();
        Some((reply, data))
    }

    /// The next reply, which must be `cookie`'s with `error`; returns its data.
    pub fn expect(&mut self, cookie: u64, error: u32) -> Vec<u8> {
        let (reply, data) = self.reply().expect("closed instead of a reply");
        assert_eq!(reply, Reply { error, cookie });
        data
    }

    /// A read that must work.
    pub fn read(&mut self, offset: u64, bytes: u32) -> Vec<u8> {
        let cookie = self.ask(cmd::READ, offset, bytes);
        self.expect(cookie, 0)
    }

    /// The server must have closed.
    pub fn expect_closed(&mut self) {
        let next = self.reply();
        assert!(next.is_none(), "{next:?} instead of the end");
    }
}
