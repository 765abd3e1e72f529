//! Where a model's tensors come from: GGUF files or a Hugging Face directory, behind one trait.

use std::borrow::Cow;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::EngineError;
use crate::gguf::TensorType;

mod gguf;
mod names;
mod safetensors;

pub(crate) use gguf::GgufSource;
pub(crate) use names::{Names, Part};
pub(crate) use safetensors::SafetensorsSource;

/// A tensor as stored.
#[derive(Debug)]
pub(crate) struct StoredTensor<'a> {
    /// Its name in the file.
    pub(crate) name: String,
    /// The file that holds it.
    pub(crate) file: PathBuf,
    /// Outermost dimension first.
    pub(crate) shape: Vec<usize>,
    /// How its elements are stored.
    pub(crate) dtype: TensorType,
    /// The elements; borrowed from a mapping where there is one.
    pub(crate) data: Cow<'a, [u8]>,
}

/// A set of named tensors.
pub(crate) trait TensorSource: Debug {
    /// The naming scheme.
    fn names(&self) -> Names;

    /// The file or directory, for messages about tensors that are not there.
    fn place(&self) -> &Path;

    /// All tensors' names, ascending.
    fn tensors(&self) -> Vec<String>;

    /// Reads a tensor; `None` when there is none of this name.
    fn read(&self, name: &str) -> Result<Option<StoredTensor<'_>>, EngineError>;
}

impl StoredTensor<'_> {
    /// The elements as 32-bit floats, where the type is one of plain floats.
    pub(crate) fn floats(&self) -> Option<Vec<f32>> {
        floats(self.dtype, &self.data)
    }
}

/// Little-endian floats of 16 or 32 bits, widened; `None` for block types.
pub(crate) fn floats(dtype: TensorType, data: &[u8]) -> Option<Vec<f32>> {
    let halves = || data.as_chunks::<2>().0.iter();
    match dtype {
        TensorType::F32 => Some(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        TensorType::F16 => Some(halves().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()),
        TensorType::BF16 => Some(halves().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()),
        _ => None,
    }
}
