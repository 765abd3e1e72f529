//! Why a message could not be written or read.

/// A message that cannot be sent, or bytes that are no message. The link that brought such bytes stays usable: frames are
/// cut by the transport, so the next message is unaffected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Longer than the limit, to send or as received.
    #[error("the message is {bytes} bytes long and the limit is {limit}: send it in parts")]
    TooLarge {
        /// The message's length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// The bytes go on after the message.
    #[error(
        "{bytes} bytes follow the end of the message: its sender has another format, run the same release on both nodes"
    )]
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
}
