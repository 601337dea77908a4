// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with a file, and how it is shown: place, key, value, what
//! would be valid, and the line with a caret under it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Byte range in the file; `None` if it is about the file as a whole.
    pub span: Option<Range<usize>>,
    /// What is wrong and what would be valid.
    pub message: String,
}

/// Why a configuration cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable {
        /// Its path, as looked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file says something that cannot be.
    Invalid {
        /// Its path, as the caller named it.
        path: PathBuf,
        /// Its text, for the excerpts.
        text: String,
        /// Everything that is wrong, in the file's order.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// Whether there is no file at all.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => {
                write!(f, "cannot read the configuration {}: {source}", path.display())
            }
            Self::Invalid { path, text, problems } => {
                for (number, problem) in problems.iter().enumerate() {
                    if number > 0 {
                        f.write_str("\n")?;
                    }
                    show(f, path, text, problem)?;
                }
                Ok(())
            }
        }
    }
}

// The cause is part of the sentence above, so there is no further `source`.
impl std::error::Error for ConfigError {}

fn show(f: &mut fmt::Formatter<'_>, path: &Path, text: &str, problem: &Problem) -> fmt::Result {
    let Some(span) = &problem.span else {
        return writeln!(f, "{}: {}", path.display(), problem.message);
    };
    let start = boundary(text, span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let number = text[..line_start].matches('\n').count() + 1;
    let column = text[line_start..start].chars().count() + 1;
    writeln!(f, "{}:{number}:{column}: {}", path.display(), problem.message)?;

    let gutter = number.to_string().len();
    let end = boundary(text, span.end.min(line_start + line.len())).max(start);
    let carets = text[start..end].chars().count().max(1);
    // Tabs stay tabs so that the caret stands where the eye expects it.
    let indent: String =
        text[line_start..start].chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    writeln!(f, "{:gutter$} |", "")?;
    writeln!(f, "{number} | {line}")?;
    writeln!(f, "{:gutter$} | {indent}{}", "", "^".repeat(carets))
}

/// The last character boundary of `text` at or before `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}
