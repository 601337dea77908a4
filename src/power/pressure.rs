// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pressure as the kernel counts it (`/proc/pressure/memory`, Linux 4.20
//! with PSI).

use std::path::Path;

use crate::engine::error::{Error, Kind, Result};

/// Percent of the last ten seconds in which some program waited for memory.
/// `Ok(None)`: this kernel does not count it.
pub fn read(root: &Path) -> Result<Option<f64>> {
    let path = root.join("proc/pressure/memory");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // EOPNOTSUPP: built in, and switched off at boot.
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) =>
        {
            return Ok(None);
        }
        Err(error) => {
            let what = format!("cannot read {}", path.display());
            return Err(Error::new(Kind::Io, what).with_source(error));
        }
    };
    parse(&text).map(Some).ok_or_else(|| {
        let line = text.lines().next().unwrap_or_default();
        Error::new(Kind::Protocol, format!("{}: not a line of pressure: {line:?}", path.display()))
    })
}

/// `some avg10=0.12 avg60=... avg300=... total=...`
fn parse(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Whether the machine counts as short of memory: from `threshold` percent on,
/// until it is below half of it.
#[must_use]
pub fn weigh(was: bool, percent: f64, threshold: u8) -> bool {
    let threshold = f64::from(threshold);
    if was { percent >= threshold / 2.0 } else { percent >= threshold }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_average_of_some_counts() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=123\n\
                    full avg10=3.00 avg60=0.00 avg300=0.00 total=45\n";
        assert_eq!(parse(text), Some(12.5));
        assert_eq!(parse("full avg10=3.00 avg60=0.00"), None);
        assert_eq!(parse("some avg10=x"), None);
    }

    #[test]
    fn pressure_ends_at_half_of_where_it_began() {
        assert!(!weigh(false, 9.9, 10));
        assert!(weigh(false, 10.0, 10));
        assert!(weigh(true, 5.0, 10));
        assert!(!weigh(true, 4.9, 10));
    }

    #[test]
    fn a_kernel_without_it_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path()).unwrap(), None);
        std::fs::create_dir_all(root.path().join("proc/pressure")).unwrap();
        std::fs::write(root.path().join("proc/pressure/memory"), "nonsense\n").unwrap();
        assert_eq!(read(root.path()).unwrap_err().kind(), Kind::Protocol);
    }
}
