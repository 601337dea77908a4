// SPDX-License-Identifier: GPL-2.0-only
//! `build`: a policy's source to its object file, by clang with the same flags
//! as in `kernel-module/Makefile`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::failure::Failure;

const CLANGS: [&str; 4] = ["clang", "clang-19", "clang-16", "clang-14"];
const FLAGS: [&str; 8] =
    ["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"];

/// Compiles `source`, which ends in `.bpf.c`, with the headers below `headers`;
/// gives the object file, which lies beside it.
pub fn run(source: &Path, headers: &Path) -> Result<PathBuf> {
    let name = source.file_name().context("no file name")?.to_string_lossy().into_owned();
    let Some(stem) = name.strip_suffix(".bpf.c") else {
        bail!("{}: the source of a policy is called NAME.bpf.c", source.display());
    };
    if !headers.join("lib/policy.bpf.h").exists() {
        return Err(Failure::new(
            format!("there is no lib/policy.bpf.h below {}", headers.display()),
            "make -C kernel-module install, or give the folder bpf/ of the source with --headers",
        )
        .into());
    }
    let object = source.with_file_name(format!("{stem}.bpf.o"));
    for clang in CLANGS {
        let done = Command::new(clang)
            .args(FLAGS)
            .arg(format!("-isystem/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .arg("-I")
            .arg(headers)
            .arg("-I")
            .arg(headers.join("lib"))
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(&object)
            .status();
        match done {
            Ok(status) if status.success() => return Ok(object),
            Ok(_) => bail!("{clang} does not compile {}", source.display()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("cannot run {clang}")),
        }
    }
    Err(Failure::new("there is no clang", "apt-get install clang-19 libbpf-dev").into())
}
