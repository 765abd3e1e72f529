//! Metadata with typed getters whose errors name the file and the key.

use std::path::Path;

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
    Ints(Vec<i64>),
    /// Any array of floats.
    Floats(Vec<f64>),
    /// An array of truth values.
    Bools(Vec<bool>),
    /// An array of strings.
    Strings(Vec<String>),
    /// An array of arrays.
    Arrays(Vec<Value>),
}

/// The key-value section of a file.
#[derive(Debug, Clone, Default)]
pub struct Metadata {}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, _key: &str) -> Option<&Value> {
        todo!()
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        todo!()
    }

    /// Text that may be absent.
    pub fn string(&self, _key: &str) -> Result<Option<&str>, GgufError> {
        todo!()
    }

    /// A count that may be absent.
    pub fn size(&self, _key: &str) -> Result<Option<usize>, GgufError> {
        todo!()
    }
}
