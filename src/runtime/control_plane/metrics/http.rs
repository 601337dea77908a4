// SPDX-License-Identifier: MIT OR Apache-2.0
//! As much of HTTP/1.1 as a scrape needs: `GET` of one page, then the end.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::engine::view::metrics::CONTENT_TYPE;

/// The longest head of a request.
const MAX_HEAD: usize = 4096;
const BAD: &str = "400 Bad Request";
const LATE: &str = "408 Request Timeout";

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Answers one client: with the page, or why not; then closes.
pub(super) async fn answer<F: Future<Output = String>>(
    mut stream: impl Stream,
    patience: Duration,
    page: impl FnOnce() -> F,
) -> io::Result<()> {
    let judged = match timeout(patience, head(&mut stream)).await {
        Ok(head) => judge(&head?),
        Err(_) => Err(LATE),
    };
    let (status, body) = match judged {
        Ok(()) => ("200 OK", page().await),
        Err(status) => (status, format!("{status}\n")),
    };
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n\
         Allow: GET\r\nConnection: close\r\n\r\n{body}"
    );
    timeout(patience, async {
        stream.write_all(reply.as_bytes()).await?;
        stream.shutdown().await
    })
    .await?
}

/// The request up to its empty line, its end, or the most that it may be.
async fn head(stream: &mut impl Stream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !is_whole(&head) && head.len() <= MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n")
}

/// Whether the page was asked for; else what to answer.
fn judge(head: &[u8]) -> Result<(), &'static str> {
    if head.len() > MAX_HEAD {
        return Err("431 Request Header Fields Too Large");
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| BAD)?;
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        _ if !is_whole(head) => Err(BAD),
        ["GET", "/metrics", "HTTP/1.0" | "HTTP/1.1"] => Ok(()),
        ["GET", _, "HTTP/1.0" | "HTTP/1.1"] => Err("404 Not Found"),
        [_, _, "HTTP/1.0" | "HTTP/1.1"] => Err("405 Method Not Allowed"),
        _ => Err(BAD),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    /// What a client is answered that says this and no more.
    async fn said(request: &[u8]) -> String {
        let (server, mut client) = UnixStream::pair().unwrap();
        let answered = tokio::spawn(answer(server, PATIENT, || async { "page\n".to_owned() }));
        client.write_all(request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).await.unwrap();
        answered.await.unwrap().unwrap();
        reply
    }

    #[tokio::test]
    async fn a_get_of_the_page_is_answered_with_it_and_closed() {
        let reply = said(b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n").await;
        assert_eq!(
            reply,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: 5\r\nAllow: GET\r\nConnection: close\r\n\r\npage\n"
        );
        assert!(said(b"GET /metrics HTTP/1.0\r\n\r\n").await.ends_with("\r\n\r\npage\n"));
    }

    #[tokio::test]
    async fn everything_else_is_refused() {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(MAX_HEAD));
        let cases: [(&[u8], &str); 9] = [
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405 Method Not Allowed"),
            (long.as_bytes(), "431 Request Header Fields Too Large"),
            (b"GET /metrics HTTP/1.1\r\n", "400 Bad Request"),
            (b"GET /metrics\r\n\r\n", "400 Bad Request"),
            (b"GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"),
            (b"\xff\xfe\r\n\r\n", "400 Bad Request"),
            (b"", "400 Bad Request"),
        ];
        for (request, status) in cases {
            let reply = said(request).await;
            assert!(reply.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{status}: {reply}");
            assert!(!reply.contains("page"), "{status}: {reply}");
        }
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_is_not_waited_for() {
        let (server, mut client) = UnixStream::pair().unwrap();
        client.write_all(b"GET /metr").await.unwrap();
        let page = || async { unreachable!("it did not ask") };
        answer(server, Duration::from_millis(1), page).await.unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    }
}
