//! Values to bytes and back: the one place that knows which encoding the wire uses.
//!
//! Integers are little-endian and variable-length (a byte up to 250), an enum's tag is such an integer, floats are their bits.
//! What comes from outside is not trusted: every failure is a [`WireError`], and no length is believed before there is room
//! for it under [`MAX_BYTES`].

use bincode::config::{self, Configuration, Limit, LittleEndian, Varint};
use bincode::de::DecoderImpl;
use bincode::enc::EncoderImpl;

pub(crate) use bincode::de::Decoder;
pub(crate) use bincode::de::read::Reader;
pub(crate) use bincode::enc::Encoder;
pub(crate) use bincode::enc::write::Writer;
pub(crate) use bincode::error::{DecodeError, EncodeError};
pub(crate) use bincode::{Decode, Encode};

use super::error::WireError;

/// The longest message in bytes, encoded; also what `decode` may ask for in memory.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The most memory in bytes that a [`Source`] lets lists ask for. Values are larger in memory than on the wire (a token
/// event about five times), so that with less a message could be sent and not be read.
const MAX_MEMORY: usize = 8 * MAX_BYTES;

/// Room that a message gets at first, in bytes: most are shorter, so that they are written without a reallocation.
const USUAL_BYTES: usize = 1024;

type Config<const LIMIT: usize> = Configuration<LittleEndian, Varint, Limit<LIMIT>>;

const fn config<const LIMIT: usize>() -> Config<LIMIT> {
    config::standard().with_limit::<LIMIT>()
}

/// `value` as bytes.
///
/// # Errors
/// The encoding is longer than [`MAX_BYTES`].
pub(crate) fn encode<T: Encode>(value: &T) -> Result<Vec<u8>, WireError> {
    write(|encoder| value.encode(encoder))
}

/// The value that `bytes` are, all of them.
///
/// # Errors
/// `bytes` are too many, end early, go on after the value, or are no such value.
pub(crate) fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_BYTES {
        return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_BYTES });
    }
    let (value, read) = bincode::decode_from_slice(bytes, config::<MAX_BYTES>()).map_err(malformed)?;
    match bytes.len() - read {
        0 => Ok(value),
        rest => Err(WireError::Trailing { bytes: rest }),
    }
}

/// The bytes that `put` writes.
///
/// # Errors
/// They are more than [`MAX_BYTES`], or `put` fails.
pub(super) fn write(
    put: impl FnOnce(&mut EncoderImpl<Out, Config<MAX_BYTES>>) -> Result<(), EncodeError>,
) -> Result<Vec<u8>, WireError> {
    let out = Out { bytes: Vec::with_capacity(USUAL_BYTES), len: 0 };
    let mut encoder = EncoderImpl::new(out, config::<MAX_BYTES>());
    put(&mut encoder).map_err(|e| WireError::Encode(e.to_string()))?;
    let Out { bytes, len } = encoder.into_writer();
    if len > MAX_BYTES {
        return Err(WireError::TooLarge { bytes: len, limit: MAX_BYTES });
    }
    Ok(bytes)
}

/// Bytes being written. What exceeds the limit is counted and not kept.
#[derive(Debug)]
pub(super) struct Out {
    bytes: Vec<u8>,
    len: usize,
}

impl Writer for Out {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.len += bytes.len();
        if self.len <= MAX_BYTES {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }
}

/// Bytes being read, piece by piece.
pub(super) struct Source<'a> {
    decoder: SourceDecoder<'a>,
}

type SourceDecoder<'a> = DecoderImpl<In<'a>, Config<MAX_MEMORY>, ()>;

impl<'a> Source<'a> {
    /// Reads from the front of `bytes`.
    ///
    /// # Errors
    /// There are more than [`MAX_BYTES`].
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_BYTES {
            return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_BYTES });
        }
        Ok(Self { decoder: DecoderImpl::new(In { rest: bytes }, config::<MAX_MEMORY>(), ()) })
    }

    /// The next piece.
    ///
    /// # Errors
    /// The bytes end early or are no such piece.
    pub(super) fn read<T>(
        &mut self,
        take: impl FnOnce(&mut SourceDecoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, WireError> {
        take(&mut self.decoder).map_err(malformed)
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// Something does.
    pub(super) fn end(mut self) -> Result<(), WireError> {
        match self.decoder.reader().rest.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }
}

/// The bytes not read yet.
pub(super) struct In<'a> {
    rest: &'a [u8],
}

impl Reader for In<'_> {
    #[inline]
    fn read(&mut self, to: &mut [u8]) -> Result<(), DecodeError> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(to.len())
            .ok_or_else(|| DecodeError::UnexpectedEnd { additional: to.len() - self.rest.len() })?;
        to.copy_from_slice(bytes);
        self.rest = rest;
        Ok(())
    }

    #[inline]
    fn peek_read(&mut self, n: usize) -> Option<&[u8]> {
        self.rest.get(..n)
    }

    #[inline]
    fn consume(&mut self, n: usize) {
        self.rest = self.rest.get(n..).unwrap_or_default();
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
fn malformed(error: DecodeError) -> WireError {
    WireError::Malformed(error.to_string())
}
