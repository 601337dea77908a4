// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to measure, checked.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, PAGE_BYTES};

/// Something that can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An export of an NBD server on a Unix socket.
    Nbd {
        /// The socket.
        socket: PathBuf,
        /// The export's name; empty is the default export.
        name: String,
    },
    /// A block device or a file.
    Path(PathBuf),
}

impl Target {
    /// Parses `unix:PATH`, `nbd+unix:///NAME?socket=PATH` (the scheme of the
    /// NBD URI specification) or a path.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(Kind::Invalid, format!("target {text:?}: {why}"))
                .with_hint("write unix:PATH, nbd+unix:///NAME?socket=PATH, or the path of a device")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong("no path after unix:"));
            }
            return Ok(Self::Nbd { socket: path.into(), name: String::new() });
        }
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (name, query) = rest.split_once('?').ok_or_else(|| wrong("no ?socket=PATH"))?;
            let socket = query
                .strip_prefix("socket=")
                .filter(|path| !path.is_empty() && !path.contains('&'))
                .ok_or_else(|| wrong("the query must be socket=PATH alone"))?;
            let name = name.strip_prefix('/').unwrap_or(name);
            let decoded = |part: &str| decoded(part).ok_or_else(|| wrong("bad % escape"));
            return Ok(Self::Nbd { socket: decoded(socket)?.into(), name: decoded(name)? });
        }
        if text.contains("://") {
            return Err(wrong("only nbd+unix:// is known"));
        }
        Ok(Self::Path(text.into()))
    }
}

/// Decodes `%41` escapes; `None` if one is broken or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The order in which blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Uniformly at random.
    Random,
    /// In order, from the start again at the end.
    Sequential,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the depth allows.
    Full,
    /// One at a time, with a rest after each answer.
    Pause(Duration),
    /// One at a time, at fixed instants.
    Every(Duration),
}

/// What to measure and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One target, or two to be compared.
    pub targets: Vec<Target>,
    /// Their names as the person gave them.
    pub names: Vec<String>,
    /// How often each is measured.
    pub rounds: u32,
    /// Connections, or groups of threads.
    pub connections: u32,
    /// Requests open on each.
    pub depth: u32,
    /// Writes in a hundred requests.
    pub write_percent: u32,
    /// Bytes of a request, whole pages.
    pub block_bytes: u32,
    /// Length of a round.
    pub seconds: u64,
    /// How much of the target is used; `None`: all of it.
    pub span: Option<ByteLen>,
    /// The order of the blocks.
    pub pattern: Pattern,
    /// When requests are sent.
    pub pace: Pace,
    /// Whether every block is written before the clock starts.
    pub fill: bool,
    /// Whether data on the target may be overwritten.
    pub destroy_contents: bool,
}

impl Plan {
    /// Whether anything is written to the target.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.fill || self.write_percent > 0
    }

    /// How many blocks each connection gets on a target of `bytes`; connection
    /// `n` starts at block `n` times that.
    pub fn blocks_per_connection(&self, name: &str, bytes: u64) -> Result<u64> {
        let used = match self.span {
            Some(span) if span.0 > bytes => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("span {span} is more than {name} has: {}", ByteLen(bytes)),
                ));
            }
            Some(span) => span.0,
            None => bytes,
        };
        let blocks = used / u64::from(self.block_bytes) / u64::from(self.connections);
        if blocks < u64::from(self.depth) {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "{} of {name} gives each of {} connections {blocks} blocks of {}: fewer than \
                     the {} requests open on it",
                    ByteLen(used),
                    self.connections,
                    ByteLen(self.block_bytes.into()),
                    self.depth
                ),
            )
            .with_hint("use a larger span, a smaller block, or fewer connections or requests"));
        }
        Ok(blocks)
    }

    /// Pages in a block.
    #[must_use]
    pub fn pages_per_block(&self) -> u64 {
        u64::from(self.block_bytes) / PAGE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nbd(socket: &str, name: &str) -> Target {
        Target::Nbd { socket: socket.into(), name: name.into() }
    }

    #[test]
    fn targets_are_told_apart_and_decoded() {
        let good = [
            ("unix:/a b", nbd("/a b", "")),
            ("nbd+unix://?socket=/s", nbd("/s", "")),
            ("nbd+unix:///?socket=/s", nbd("/s", "")),
            ("nbd+unix:///swap%20one?socket=/a%2Fb", nbd("/a/b", "swap one")),
            ("/dev/zram0", Target::Path("/dev/zram0".into())),
        ];
        for (text, target) in good {
            assert_eq!(Target::parse(text).unwrap(), target, "{text}");
        }
        for text in [
            "unix:",
            "nbd+unix:///x",
            "nbd+unix:///x?sock=/s",
            "nbd+unix:///%zz?socket=/s",
            "nbd+unix:///x?socket=",
            "nbd://host/x",
            "nbd+unix:///x?socket=/s&tls=1",
        ] {
            assert_eq!(Target::parse(text).unwrap_err().kind(), Kind::Invalid, "{text}");
        }
    }
}
