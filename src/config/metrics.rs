// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[metrics]`: where `sluiced` answers Prometheus. The store reads past it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::table::Section;

/// The longest path of a Unix socket: `sun_path` less its end.
const MAX_PATH: usize = 107;
/// Below it a right is needed that `sluiced` has not.
const FIRST_PORT: u16 = 1024;

/// `[metrics]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Where to listen.
    pub listen: Listen,
}

/// Where nobody but this machine can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket, absolute.
    Unix(PathBuf),
    /// A loopback address.
    Loopback(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::str::FromStr for Listen {
    type Err = String;

    /// Parses `unix:/PATH`, or a loopback address with its port.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match PathBuf::from(path) {
                path if !path.is_absolute() => {
                    Err("not an absolute path; write e.g. \"unix:/run/sluiced/metrics\"".into())
                }
                path if path.as_os_str().len() > MAX_PATH => {
                    Err(format!("longer than the {MAX_PATH} bytes that a socket's path may have"))
                }
                path => Ok(Self::Unix(path)),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "not an address with its port; write e.g. \"127.0.0.1:9778\", \"[::1]:9778\" or \
             \"unix:/run/sluiced/metrics\""
        })?;
        let port = address.port();
        if !address.ip().is_loopback() {
            return Err(format!(
                "other machines could reach it, and nothing here asks who they are; write \
                 \"127.0.0.1:{port}\", and put a server that asks in front of it"
            ));
        }
        if port < FIRST_PORT {
            return Err(format!("sluiced may not use port {port}; take one from {FIRST_PORT} on"));
        }
        Ok(Self::Loopback(address))
    }
}

pub(super) fn metrics(
    root: &DeTable<'_>,
    text: &str,
    problems: &mut Vec<Problem>,
) -> Option<Metrics> {
    let section = Section::find(root, text, "metrics", problems);
    section.refuse_others(&["listen"], problems);
    if !section.is_present() {
        return None;
    }
    let before = problems.len();
    let listen = section.take("listen", problems, |value: &DeValue<'_>| {
        value.as_str().ok_or("write it in quotes, e.g. \"127.0.0.1:9778\"")?.parse()
    });
    if listen.is_none() && problems.len() == before {
        problems.push(section.problem(
            "listen",
            None,
            "missing; say where to answer, e.g. listen = \"127.0.0.1:9778\" under [metrics]",
        ));
    }
    Some(Metrics { listen: listen?.value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_this_machine_can_be_listened_to() {
        for right in ["unix:/run/x", "127.0.0.1:1024", "127.9.8.7:65535", "[::1]:9778"] {
            let listen: Listen = right.parse().unwrap();
            assert_eq!(listen.to_string(), right);
        }
        let reachable = "other machines could reach it";
        let no_address = "not an address";
        for (wrong, why) in [
            ("0.0.0.0:9778", reachable),
            ("[::]:9778", reachable),
            ("192.168.1.2:9778", reachable),
            ("[::ffff:127.0.0.1]:9778", reachable),
            ("[fe80::1]:9778", reachable),
            ("localhost:9778", no_address),
            ("127.0.0.1", no_address),
            ("127.1:9778", no_address),
            (":9778", no_address),
            ("/run/x", no_address),
            ("", no_address),
            ("127.0.0.1:0", "port 0"),
            ("127.0.0.1:1023", "port 1023"),
            ("unix:run/x", "not an absolute path"),
            ("unix:", "not an absolute path"),
        ] {
            let error = wrong.parse::<Listen>().unwrap_err();
            assert!(error.starts_with(why) || error.contains(why), "{wrong}: {error}");
        }
        let long = format!("unix:/{}", "x".repeat(MAX_PATH));
        assert!(long.parse::<Listen>().unwrap_err().starts_with("longer than the 107 bytes"));
        assert!(long[..long.len() - 1].parse::<Listen>().is_ok());
    }
}
