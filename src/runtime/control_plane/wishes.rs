// SPDX-License-Identifier: MIT OR Apache-2.0
//! What people asked for, on disk: a file that is whole at any moment.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::engine::arbiter::Wishes;
use crate::engine::error::{Error, Kind, Result};

/// The file that keeps them.
pub(super) struct WishesFile {
    path: PathBuf,
}

impl WishesFile {
    /// The file in a folder, which is made if need be.
    pub fn new(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| {
            Error::new(Kind::Io, format!("cannot make the folder {}", folder.display()))
                .with_hint("name another one: sluiced --state-dir DIR")
                .with_source(error)
        })?;
        Ok(Self { path: folder.join("wishes.json") })
    }

    /// What is in it; nothing was asked for where there is no file.
    ///
    /// Errors: `Protocol` if it is not what was written. Guessing could switch on
    /// what was switched off by hand.
    pub fn read(&self) -> Result<Wishes> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Wishes::default()),
            Err(error) => return Err(self.failed("read", error)),
        };
        serde_json::from_str(&text).map_err(|error| {
            let what = format!("{} is not what sluiced wrote", self.path.display());
            Error::new(Kind::Protocol, what)
                .with_hint(format!("remove it: rm {}", self.path.display()))
                .with_source(error)
        })
    }

    /// Writes it anew.
    pub fn write(&self, wishes: &Wishes) -> Result<()> {
        let text = serde_json::to_string_pretty(wishes).expect("plain data serialises");
        let next = self.path.with_extension("json.new");
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&next, &self.path)
        });
        written.map_err(|error| self.failed("write", error))
    }

    fn failed(&self, what: &str, error: std::io::Error) -> Error {
        Error::new(Kind::Io, format!("cannot {what} {}", self.path.display())).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_come_back_and_a_broken_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = WishesFile::new(folder.path()).unwrap();
        assert_eq!(file.read().unwrap(), Wishes::default());
        let wishes = Wishes { off: true, target_bytes: Some(7), ..Wishes::default() };
        file.write(&wishes).unwrap();
        assert_eq!(file.read().unwrap(), wishes);
        for broken in ["", "{}", "{\"off\":true", "{\"off\":\"yes\"}"] {
            std::fs::write(folder.path().join("wishes.json"), broken).unwrap();
            let error = file.read().unwrap_err();
            assert_eq!(error.kind(), Kind::Protocol, "{broken:?}");
            assert!(error.hint().is_some());
        }
    }
}
