// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that ask well, badly, slowly or not at all.

use std::io::{BufRead, BufReader};
use std::net::Shutdown;

use super::*;
use crate::engine::view::{Ended, MAX_DEADLINE_MS, Outcome};

fn bound() -> (tempfile::TempDir, PathBuf, ControlSocket) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.sock");
    let socket = ControlSocket::bind(&path).unwrap();
    (folder, path, socket)
}

fn said(path: &Path, text: &str) -> UnixStream {
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(text.as_bytes()).unwrap();
    client
}

fn line(client: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    line
}

fn outcome() -> Reply {
    Reply::Ended(Outcome {
        outcome: Ended::Done,
        elapsed_ms: 3,
        target_bytes: 0,
        held_bytes: 0,
        slabs_released: 2,
        released_bytes: 128 << 20,
        extents_moved: 5,
        moved_bytes: 10 << 20,
        left_bytes: 0,
        left_pages: 0,
        continues: false,
        message: String::new(),
    })
}

#[test]
fn a_live_socket_is_busy_and_a_dead_one_is_replaced() {
    let (folder, path, first) = bound();
    let error = ControlSocket::bind(&path).err().unwrap();
    assert_eq!(error.downcast_ref::<Error>().unwrap().kind(), Kind::Busy);
    drop(first);
    assert!(!path.exists());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    ControlSocket::bind(&path).unwrap();
    drop(folder);
}

#[test]
fn what_is_no_request_is_refused_and_changes_nothing() {
    let (_folder, path, mut socket) = bound();
    let too_long = MAX_DEADLINE_MS + 1;
    for nonsense in [
        "{}",
        "no json",
        "",
        "[]",
        r#"{"command":"explode"}"#,
        r#"{"command":"status","also":1}"#,
        r#"{"command":"status"}{"command":"drain"}"#,
        r#"{"command":"drain","deadline":5}"#,
        r#"{"command":"drain","deadline_ms":-1}"#,
        r#"{"command":"drain","deadline_ms":1.5}"#,
        r#"{"command":"drain","deadline_ms":"5s"}"#,
        &format!(r#"{{"command":"drain","deadline_ms":{too_long}}}"#),
        r#"{"command":"target"}"#,
        r#"{"command":"target","bytes":"1G"}"#,
        r#"{"command":"target","bytes":-1}"#,
        r#"{"command":"target","bytes":1,"bytes":2}"#,
        r#"{"command":"target","bytes":1125899906842625}"#,
        r#"{"command":"target","bytes":99999999999999999999}"#,
        r#"{"command":"target","bytes":1,"tier":7}"#,
        r#"{"command":"readmit"}"#,
        r#"{"command":"readmit","tier":"cuda:0","deadline_ms":1}"#,
    ] {
        let client = said(&path, &format!("{nonsense}\n"));
        socket.serve(&mut |request| unreachable!("{nonsense} was taken for {request:?}"));
        let line = line(&client);
        assert!(line.starts_with(r#"{"error":"#), "{nonsense}: {line}");
    }
    let client = said(&path, &format!("{}\n", "x".repeat(MAX_LINE + 1)));
    socket.serve(&mut |request| unreachable!("{request:?}"));
    assert!(line(&client).contains("4096 bytes"));
}

#[test]
fn each_request_is_understood_as_it_is_meant() {
    let (_folder, path, mut socket) = bound();
    for request in [
        Request::Status {},
        Request::Target { bytes: 1 << 30, tier: Some("ram".into()), deadline_ms: Some(5000) },
        Request::Target { bytes: 0, tier: None, deadline_ms: None },
        Request::Drain { deadline_ms: Some(0) },
        Request::Resume { deadline_ms: None },
        Request::CloseGpu { deadline_ms: Some(MAX_DEADLINE_MS) },
        Request::Readmit { tier: "cuda:1".into() },
    ] {
        let client = said(&path, &format!("{}\n", serde_json::to_string(&request).unwrap()));
        let mut asked = Vec::new();
        socket.serve(&mut |request| {
            asked.push(request);
            Answer::Now(outcome())
        });
        assert_eq!(asked, [request]);
        assert_eq!(line(&client), serde_json::to_string(&outcome()).unwrap() + "\n");
    }
    assert!(socket.clients.is_empty());
}

#[test]
fn clients_that_wait_do_not_keep_others_from_being_answered() {
    let (_folder, path, mut socket) = bound();
    let slow = said(&path, r#"{"command":"#);
    let waits: Vec<_> = (0..3).map(|_| said(&path, "{\"command\":\"drain\"}\n")).collect();
    let mut tickets = 0;
    socket.serve(&mut |_| {
        tickets += 1;
        Answer::Later(Ticket(tickets))
    });
    assert_eq!((tickets, socket.clients.len()), (3, 4));

    let asks = said(&path, "{\"command\":\"status\"}\n");
    socket.serve(&mut |_| Answer::Now(outcome()));
    assert!(line(&asks).contains("\"done\""));

    // The first hangs up, the second has only nothing more to say.
    let mut waits = waits.into_iter();
    drop(waits.next());
    let second = waits.next().unwrap();
    second.shutdown(Shutdown::Write).unwrap();
    socket.serve(&mut |request| unreachable!("{request:?}"));
    assert_eq!(socket.clients.len(), 3);
    for ticket in 1..=3 {
        socket.finish(Ticket(ticket), &outcome());
    }
    socket.serve(&mut |request| unreachable!("{request:?}"));
    assert!(line(&second).contains("\"done\""));
    assert!(line(&waits.next().unwrap()).contains("\"done\""));
    assert_eq!(socket.clients.len(), 1, "only the slow one is left");

    // It is given up when its time is over, and nobody waited for it.
    assert!(socket.due().is_some());
    socket.clients[0].until = Instant::now();
    socket.serve(&mut |request| unreachable!("{request:?}"));
    assert!(socket.clients.is_empty());
    drop(slow);
}

#[test]
fn one_client_too_many_is_told_so() {
    let (_folder, path, mut socket) = bound();
    let many: Vec<_> = (0..MAX_CLIENTS).map(|_| said(&path, "{\"command\":\"drain\"}\n")).collect();
    socket.serve(&mut |_| Answer::Later(Ticket(1)));
    let one_more = said(&path, "{\"command\":\"drain\"}\n");
    socket.serve(&mut |request| unreachable!("{request:?}"));
    assert!(line(&one_more).contains("32 clients"));
    drop(many);
}
