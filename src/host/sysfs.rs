// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small files of `/proc` and `/sys`: one value, one error text.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::engine::error::{Error, Kind, Result};

/// The file's text without the final line end; `None` if there is no such file.
/// Bytes that are not UTF-8 (in a foreign swap file's name, say) are replaced.
pub(super) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            Ok(Some(String::from_utf8_lossy(bytes).into_owned()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Error::new(Kind::Io, format!("cannot read {}", path.display())).with_source(error))
        }
    }
}

/// The file's text without the final line end.
pub(super) fn read(path: &Path) -> Result<String> {
    read_if_there(path)?
        .ok_or_else(|| Error::new(Kind::Missing, format!("there is no {}", path.display())))
}

/// The file's only value, a whole number.
pub(super) fn read_number(path: &Path) -> Result<u64> {
    let text = read(path)?;
    text.parse().map_err(|_| {
        Error::new(Kind::Protocol, format!("{} is {text:?}, no number", path.display()))
    })
}

/// Writes the file's value.
pub(super) fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::NotFound => Kind::Missing,
            ErrorKind::PermissionDenied => Kind::Denied,
            ErrorKind::InvalidInput => Kind::Invalid,
            _ => Kind::Io,
        };
        Error::new(kind, format!("cannot write {value} to {}", path.display())).with_source(error)
    })
}

/// A field in kB of a `Name:   123 kB` file such as `/proc/meminfo`, in bytes.
pub(super) fn kb_field(path: &Path, text: &str, name: &str) -> Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| Error::new(Kind::Protocol, format!("{}: no {name} in kB", path.display())))
}
