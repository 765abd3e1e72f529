//! Tensors of GGUF files.

use std::borrow::Cow;
use std::path::Path;

use super::{Names, StoredTensor, TensorSource};
use crate::EngineError;
use crate::gguf::GgufFile;

/// The tensors of an open GGUF model; their bytes stay in the mapping.
#[derive(Debug)]
pub(crate) struct GgufSource<'a>(pub(crate) &'a GgufFile);

impl TensorSource for GgufSource<'_> {
    fn names(&self) -> Names {
        Names::Gguf
    }

    fn place(&self) -> &Path {
        self.0.path()
    }

    fn tensors(&self) -> Vec<String> {
        let mut names: Vec<_> = self.0.tensors().map(|tensor| tensor.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn read(&self, name: &str) -> Result<Option<StoredTensor<'_>>, EngineError> {
        Ok(self.0.tensor(name).map(|tensor| StoredTensor {
            name: name.to_owned(),
            file: self.0.paths().get(tensor.part).map_or_else(|| self.0.path().into(), Clone::clone),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype,
            data: Cow::Borrowed(self.0.bytes(tensor)),
        }))
    }
}
