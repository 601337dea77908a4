// SPDX-License-Identifier: GPL-2.0-only
//! How a failure is told: what failed, then what to do about it.

use std::process::ExitCode;

use anyhow::Result;

/// Lines that the end of a verifier's log has the reason in.
const LOG_LINES: usize = 12;

/// A failure with a known next step.
#[derive(Debug)]
pub struct Failure {
    message: String,
    next: String,
}

impl Failure {
    /// A failure and the command, option or path that helps.
    pub fn new(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { message: message.into(), next: next.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Turns a command's result into its exit code, showing an error.
pub fn finish(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let broken_pipe = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("sluice-policy: {error:#}");
    if let Some(failure) = error.downcast_ref::<Failure>() {
        eprintln!("  next: {}", failure.next);
    }
    ExitCode::FAILURE
}

/// The lines of a verifier's log that say why it refused.
///
/// Newer kernels (7.3, not yet 6.12) explain it below their log: first the
/// reason and the place, then how each register came there, which can take
/// pages, then what to do. Elsewhere the reason is at the log's end.
pub fn reason(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let Some(begin) = lines.iter().position(|line| line.starts_with("Verification failed:")) else {
        return lines[lines.len().saturating_sub(LOG_LINES)..].to_vec();
    };
    // The instruction and the older, short form of the reason.
    let explained = &lines[begin.saturating_sub(2)..];
    let part = |title: &str| explained.iter().position(|line| *line == title);
    let end = explained.len();
    let advice = part("Suggestion:").unwrap_or(end);
    let place_ends = part("Causal path:").unwrap_or(advice).min(advice);
    [&explained[..place_ends], &explained[advice..]].concat()
}

#[cfg(test)]
mod tests {
    use super::{LOG_LINES, reason};

    #[test]
    fn an_older_log_ends_with_the_reason() {
        let numbered: Vec<String> = (0..40).map(|line| line.to_string()).collect();
        let log = numbered.join("\n\n");
        let shown = reason(&log);
        assert_eq!(shown.len(), LOG_LINES);
        assert_eq!(shown.last(), Some(&"39"));
        assert_eq!(reason("short\n"), ["short"]);
    }

    #[test]
    fn a_newer_one_explains_and_the_way_there_is_left_out() {
        let way = "  step\n".repeat(50);
        let log = format!(
            "0: first\n1: call\nR1 is wrong\nVerification failed: type\nReason:\n  because\n\
             At:\n  here\nCausal path:\n{way}Suggestion:\n  other\nprocessed 2 insns\n"
        );
        let expected = "1: call\nR1 is wrong\nVerification failed: type\nReason:\n  because\n\
             At:\n  here\nSuggestion:\n  other\nprocessed 2 insns";
        assert_eq!(reason(&log).join("\n"), expected);
    }

    #[test]
    fn parts_of_the_explanation_may_be_missing() {
        assert_eq!(reason("Verification failed: x\nReason:\n  y\n").len(), 3);
        let shown = reason("a\nVerification failed: x\nCausal path:\n  way\n");
        assert_eq!(shown, ["a", "Verification failed: x"]);
    }
}
