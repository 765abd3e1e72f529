//! A bounds-checked reader over a mapped file. Every read can fail, none can panic, and nothing is allocated before
//! the bytes that justify it have been seen.

use std::path::Path;

use super::{GgufError, Value};

/// Arrays of arrays deeper than this are taken for damage.
const MAX_NESTING: usize = 4;

/// Smallest possible encodings, in bytes: they bound how many entries can exist in what is left of the file.
const MIN_KEY_VALUE: usize = 8 + 4 + 1;
const MIN_TENSOR: usize = 8 + 4 + 4 + 8;

/// Value type codes of the format.
pub(super) mod kind {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8], path: &'a Path) -> Self {
        Self { data, at: 0, path }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.data.len() - self.at
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> GgufError {
        GgufError::Corrupt { path: self.path.to_owned(), what: what.into() }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], GgufError> {
        if len > self.left() {
            return Err(self.corrupt(format!(
                "it ends after {} bytes, inside {what} at byte {} that needs {len} more",
                self.data.len(),
                self.at
            )));
        }
        let bytes = &self.data[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a count of things that take at least `min` bytes each, so that a damaged count is refused up front.
    fn count(&mut self, min: usize, what: &str) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        let most = self.left() / min;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => {
                Err(self.corrupt(format!("{what} is {count}, but the rest of the file has room for {most}")))
            }
        }
    }

    pub(super) fn key_value_count(&mut self) -> Result<usize, GgufError> {
        // Tensors come after the keys; the count is read before them, so the whole rest of the file is the bound.
        self.count(MIN_KEY_VALUE, "the number of keys")
    }

    pub(super) fn tensor_count(&mut self) -> Result<usize, GgufError> {
        self.count(MIN_TENSOR, "the number of tensors")
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, GgufError> {
        let len = self.count(1, what)?;
        // Some converters end strings with a NUL, and some vocabularies hold bytes that are not UTF-8.
        let bytes = self.take(len, what)?;
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.u32(key)?;
        self.value_of(kind, key, 0)
    }

    fn value_of(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value, GgufError> {
        Ok(match kind {
            kind::F32 | kind::F64 => Value::Float(self.float(kind, key)?),
            kind::BOOL => Value::Bool(self.bool(key)?),
            kind::STRING => Value::String(self.string(key)?),
            kind::ARRAY => self.values(key, depth)?,
            _ => Value::Int(self.int(kind, key)?),
        })
    }

    fn values(&mut self, key: &str, depth: usize) -> Result<Value, GgufError> {
        if depth >= MAX_NESTING {
            return Err(self.corrupt(format!("key `{key}` nests arrays deeper than {MAX_NESTING}")));
        }
        let kind = self.u32(key)?;
        let width = match kind {
            kind::U8 | kind::I8 | kind::BOOL => 1,
            kind::U16 | kind::I16 => 2,
            kind::U32 | kind::I32 | kind::F32 => 4,
            kind::U64 | kind::I64 | kind::F64 | kind::STRING => 8,
            kind::ARRAY => 12,
            _ => return Err(self.unknown_kind(kind, key)),
        };
        let count = self.count(width, key)?;
        // `collect` grows as elements arrive, so even a count that passed the bound costs no more than the file holds.
        Ok(match kind {
            kind::F32 | kind::F64 => {
                Value::Floats((0..count).map(|_| self.float(kind, key)).collect::<Result<_, _>>()?)
            }
            kind::BOOL => Value::Bools((0..count).map(|_| self.bool(key)).collect::<Result<_, _>>()?),
            kind::STRING => Value::Strings((0..count).map(|_| self.string(key)).collect::<Result<_, _>>()?),
            kind::ARRAY => {
                Value::Arrays((0..count).map(|_| self.values(key, depth + 1)).collect::<Result<_, _>>()?)
            }
            _ => Value::Ints((0..count).map(|_| self.int(kind, key)).collect::<Result<_, _>>()?),
        })
    }

    fn int(&mut self, kind: u32, key: &str) -> Result<i128, GgufError> {
        Ok(match kind {
            kind::U8 => u8::from_le_bytes(self.array(key)?).into(),
            kind::I8 => i8::from_le_bytes(self.array(key)?).into(),
            kind::U16 => u16::from_le_bytes(self.array(key)?).into(),
            kind::I16 => i16::from_le_bytes(self.array(key)?).into(),
            kind::U32 => u32::from_le_bytes(self.array(key)?).into(),
            kind::I32 => i32::from_le_bytes(self.array(key)?).into(),
            kind::U64 => u64::from_le_bytes(self.array(key)?).into(),
            kind::I64 => i64::from_le_bytes(self.array(key)?).into(),
            _ => return Err(self.unknown_kind(kind, key)),
        })
    }

    fn float(&mut self, kind: u32, key: &str) -> Result<f64, GgufError> {
        Ok(match kind {
            kind::F32 => f32::from_le_bytes(self.array(key)?).into(),
            _ => f64::from_le_bytes(self.array(key)?),
        })
    }

    fn bool(&mut self, key: &str) -> Result<bool, GgufError> {
        match self.array::<1>(key)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(format!("key `{key}` holds the truth value {other}"))),
        }
    }

    fn unknown_kind(&self, kind: u32, key: &str) -> GgufError {
        self.corrupt(format!("key `{key}` has the unknown value type {kind}"))
    }
}
