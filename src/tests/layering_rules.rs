// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may see whom: one table, and the check of one file against it.

use super::layering_scan::mentions;

/// What one layer may see of this crate, of others, and of `std`.
struct Layer {
    name: &'static str,
    /// Modules of this crate.
    modules: &'static [&'static str],
    /// Other crates.
    crates: Crates,
    /// Parts of `std` it must not see, tests apart.
    not_std: &'static [&'static str],
    instead: &'static str,
}

enum Crates {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static [&'static str]]),
}

/// Crates of the programs' outermost layers: arguments, files, logs, reports.
const OUTER: &[&str] = &[
    "anyhow",
    "clap",
    "clap_complete",
    "clap_mangen",
    "lexopt",
    "sd_notify",
    "toml",
    "tracing_journald",
    "tracing_subscriber",
];
/// The machinery of adapters. `rustix` is not in it: the client looks at the
/// machine with it to explain it.
const SYSTEM: &[&str] = &["crc32c", "libc", "neli", "sd_notify", "tracing_journald"];
/// What only the control plane may use: the store has no executor and no bus.
const BUS: &[&str] = &["futures_lite", "tokio", "zbus"];
/// What only the desktop's tray may use.
const DESKTOP: &[&str] = &["ksni"];
/// A clock, a file, a thread or an output, however it is spelt.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "std::path",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::UNIX_EPOCH",
    "std::time::*",
    "std::os::unix",
    "std::os::linux",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
];

const LAYERS: &[Layer] = &[
    Layer {
        name: "engine",
        modules: &["engine"],
        crates: Crates::Only(&["serde", "thiserror"]),
        not_std: IMPURE,
        instead: "take time, memory and files as arguments or behind a trait of engine::tier",
    },
    Layer {
        name: "config",
        modules: &["config", "engine::units", "engine::error", "engine::gpu"],
        crates: Crates::Only(&["serde", "thiserror", "toml"]),
        // Addresses are plain data; sockets are not.
        not_std: &[
            "std::net::TcpListener",
            "std::net::TcpStream",
            "std::net::ToSocketAddrs",
            "std::net::UdpSocket",
            "std::net::*",
            "std::process",
            "std::thread",
            "std::time::Instant",
        ],
        instead: "keep plain data and its rules here; act on it in runtime",
    },
    Layer {
        name: "driver",
        modules: &["driver", "config"],
        crates: Crates::Only(&["serde", "toml"]),
        not_std: &["std::net", "std::process", "std::thread", "std::time::Instant"],
        instead: "read files and conclude from them here; show it in cli or the loader",
    },
    Layer {
        name: "tier",
        modules: &["tier", "engine"],
        crates: Crates::AllBut(&[OUTER, BUS, DESKTOP]),
        not_std: &[],
        instead: "say what is needed in a trait of engine, and let runtime pass it in",
    },
    Layer {
        name: "block",
        modules: &["block", "engine"],
        crates: Crates::AllBut(&[OUTER, BUS, DESKTOP]),
        not_std: &[],
        instead: "say what is needed in a trait of engine, and let runtime pass it in",
    },
    Layer {
        name: "host",
        modules: &["host", "engine"],
        crates: Crates::AllBut(&[OUTER, BUS, DESKTOP]),
        not_std: &[],
        instead: "say what is needed in a trait of engine, and let runtime pass it in",
    },
    Layer {
        name: "power",
        modules: &["power", "engine"],
        crates: Crates::AllBut(&[OUTER, DESKTOP]),
        not_std: &[],
        instead: "say what is needed in a type of engine, and let runtime pass it in",
    },
    Layer {
        name: "vram",
        modules: &["vram", "engine"],
        crates: Crates::AllBut(&[OUTER, BUS, DESKTOP]),
        not_std: &[],
        instead: "say what is needed in a type of engine, and let runtime pass it in",
    },
    Layer {
        name: "bus",
        modules: &["bus", "engine"],
        crates: Crates::AllBut(&[OUTER, DESKTOP]),
        not_std: &[],
        instead: "hand the call over by the channel, and let runtime answer it",
    },
    // The store's half of runtime; its other half is runtime/control_plane.
    Layer {
        name: "runtime",
        modules: &["runtime", "engine", "config", "tier", "block", "host", "cli"],
        crates: Crates::AllBut(&[BUS, DESKTOP]),
        not_std: &[],
        instead: "put it into runtime/control_plane, which no page waits for",
    },
    Layer {
        name: "cli",
        modules: &["cli", "config", "driver", "engine"],
        crates: Crates::AllBut(&[SYSTEM, BUS, DESKTOP]),
        not_std: &[],
        instead: "let runtime run the command and hand plain data of engine back",
    },
    // What the tray shows and says, apart from how.
    Layer {
        name: "tray's words",
        modules: &["tray::view", "tray::notices", "engine"],
        crates: Crates::Only(&[]),
        not_std: IMPURE,
        instead: "take it as an argument, and let tray look at clocks and buses",
    },
    Layer {
        name: "tray",
        modules: &["tray", "bus", "engine"],
        crates: Crates::AllBut(&[OUTER, SYSTEM]),
        not_std: &[],
        instead: "ask sluiced over the bus, as any client",
    },
    Layer {
        name: "desktop",
        modules: &["tray", "cli"],
        crates: Crates::AllBut(&[SYSTEM, BUS, DESKTOP]),
        not_std: &[],
        instead: "give the work to tray or cli",
    },
    // The three other programs.
    Layer {
        name: "main",
        modules: &["runtime", "cli", "config"],
        crates: Crates::AllBut(&[SYSTEM, BUS, DESKTOP]),
        not_std: &[],
        instead: "give the work to runtime or cli",
    },
];

