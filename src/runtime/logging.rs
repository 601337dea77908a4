// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs go to the journal when systemd runs us, else to standard error. Never
//! from an I/O thread.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::schema::LogLevel;

/// Starts logging at `level`. Call once.
pub fn start(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // systemd sets JOURNAL_STREAM for services whose standard error is the journal.
    let journal = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    let console = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .without_time()
    });
    tracing_subscriber::registry().with(level).with(journal).with(console).init();
}
