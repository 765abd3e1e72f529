//! The reader: one or several mapped files, their metadata and their tensor table.

use std::path::{Path, PathBuf};

use super::{GgufError, Metadata, TensorInfo};

/// An open GGUF model of one or several files. Cheap to open: bytes are mapped and read when used.
#[derive(Debug)]
pub struct GgufFile {}

impl GgufFile {
    /// Opens a model from one file, from any part of a split one (`…-00001-of-00003.gguf`; the others are looked for
    /// beside it), or from a glob pattern that matches exactly the parts of one model.
    pub fn open(_path: &Path) -> Result<Self, GgufError> {
        todo!()
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        todo!()
    }

    /// All files in order.
    pub fn paths(&self) -> &[PathBuf] {
        todo!()
    }

    /// Size of all files in bytes.
    pub fn file_bytes(&self) -> u64 {
        todo!()
    }

    /// The metadata of the first file.
    pub fn metadata(&self) -> &Metadata {
        todo!()
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        std::iter::empty()
    }

    /// A tensor by its name.
    pub fn tensor(&self, _name: &str) -> Option<&TensorInfo> {
        todo!()
    }

    /// A tensor that must be there.
    pub fn require(&self, _name: &str) -> Result<&TensorInfo, GgufError> {
        todo!()
    }

    /// A tensor's bytes as stored: `elements / block_elements * block_bytes` of them, borrowed from the mapping.
    pub fn bytes(&self, _tensor: &TensorInfo) -> &[u8] {
        todo!()
    }
}
