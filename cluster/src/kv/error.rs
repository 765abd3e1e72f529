//! Why a link ended, or did not take a message.

use std::io;
use std::time::Duration;

/// What goes wrong on a link. All of it ends the link, except where [`KvError::is_of_message`] says that only the message
/// was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// This end closed the link, or the other did; says why.
    #[error("the KV link is closed: {0}")]
    Closed(String),
    /// The connection broke.
    #[error("the KV link broke: {0}")]
    Broken(String),
    /// Nothing moved for too long in the middle of a message.
    #[error(
        "the KV link stands still: the other end {what} nothing for {} s in the middle of a message",
        after.as_secs_f32()
    )]
    Stalled {
        /// What the other end did not do: `sent` or `took`.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// A message's sending was given up halfway, so that the other end cannot tell where the next begins.
    #[error("the KV link is closed: the sending of a message was given up halfway")]
    Interrupted,
    /// A field that is not what it should be.
    #[error("KV message: `{field}` {why}; run the same release on both nodes")]
    Malformed {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A field that is larger than allowed.
    #[error("KV message: `{field}` is {got} and the limit is {limit}")]
    TooMuch {
        /// Which.
        field: &'static str,
        /// What it is.
        got: u64,
        /// What it may be.
        limit: u64,
    },
    /// Pages of another shape than this node's.
    #[error(
        "KV pages of another layout: `{field}` is {ours} here and {theirs} there; give both workers the same model and `page-tokens`"
    )]
    Layout {
        /// The first field that differs.
        field: &'static str,
        /// This node's.
        ours: u64,
        /// The message's.
        theirs: u64,
    },
    /// A page is not what was sent.
    #[error("KV page {page} has not the checksum that it was sent with")]
    Checksum {
        /// Its number in the sequence.
        page: u32,
    },
}

impl KvError {
    /// Of a message to send: it was refused before a byte was written, and the link goes on.
    #[must_use]
    pub fn is_of_message(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::TooMuch { .. } | Self::Layout { .. })
    }

    /// Name in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::Broken(_) => "broken",
            Self::Stalled { .. } => "stalled",
            Self::Interrupted => "interrupted",
            Self::Malformed { .. } => "malformed",
            Self::TooMuch { .. } => "too-much",
            Self::Layout { .. } => "layout",
            Self::Checksum { .. } => "checksum",
        }
    }

    pub(super) fn malformed(field: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed { field, why: why.into() }
    }

    /// A message came, or was to be sent, before the question that says what pages on the link look like.
    pub(super) fn unasked() -> Self {
        Self::malformed("kind", "is not `ask`, which comes first on a link to a pool")
    }

    /// An error where `got` is over `limit`.
    pub(super) fn limit(field: &'static str, got: usize, limit: usize) -> Result<(), Self> {
        if got <= limit {
            return Ok(());
        }
        Err(Self::TooMuch { field, got: got as u64, limit: limit as u64 })
    }

    /// The connection ended in the middle of a message.
    pub(super) fn cut(part: &str) -> Self {
        Self::Broken(format!("the other end closed the connection in the middle of a message's {part}"))
    }
}

impl From<io::Error> for KvError {
    fn from(e: io::Error) -> Self {
        Self::Broken(e.to_string())
    }
}
