// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client may ask of a running store and what it is answered.
//!
//! Strict: an unknown field, a wrong type or a value out of range is refused
//! and changes nothing.

use serde::{Deserialize, Serialize};

use super::Status;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::ByteLen;

/// How long a request waits for its end if it does not say, in milliseconds.
pub const DEADLINE_MS: u64 = 60_000;
/// The longest it may ask to wait.
pub const MAX_DEADLINE_MS: u64 = 3_600_000;
/// The most memory that can be asked for: more than any machine has.
const MAX_BYTES: u64 = 1 << 50;

/// A request on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Answered at once with a [`Status`].
    Status {},
    /// Hold at most so much fast memory.
    Target {
        /// Bytes, of one tier or of all together; whole slabs are held, so that
        /// it is rounded down to 64 MiB.
        bytes: u64,
        /// Which fast tier; all of them if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<String>,
        /// How long to wait for its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// Hold no fast memory: every page goes to the spill.
    Drain {
        /// How long to wait for its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// Back to the configured targets.
    Resume {
        /// How long to wait for its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// As `Drain`; then each GPU is closed, so that it can sleep or be removed.
    CloseGpu {
        /// How long to wait for its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// Use a tier again that failed, once a person has seen to it.
    Readmit {
        /// Which.
        tier: String,
    },
}

impl Request {
    /// Refuses values out of range, with the range.
    pub fn check(&self) -> Result<()> {
        let deadline = match self {
            Self::Target { bytes, .. } if *bytes > MAX_BYTES => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("bytes {bytes}: at most {}", ByteLen(MAX_BYTES)),
                ));
            }
            Self::Readmit { .. } | Self::Status {} => None,
            Self::Target { deadline_ms, .. }
            | Self::Drain { deadline_ms }
            | Self::Resume { deadline_ms }
            | Self::CloseGpu { deadline_ms } => *deadline_ms,
        };
        match deadline {
            Some(ms) if ms > MAX_DEADLINE_MS => Err(Error::new(
                Kind::Invalid,
                format!("deadline_ms {ms}: 0 to {MAX_DEADLINE_MS}, an hour"),
            )),
            _ => Ok(()),
        }
    }

    /// Milliseconds that the request waits for its end; 0 for those that are
    /// answered at once.
    #[must_use]
    pub fn wait_ms(&self) -> u64 {
        match self {
            Self::Status {} | Self::Readmit { .. } => 0,
            Self::Target { deadline_ms, .. }
            | Self::Drain { deadline_ms }
            | Self::Resume { deadline_ms }
            | Self::CloseGpu { deadline_ms } => deadline_ms.unwrap_or(DEADLINE_MS),
        }
    }
}

/// The answer to a [`Request`]; which one follows from the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    /// To all that was refused or could not be understood.
    Refused(Refusal),
    /// To all but `Status`.
    Ended(Outcome),
    /// To `Status`.
    Status(Box<Status>),
}

/// Why a request was refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong, with object and value.
    pub error: String,
    /// The next step for a person, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        Self { error: error.to_string(), hint: error.hint().map(str::to_owned) }
    }
}

/// How an order stands when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// It is carried out.
    Done,
    /// The deadline has passed; the store goes on with it.
    Continues,
    /// Something is in the way, see the message; the store tries again.
    Stuck,
    /// Somebody gave another order, which is followed instead.
    Replaced,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it stands.
    pub outcome: Ended,
    /// Milliseconds since it was given.
    pub elapsed_ms: u64,
    /// Fast memory that may be held now.
    pub target_bytes: u64,
    /// Fast memory held now.
    pub held_bytes: u64,
    /// Slabs given back since the order.
    pub slabs_released: u64,
    /// Bytes in them.
    pub released_bytes: u64,
    /// Extents moved since.
    pub extents_moved: u64,
    /// Bytes copied for them.
    pub moved_bytes: u64,
    /// Fast memory still held above the target.
    pub left_bytes: u64,
    /// Written pages that must still leave.
    pub left_pages: u64,
    /// Whether the store goes on by itself.
    pub continues: bool,
    /// One sentence for a person; may be empty.
    #[serde(default)]
    pub message: String,
}
