// SPDX-License-Identifier: MIT OR Apache-2.0
//! What sysfs tells about an nbd device that somebody has attached.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::engine::error::{Error, Kind, Result};

/// Who attached a device, as far as the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The process that attached it, in the initial PID namespace. It may be
    /// long gone: a device attached by netlink outlives it.
    pub pid: u32,
    /// That process's name, if it still runs.
    pub process: Option<String>,
    /// The identifier given at attach, if any (since Linux 5.14).
    pub backend: Option<String>,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some(name) => write!(f, "process {} ({name})", self.pid)?,
            None => write!(f, "process {}, which has ended", self.pid)?,
        }
        match &self.backend {
            Some(backend) => write!(f, ", back-end {backend}"),
            None => Ok(()),
        }
    }
}

/// Who attached `/dev/nbd<index>`; `None` if nobody has. Reads
/// `<root>/sys/block/nbd<index>/{pid,backend}` and `<root>/proc/PID/comm`.
pub fn attachment(root: &Path, index: u32) -> Result<Option<Attachment>> {
    let device = root.join(format!("sys/block/nbd{index}"));
    let path = device.join("pid");
    let Some(text) = read(&path)? else { return Ok(None) };
    let pid = text
        .parse()
        .map_err(|_| Error::new(Kind::Protocol, format!("{} is {text:?}", path.display())))?;
    Ok(Some(Attachment {
        pid,
        process: read(&root.join(format!("proc/{pid}/comm")))?,
        backend: read(&device.join("backend"))?.filter(|name| !name.is_empty()),
    }))
}

/// The nbd devices whose back-end identifier begins with `prefix`, in order.
pub fn attached_as(root: &Path, prefix: &str) -> Result<Vec<(u32, Attachment)>> {
    let folder = root.join("sys/block");
    let failed = |cause| {
        Error::new(Kind::Io, format!("cannot list {}", folder.display())).with_source(cause)
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let index = name.to_str().and_then(|name| name.strip_prefix("nbd")?.parse().ok());
        let Some(index) = index else { continue };
        if let Some(there) = attachment(root, index)?
            && there.backend.as_deref().is_some_and(|backend| backend.starts_with(prefix))
        {
            found.push((index, there));
        }
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found)
}

/// A one-line file without its line end; `None` if there is none.
fn read(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        // A process may call itself anything, UTF-8 or not.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())),
        // NODEV, SRCH: the device or process went away while being read.
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ESRCH)) =>
        {
            Ok(None)
        }
        Err(error) => {
            Err(Error::new(Kind::Io, format!("cannot read {}", path.display())).with_source(error))
        }
    }
}
