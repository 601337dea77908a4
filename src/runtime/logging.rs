// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs go to the journal when systemd runs us, else to standard error. Never
//! from an I/O thread.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::schema::LogLevel;

/// Starts logging at `level` for the store. Call once.
pub fn start(level: LogLevel) {
    // The unit marks the process's own name for systemd.
    start_as("sluice-store", level);
}

/// Starts logging at `level` under a program's name. Call once.
pub fn start_as(program: &str, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let journal = stderr_is_the_journal().then(|| tracing_journald::layer().ok()).flatten();
    let journal = journal.map(|layer| layer.with_syslog_identifier(program.to_owned()));
    let console = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .without_time()
    });
    tracing_subscriber::registry().with(level).with(journal).with(console).init();
}

/// systemd names the journal's stream in `JOURNAL_STREAM` as `device:inode`; a
/// child whose standard error was redirected inherits the name all the same.
pub(super) fn stderr_is_the_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stderr| named == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}
