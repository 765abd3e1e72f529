//! Metadata with typed getters whose errors name the file and the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::GgufError;

/// One metadata value. Integers of all widths are `Int`, floats of both widths `Float`.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// `f32` or `f64`.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text; invalid UTF-8 is replaced.
    String(String),
    /// Any array of integers.
    Ints(Vec<i128>),
    /// Any array of floats.
    Floats(Vec<f64>),
    /// An array of truth values.
    Bools(Vec<bool>),
    /// An array of strings.
    Strings(Vec<String>),
    /// An array of arrays.
    Arrays(Vec<Value>),
}

impl Value {
    /// A short description for error messages.
    fn describe(&self) -> String {
        match self {
            Self::Int(value) => value.to_string(),
            Self::Float(value) => format!("{value:?}"),
            Self::Bool(value) => value.to_string(),
            Self::String(value) => {
                let start: String = value.chars().take(60).collect();
                format!("the text `{start}`")
            }
            Self::Ints(values) => format!("an array of {} integers", values.len()),
            Self::Floats(values) => format!("an array of {} floats", values.len()),
            Self::Bools(values) => format!("an array of {} truth values", values.len()),
            Self::Strings(values) => format!("an array of {} strings", values.len()),
            Self::Arrays(values) => format!("an array of {} arrays", values.len()),
        }
    }
}

/// The key-value section of a file.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(path: &Path, values: BTreeMap<String, Value>) -> Self {
        Self { path: path.to_owned(), values }
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Text that may be absent.
    pub fn string(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "text", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A truth value that may be absent.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a truth value", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A count that may be absent.
    pub fn size(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.typed(key, "a count", |value| match value {
            Value::Int(value) => usize::try_from(*value).ok(),
            _ => None,
        })
    }

    /// A token id that may be absent.
    pub fn id(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "a token id", |value| match value {
            Value::Int(value) => u32::try_from(*value).ok(),
            _ => None,
        })
    }

    /// A finite number that may be absent.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a finite number", |value| match value {
            Value::Float(value) if value.is_finite() => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        })
    }

    /// Strings that may be absent.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Strings(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Integers that may be absent.
    pub fn ints(&self, key: &str) -> Result<Option<&[i128]>, GgufError> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Ints(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Floats that may be absent.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, GgufError> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Floats(values) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// Turns an absent value into an error that names the key.
    pub fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, GgufError> {
        value.ok_or_else(|| GgufError::MissingKey { path: self.path.clone(), key: key.to_owned() })
    }

    /// A count that must be there and not be 0.
    pub fn need_size(&self, key: &str) -> Result<usize, GgufError> {
        match self.need(key, self.size(key)?)? {
            0 => Err(self.bad(key, "0", "a count of at least 1")),
            size => Ok(size),
        }
    }

    /// An error about the value of a key.
    pub fn bad(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) -> GgufError {
        GgufError::BadKey {
            path: self.path.clone(),
            key: key.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// An error about something that a key asks for.
    pub fn unsupported(
        &self,
        key: &str,
        found: impl Into<String>,
        supported: impl Into<String>,
    ) -> GgufError {
        GgufError::Unsupported {
            path: self.path.clone(),
            key: key.to_owned(),
            found: found.into(),
            supported: supported.into(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.bad(key, value.describe(), expected))
    }
}