/// The layer of a file below `src/`; `None`: it may see everything.
fn layer_of(file: &str) -> Option<&'static Layer> {
    let name = match file.split('/').next()? {
        "ctl.rs" | "daemon.rs" | "main.rs" => "main",
        "desktop.rs" => "desktop",
        "tray" if matches!(file, "tray/view.rs" | "tray/notices.rs") => "tray's words",
        "runtime" if file.starts_with("runtime/control_plane/") => return None,
        name => name,
    };
    LAYERS.iter().find(|layer| layer.name == name)
}

/// `engine/session/pieces.rs` is `["engine", "session", "pieces"]`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" | "main" | "ctl" | "daemon" | "desktop" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// True if `path` is `prefix` or below it.
fn below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The violations in one file below `src/`, given the names of all dependencies.
pub fn violations(file: &str, source: &str, dependencies: &[String]) -> Vec<String> {
    let Some(layer) = layer_of(file) else { return Vec::new() };
    let mut out = Vec::new();
    let mut report = |line: usize, what: &str| {
        let Layer { name, instead, .. } = layer;
        out.push(format!("src/{file}:{line}: {name} must not see {what}; instead: {instead}"));
    };
    for mention in mentions(&module_of(file), source) {
        let path = mention.path.as_str();
        let first = path.split("::").next().unwrap_or_default();
        let may = match (first, &layer.crates) {
            ("crate", _) => {
                layer.modules.iter().any(|module| below(path, &format!("crate::{module}")))
                    // A macro of the crate, or `$crate` inside one, names no module.
                    || path.ends_with('!')
            }
            ("std", _) => {
                let whole = matches!(path, "std" | "std::*") && !layer.not_std.is_empty();
                // As good as all of it, which is not allowed either.
                let opened = layer.not_std.iter().any(|not| not.strip_suffix("::*") == Some(path));
                mention.in_tests
                    || !(whole || opened || layer.not_std.iter().any(|not| below(path, not)))
            }
            (name, _) if name.ends_with('!') => mention.in_tests || !layer.not_std.contains(&name),
            (name, _) if !dependencies.iter().any(|known| known == name) => true,
            (_, _) if mention.in_tests => true,
            (name, Crates::Only(only)) => only.contains(&name),
            (name, Crates::AllBut(not)) => !not.iter().any(|list| list.contains(&name)),
        };
        if !may {
            report(mention.line, path);
        }
    }
    for (n, line) in source.lines().enumerate() {
        if line.trim_start().starts_with("#[path") && line.contains("..") {
            report(n + 1, "a file of another folder (#[path])");
        }
    }
    out
}

