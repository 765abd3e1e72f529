//! Values to bytes and back: the one place that knows which encoding the wire uses.
//!
//! Integers are little-endian and variable-length (a byte up to 250), an enum's tag is such an integer, floats are their bits.
//! What comes from outside is not trusted: every failure is a [`WireError`], and no length is believed before there is room
//! for it under [`MAX_BYTES`].

use bincode::config::{self, Configuration, Limit, LittleEndian, Varint};
use bincode::de::DecoderImpl;
use bincode::de::read::SliceReader;
use bincode::enc::EncoderImpl;
use bincode::enc::write::Writer;

pub(crate) use bincode::de::Decoder;
pub(crate) use bincode::de::read::Reader;
pub(crate) use bincode::enc::Encoder;
pub(crate) use bincode::enc::write::Writer as Sink;
pub(crate) use bincode::error::{DecodeError, EncodeError};
pub(crate) use bincode::{Decode, Encode};

use super::error::WireError;

/// The longest message in bytes, encoded, and the most memory that decoding one may ask for.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Room that a message gets at first, in bytes: most are shorter, so that they are written without a reallocation.
const USUAL_BYTES: usize = 1024;

type Config = Configuration<LittleEndian, Varint, Limit<MAX_BYTES>>;

const CONFIG: Config = config::standard().with_limit::<MAX_BYTES>();

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
    let mut source = Source::new(bytes)?;
    let value = source.read(|decoder| T::decode(decoder))?;
    source.end()?;
    Ok(value)
}

/// The bytes that `put` writes.
///
/// # Errors
/// They are more than [`MAX_BYTES`], or `put` fails.
pub(super) fn write(
    put: impl FnOnce(&mut EncoderImpl<Out, Config>) -> Result<(), EncodeError>,
) -> Result<Vec<u8>, WireError> {
    let out = Out { bytes: Vec::with_capacity(USUAL_BYTES), len: 0 };
    let mut encoder = EncoderImpl::new(out, CONFIG);
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
    decoder: DecoderImpl<SliceReader<'a>, Config, ()>,
}

impl<'a> Source<'a> {
    /// Reads from the front of `bytes`.
    ///
    /// # Errors
    /// There are more than [`MAX_BYTES`].
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_BYTES {
            return Err(WireError::TooLarge { bytes: bytes.len(), limit: MAX_BYTES });
        }
        Ok(Self { decoder: DecoderImpl::new(SliceReader::new(bytes), CONFIG, ()) })
    }

    /// The next piece.
    ///
    /// # Errors
    /// The bytes end early or are no such piece.
    pub(super) fn read<T>(
        &mut self,
        take: impl FnOnce(&mut DecoderImpl<SliceReader<'a>, Config, ()>) -> Result<T, DecodeError>,
    ) -> Result<T, WireError> {
        take(&mut self.decoder).map_err(|e| WireError::Malformed(e.to_string()))
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// Something does.
    pub(super) fn end(mut self) -> Result<(), WireError> {
        match self.rest() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }

    /// How many bytes are left. The reader does not say, but it shows any number of bytes that there are.
    fn rest(&mut self) -> usize {
        let (mut low, mut high) = (0, MAX_BYTES);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match self.decoder.reader().peek_read(middle) {
                Some(_) => low = middle,
                None => high = middle - 1,
            }
        }
        low
    }
}
