//! Why a message could not be written or read.

use std::ops::RangeInclusive;

use super::message::Door;

/// A message that cannot be sent, or bytes that are no message. The link that brought such bytes stays usable: frames are
/// cut by the transport, so the next message is unaffected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Longer than the limit, to send or as received.
    #[error("the message is {bytes} bytes long and the limit is {limit}: send less at once")]
    TooLarge {
        /// The message's length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// The bytes go on after the message.
    #[error("{bytes} bytes follow the end of the message: run the same release on both nodes")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The bytes are no message of this kind: cut short, an unknown tag, a length that cannot be.
    #[error("the bytes are no message of this format ({0}): run the same release on both nodes")]
    Malformed(String),
    /// A value that has no form on the wire.
    #[error("the message cannot be encoded: {0}")]
    Encode(String),
    /// The message is of a format that this build does not read.
    #[error(
        "the message has wire version {got} and this node reads {} to {}: run the same release on both nodes",
        supported.start(), supported.end()
    )]
    Version {
        /// Its version.
        got: u16,
        /// Those that this build reads.
        supported: RangeInclusive<u16>,
    },
    /// Two nodes have no version in common.
    #[error(
        "no common wire version: this node reads {} to {} and the other {} to {}; run the same release on both nodes",
        ours.start(), ours.end(), theirs.start(), theirs.end()
    )]
    NoCommonVersion {
        /// What this build reads.
        ours: RangeInclusive<u16>,
        /// What the other reads.
        theirs: RangeInclusive<u16>,
    },
    /// The message is for another door than the one that opened it.
    #[error("a message for the {got} came to the {door}")]
    Door {
        /// The door that the message is for.
        got: Door,
        /// The door that it came to.
        door: Door,
    },
}