mod tests {
    use super::*;

    /// The violations of one planted line.
    fn planted(file: &str, source: &str) -> Vec<String> {
        let known =
            ["anyhow", "libc", "rustix", "serde", "tokio", "tracing", "proptest", "zbus", "ksni"];
        violations(file, source, &known.map(str::to_owned))
    }

    #[test]
    fn planted_violations_are_found() {
        for (file, source, what) in [
            ("engine/pins.rs", "use crate::tier::ram;", "crate::tier::ram"),
            ("engine/pins.rs", "use crate::{engine::units, host};", "crate::host"),
            (
                "engine/pins.rs",
                "use crate::{\n  engine::{a, b},\n  block::{nbd::{c, d}},\n};",
                "crate::block::nbd::d",
            ),
            ("engine/pins.rs", "use super::super::tier;", "crate::tier"),
            (
                "engine/session/pieces.rs",
                "use super::super::super::host::swap;",
                "crate::host::swap",
            ),
            ("engine/mod.rs", "use super::{engine, runtime as r};", "crate::runtime"),
            ("engine/pins.rs", "use super::super as all;", "crate"),
            ("engine/pins.rs", "use crate::*;", "crate::*"),
            ("engine/pins.rs", "mod inner { use super::super::super::tier; }", "crate::tier"),
            ("engine/pins.rs", "fn f() { crate::host::lock() }", "crate::host::lock"),
            ("engine/pins.rs", "fn f() -> std::io::Result<()> { g() }", "std::io::Result"),
            ("engine/pins.rs", "use std::{fmt, fs::File};", "std::fs::File"),
            ("engine/pins.rs", "use ::std::thread;", "std::thread"),
            ("engine/pins.rs", "use std as s;", "std"),
            ("engine/pins.rs", "use std::time;", "std::time"),
            ("engine/pins.rs", "let now = std::time::Instant::now();", "std::time::Instant::now"),
            ("engine/pins.rs", "use std::time::{Duration, SystemTime};", "std::time::SystemTime"),
            ("engine/pins.rs", "use core::time::{self, Duration};", "std::time"),
            ("engine/pins.rs", "println!(\"{x}\");", "println!"),
            ("engine/pins.rs", "let x = libc::getpid();", "libc::getpid"),
            ("engine/pins.rs", "extern crate rustix;", "rustix"),
            ("engine/pins.rs", "tracing::info!(\"moved\");", "tracing::info"),
            ("engine/tests.rs", "use crate::tier::ram;", "crate::tier::ram"),
            (
                "engine/pins.rs",
                "  #[path = \"../tier/ram.rs\"]\nmod ram;",
                "a file of another folder",
            ),
            ("config/load.rs", "use crate::engine::store::Store;", "crate::engine::store::Store"),
            ("config/load.rs", "use anyhow::Context;", "anyhow::Context"),
            ("config/load.rs", "use std::net;", "std::net"),
            ("config/load.rs", "use std::net::{IpAddr, TcpStream};", "std::net::TcpStream"),
            ("tier/ram.rs", "use crate::block::nbd;", "crate::block::nbd"),
            ("block/nbd/wire.rs", "use super::super::super::host;", "crate::host"),
            ("host/swap.rs", "use crate::{config::Config};", "crate::config::Config"),
            ("cli/args.rs", "use crate::block::bench::Plan;", "crate::block::bench::Plan"),
            ("cli/args.rs", "libc::getpid();", "libc::getpid"),
            ("ctl.rs", "use sluice::{cli, tier::ram};", "crate::tier::ram"),
            ("host/swap.rs", "use zbus::Connection;", "zbus::Connection"),
            ("power/upower.rs", "use crate::bus::unit;", "crate::bus::unit"),
            ("vram/mod.rs", "use tokio::time::sleep;", "tokio::time::sleep"),
            ("bus/manager.rs", "use crate::runtime::holder;", "crate::runtime::holder"),
            ("runtime/keeper.rs", "tokio::spawn(f());", "tokio::spawn"),
            ("runtime/keeper.rs", "use crate::power::upower;", "crate::power::upower"),
            ("daemon.rs", "use sluice::bus::manager;", "crate::bus::manager"),
            ("bus/watch.rs", "use ksni::Tray;", "ksni::Tray"),
            ("runtime/serve.rs", "use crate::tray;", "crate::tray"),
            ("tray/item.rs", "use crate::runtime::ask;", "crate::runtime::ask"),
            ("tray/view.rs", "use super::service;", "crate::tray::service"),
            (
                "tray/notices.rs",
                "let now = tokio::time::Instant::now();",
                "tokio::time::Instant::now",
            ),
            ("desktop.rs", "use sluice::runtime;", "crate::runtime"),
            ("main.rs", "sluice::host::memory::lock();", "crate::host::memory::lock"),
        ] {
            let found = planted(file, source);
            let line = format!("must not see {what}");
            assert!(
                found.iter().any(|text| text.contains(&line) && text.contains("; instead: ")),
                "{file}: {source:?} should say {line:?}, found {found:?}"
            );
        }
    }

