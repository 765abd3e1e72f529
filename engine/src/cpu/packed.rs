//! A weight matrix in the layout the kernels stream: panels of 16 outputs, still quantised.

use super::{Compute, CpuError, GgmlType};

/// A weight matrix `[outputs, inputs]`, packed; quantised formats stay quantised.
#[derive(Debug)]
pub struct Packed {
    outputs: usize,
    inputs: usize,
    ty: GgmlType,
}

impl Packed {
    /// Packs the raw little-endian bytes of a GGUF tensor (`outputs` rows of `inputs` values; GGUF lists dimensions
    /// innermost first, so `inputs` is its first). `code` is GGUF's tensor type.
    ///
    /// # Errors
    /// An unsupported type, a row that is not a whole number of blocks, bytes that do not fit the shape.
    pub fn from_ggml(
        compute: &Compute,
        code: u32,
        data: &[u8],
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, CpuError> {
        todo!()
    }

    /// Number of outputs (rows of the matrix as stored).
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs (length of a stored row).
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The format of the source.
    pub fn ggml_type(&self) -> GgmlType {
        self.ty
    }

    /// Bytes this matrix occupies in memory.
    pub fn bytes(&self) -> usize {
        todo!()
    }

    /// Writes the `row`-th stored row (an embedding, say) to `out` (`[inputs]`), with exactly the values the products
    /// use.
    ///
    /// # Panics
    /// If `row` or the length of `out` does not fit.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        todo!()
    }
}
