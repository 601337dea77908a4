// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one error type of the engine and the adapters: a small kind to match
//! on, a sentence that names object and value, the next step, and the cause.

use std::error::Error as StdError;
use std::fmt;

/// What sort of failure it is; stable, for callers to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that cannot be: range, alignment, value.
    Invalid,
    /// The peer, file or wire format breaks its protocol.
    Protocol,
    /// A device or tier reported a failure of its own.
    Io,
    /// What came back is not what was stored.
    Checksum,
    /// Somebody else has it.
    Busy,
    /// The caller may not.
    Denied,
    /// This machine lacks a module, library or file.
    Missing,
    /// No room, memory or slot.
    NoSpace,
    /// No answer within the deadline.
    TimedOut,
}

/// An error with its kind, what failed (object and value), an optional next
/// step and an optional cause. `Display` never repeats the cause.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The engine's and the adapters' result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of `kind`; `context` says what failed, on which object, with which value.
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), hint: None, source: None }
    }

    /// Adds the next step for a person: a command, an option or a path.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The kind to match on.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The next step, if one is known.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}