    #[test]
    fn what_is_allowed_is_not_reported() {
        for (file, source) in [
            ("engine/pins.rs", "use super::sync::{AtomicU32, Ordering}; use std::sync::Arc;"),
            ("engine/pins.rs", "use std::time::Duration; use std::os::fd::OwnedFd; use std::fmt;"),
            (
                "engine/pins.rs",
                "// use crate::tier;\n/* std::fs /* nested */ crate::host */\nfn f() {}",
            ),
            (
                "engine/pins.rs",
                "/// Not [`crate::tier::ram`].\nconst A: &str = \"crate::tier \\\" std::fs\";",
            ),
            (
                "engine/pins.rs",
                "const A: &str = r#\"crate::tier \" std::fs\"#; const B: char = '\"';",
            ),
            ("engine/pins.rs", "fn f<'a>(x: &'a str) -> char { '\\'' }"),
            (
                "engine/pins.rs",
                "mod tests { use super::*; use std::thread; use proptest::prelude::*; }",
            ),
            (
                "engine/session/pieces.rs",
                "use super::super::store::Store; use super::{self, Table};",
            ),
            ("config/load.rs", "use crate::engine::{units::ByteLen, error}; use std::fs;"),
            ("config/load.rs", "use std::net::SocketAddr;"),
            ("tier/ram.rs", "use crate::engine::tier::Tier; use rustix::mm; use libc::mmap;"),
            ("cli/args.rs", "use crate::engine::view; use crate::config; use anyhow::Result;"),
            ("runtime/serve.rs", "use crate::{tier, host, block, cli};"),
            ("runtime/control_plane/daemon.rs", "use crate::{bus, power}; use tokio::sync;"),
            ("bus/manager.rs", "use super::error; use zbus::interface; use tokio::sync;"),
            ("tray/item.rs", "use super::view::Icon; use crate::bus::client; use ksni::Tray;"),
            ("desktop.rs", "use sluice::{cli, tray}; use clap::Parser;"),
            ("lib.rs", "pub mod tier; pub use tier::ram;"),
            ("ctl.rs", "use sluice::{cli, runtime, config::Config};"),
        ] {
            assert_eq!(planted(file, source), Vec::<String>::new(), "{file}: {source:?}");
        }
    }

    #[test]
    fn a_mention_has_its_line() {
        let found =
            planted("engine/pins.rs", "// one\n/* two\n */\nuse std::{\n    fmt,\n    fs,\n};\n");
        assert!(
            found[0].starts_with("src/engine/pins.rs:6: engine must not see std::fs;"),
            "{found:?}"
        );
    }
}
