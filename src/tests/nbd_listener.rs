// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Unix-socket server: its file, its limits, its end.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sluice::block::nbd::connection;
use sluice::block::nbd::handshake::Export;
use sluice::block::nbd::listener::{Listener, Options, Server};
use sluice::block::nbd::wire::{
    GREETING_BYTES, InfoRequest, OPTION_REPLY_BYTES, OptionHeader, OptionReply, cmd,
    encode_client_flags, opt, rep,
};
use sluice::engine::error::{Error, Kind};

use crate::nbd_support::client::Client;
use crate::nbd_support::memory_io::{Disk, MemoryIo, Style};
use crate::nbd_support::{PAGE, pattern};

const P: u32 = PAGE as u32;
const BYTES: usize = 1 << 20;

pub fn options(path: &Path, bytes: usize) -> Options {
    Options {
        path: path.to_owned(),
        export: Export {
            name: "test".into(),
            description: "a store in memory".into(),
            bytes: bytes as u64,
            max_payload: MemoryIo::MAX_PAYLOAD,
        },
        max_clients: 8,
        handshake_deadline: Duration::from_secs(600),
        connection: connection::Options::default(),
    }
}

pub fn serve(options: Options, disk: &Arc<Disk>, style: Style) -> Server {
    let disk = disk.clone();
    let listener = Listener::bind(options).unwrap();
    listener.serve(move |waker| Ok(MemoryIo::new(disk.clone(), style, waker))).unwrap()
}

/// Connects and sends everything up to GO; reads nothing. `None`: closed meanwhile.
fn try_dial(path: &Path) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(path).unwrap();
    let mut data = Vec::new();
    InfoRequest::encode_into("test", &[], &mut data);
    let header = OptionHeader { option: opt::GO, bytes: data.len() as u32 };
    stream.write_all(&[&encode_client_flags(3)[..], &header.encode(), &data].concat()).ok()?;
    Some(stream)
}

fn dial(path: &Path) -> UnixStream {
    try_dial(path).expect("closed at once")
}

/// Reads the answers to [`dial`]; true: transmission starts.
fn is_let_in(stream: &mut UnixStream) -> bool {
    if stream.read_exact(&mut [0; GREETING_BYTES]).is_err() {
        return false;
    }
    loop {
        let mut head = [0; OPTION_REPLY_BYTES];
        if stream.read_exact(&mut head).is_err() {
            return false;
        }
        let head = OptionReply::parse(&head).unwrap();
        stream.read_exact(&mut vec![0; head.bytes as usize]).unwrap();
        if head.kind == rep::ACK {
            return true;
        }
    }
}

fn connect(path: &Path) -> Client {
    let mut stream = dial(path);
    assert!(is_let_in(&mut stream), "refused");
    Client::new(stream)
}

fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // A reset is as closed as it gets.
    stream.read_to_end(&mut rest).is_err() || rest.len() <= GREETING_BYTES
}

#[test]
fn the_socket_file_is_private_and_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = serve(options(&path, BYTES), &Disk::new(BYTES), Style::Prompt);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    server.stop();
    assert!(!path.exists());
}

#[test]
fn an_abandoned_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = serve(options(&path, BYTES), &Disk::new(BYTES), Style::Prompt);
    connect(&path).read(0, P);
    server.stop();
}

#[test]
fn what_belongs_to_others_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let live = folder.path().join("live");
    let queue = short_queue(&live);
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let long = folder.path().join("x".repeat(120));
    let nowhere = folder.path().join("no/such/folder");
    for (path, kind) in [
        (&live, Kind::Busy),
        (&file, Kind::Invalid),
        (&link, Kind::Invalid),
        (&long, Kind::Invalid),
        (&nowhere, Kind::Missing),
    ] {
        let error = Listener::bind(options(path, BYTES)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(std::fs::read(&link).unwrap(), b"precious");
    // A server too busy to accept is no abandoned one.
    let mut queued = Vec::new();
    while let Ok(client) = connect_now(&live) {
        queued.push(client);
    }
    assert_eq!(Listener::bind(options(&live, BYTES)).unwrap_err().kind(), Kind::Busy);
    drop(queue);
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// A listener that lets a client or two wait and accepts none.
fn short_queue(path: &Path) -> OwnedFd {
    let socket = socket();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    socket
}

/// Connects unless the queue is full.
fn connect_now(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = socket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap())?;
    Ok(socket)
}

#[test]
fn a_new_file_in_place_of_ours_survives_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = serve(options(&path, BYTES), &Disk::new(BYTES), Style::Prompt);
    std::fs::rename(&path, folder.path().join("moved")).unwrap();
    std::fs::write(&path, "another").unwrap();
    server.stop();
    assert_eq!(std::fs::read(&path).unwrap(), b"another");
}

