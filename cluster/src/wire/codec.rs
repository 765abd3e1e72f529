//! Values to bytes and back: the one place that knows which encoding the wire uses.
//!
//! Integers are little-endian and variable-length (a byte up to 250), an enum's tag is such an integer, floats are their bits.
//! What comes from outside is not trusted: every failure is a [`WireError`], and no length is believed before there is room
//! for it under [`MAX_BYTES`].

use bincode::config::{self, Configuration, Limit, LittleEndian, Varint};

pub(crate) use bincode::{Decode, Encode};

use super::error::WireError;

/// The longest message in bytes, encoded, and the most memory that decoding one may ask for.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_BYTES>> =
    config::standard().with_limit::<MAX_BYTES>();

/// `value` as bytes.
///
/// # Errors
/// The encoding is longer than [`MAX_BYTES`].
pub(crate) fn encode<T: Encode>(value: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::encode_to_vec(value, CONFIG).map_err(|e| WireError::Encode(e.to_string()))?;
    if bytes.len() > MAX_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_BYTES });
    }
    Ok(bytes)
}

/// The value that `bytes` are, all of them.
///
/// # Errors
/// `bytes` are too many, end early, go on after the value, or are no such value.
pub(crate) fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, WireError> {
    let (value, rest) = decode_front(bytes)?;
    if !rest.is_empty() {
        return Err(WireError::Trailing { bytes: rest.len() });
    }
    Ok(value)
}

/// The value at the front of `bytes`, and the bytes after it.
///
/// # Errors
/// `bytes` are too many, end early, or do not begin with such a value.
pub(crate) fn decode_front<T: Decode<()>>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    if bytes.len() > MAX_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_BYTES });
    }
    let (value, read) =
        bincode::decode_from_slice(bytes, CONFIG).map_err(|e| WireError::Malformed(e.to_string()))?;
    Ok((value, &bytes[read..]))
}