#[test]
fn clients_at_the_same_time_see_one_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let disk = Disk::new(BYTES);
    let server = serve(options(&path, BYTES), &disk, Style::Shuffled(8));
    let mut clients: Vec<Client> = (0..4).map(|_| connect(&path)).collect();
    for round in 0..40u64 {
        for writer in 0..clients.len() {
            let data = pattern(round * 4 + writer as u64 + 1);
            let written = clients[writer].write(0, &data);
            clients[writer].expect(written, 0);
            for reader in &mut clients {
                assert_eq!(reader.read(0, P), data);
            }
        }
    }
    // One that dies harms no other.
    drop(clients.swap_remove(0));
    clients[0].read(0, P);
    server.stop();
    for client in &mut clients {
        client.expect_closed();
    }
}

#[test]
fn one_client_too_many_is_closed_and_a_seat_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut options = options(&path, BYTES);
    options.max_clients = 2;
    let server = serve(options, &Disk::new(BYTES), Style::Prompt);
    let mut first = connect(&path);
    let _second = connect(&path);
    let mut third = UnixStream::connect(&path).unwrap();
    assert!(is_closed(&mut third));
    first.ask(cmd::DISC, 0, 0);
    first.expect_closed();
    // The seat is free once the server's thread is gone, a moment after the end
    // of the stream; until then it may say no.
    let mut again = loop {
        if let Some(mut stream) = try_dial(&path)
            && is_let_in(&mut stream)
        {
            break Client::new(stream);
        }
    };
    again.read(0, P);
    server.stop();
}

#[test]
fn a_client_that_says_nothing_is_closed_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut options = options(&path, BYTES);
    options.handshake_deadline = Duration::from_millis(50);
    let server = serve(options, &Disk::new(BYTES), Style::Prompt);
    for sent in [&[][..], &[0, 0, 0], &encode_client_flags(3)] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(sent).unwrap();
        assert!(is_closed(&mut stream));
    }
    server.stop();
}

#[test]
fn stop_ends_a_handshake() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = serve(options(&path, BYTES), &Disk::new(BYTES), Style::Prompt);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
    server.stop();
    assert!(is_closed(&mut stream));
}

#[test]
fn a_client_whose_store_cannot_be_made_is_closed_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = Listener::bind(options(&path, BYTES)).unwrap();
    let server = listener
        .serve(|_| Err::<MemoryIo, _>(Error::new(Kind::NoSpace, "no lane is free")))
        .unwrap();
    let mut stream = dial(&path);
    assert!(!is_let_in(&mut stream));
    server.stop();
    // The same for a store of another size than the clients were told.
    let disk = Disk::new(2 * BYTES);
    let server = serve(options(&path, BYTES), &disk, Style::Prompt);
    assert!(!is_let_in(&mut dial(&path)));
    server.stop();
}

#[test]
fn an_independent_client_finds_the_export_by_either_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = serve(options(&path, BYTES), &Disk::new(BYTES), Style::Prompt);
    for name in [&b""[..], b"test"] {
        let stream = UnixStream::connect(&path).unwrap();
        let export = nbd::client::handshake(&stream, name).unwrap();
        assert_eq!((export.size, export.readonly), (BYTES as u64, false));
        assert!(export.send_trim && export.send_flush);
    }
    let stream = UnixStream::connect(&path).unwrap();
    assert!(nbd::client::handshake(&stream, b"other").is_err());
    server.stop();
}
