//! What the graph needs of a device: the seam between "which operations, in which order" ([`super::forward`]) and
//! "computed how". Results go into buffers that the caller keeps from layer to layer and from step to step: a device
//! with memory of its own may replace what is in them, the CPU overwrites it in place.

use std::fmt::Debug;
use std::ops::Range;

use super::batch::{RaggedBatch, RowSet};
use super::weights::Linear;
use crate::EngineError;
use crate::gguf::TensorType;

/// A weight matrix in the bytes of a GGUF tensor, to be brought into a device's form.
#[derive(Debug)]
pub(crate) struct MatrixData<'a> {
    /// How the elements are stored.
    pub(crate) dtype: TensorType,
    /// `outputs` rows of `inputs` elements.
    pub(crate) data: &'a [u8],
    /// Rows.
    pub(crate) outputs: usize,
    /// Elements a row.
    pub(crate) inputs: usize,
}

/// One product of a [`Backend::matmul`].
#[derive(Debug)]
pub(crate) struct Projection<'a, B: Backend> {
    /// Matrix and bias.
    pub(crate) linear: &'a Linear<B>,
    /// The result, `[rows, outputs]`.
    pub(crate) out: &'a mut B::Buffer,
}

/// A device with its KV pages.
///
/// Activations are rows of 32-bit floats (or what the device prefers), `[rows, width]`.
pub(crate) trait Backend: Debug + Send + Sized {
    /// What weights are brought to.
    type Device: Debug;
    /// A weight matrix.
    type Matrix: Debug + Send;
    /// Weights of a norm, or a bias.
    type Vector: Debug + Send;
    /// Activations.
    type Buffer: Debug + Default + Send;

    /// Brings a matrix to the device. The error is a reason; the caller adds file and tensor.
    fn matrix(device: &Self::Device, data: &MatrixData<'_>) -> Result<Self::Matrix, String>;

    /// Brings a vector to the device.
    fn vector(device: &Self::Device, values: Vec<f32>) -> Result<Self::Vector, String>;

    /// Bytes that a matrix takes there.
    fn matrix_bytes(matrix: &Self::Matrix) -> usize;

    /// Prepares for a batch: whatever the operations below need of it in a form of their own.
    fn begin(&mut self, batch: &RaggedBatch) -> Result<(), EngineError>;

    /// `out` = the rows of `table` that `tokens` name.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut Self::Buffer) -> Result<(), EngineError>;

    /// `out` = RMS norm of each row of `x`.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), EngineError>;

    /// RMS norm of each head (as long as `weight`) of each row, in place.
    fn head_norm(&self, x: &mut Self::Buffer, weight: &Self::Vector, eps: f32) -> Result<(), EngineError>;

    /// Products of one input of `rows` rows with several matrices.
    fn matmul(
        &self,
        x: &Self::Buffer,
        rows: usize,
        products: &mut [Projection<'_, Self>],
    ) -> Result<(), EngineError>;

    /// Rotates the `heads` heads of each row of a set by its position, in place.
    fn rope(
        &self,
        x: &mut Self::Buffer,
        heads: usize,
        batch: &RaggedBatch,
        set: RowSet,
    ) -> Result<(), EngineError>;

    /// Stores keys and values of all rows in their slots.
    fn write_kv(
        &mut self,
        layer: usize,
        k: &Self::Buffer,
        v: &Self::Buffer,
        batch: &RaggedBatch,
    ) -> Result<(), EngineError>;

    /// Causal attention of the rows of a set (`q`: `[rows of the set, heads * head_dim]`) to their sequences' pages.
    fn attention(
        &self,
        layer: usize,
        q: &Self::Buffer,
        batch: &RaggedBatch,
        set: RowSet,
        out: &mut Self::Buffer,
    ) -> Result<(), EngineError>;

    /// `gate = silu(gate) * up`.
    fn silu_mul(&self, gate: &mut Self::Buffer, up: &Self::Buffer) -> Result<(), EngineError>;

    /// `x += y`.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer) -> Result<(), EngineError>;

    /// `out` = the rows of `x` (`width` wide) that `rows` name.
    fn gather(
        &self,
        x: &Self::Buffer,
        width: usize,
        rows: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), EngineError>;

    /// Logits of some rows of `hidden`, in the host's memory: `[rows, outputs of head]`.
    fn logits(
        &self,
        head: &Self::Matrix,
        hidden: &Self::Buffer,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError>;

    /// Copies a page that exists to another.
    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), EngineError>;

    /// Reads a page that exists; `out` has the length of a page.
    fn export_page(&self, page: u32, out: &mut [u8]) -> Result<(), EngineError>;

    /// Sets a page that exists; `content` has the length of a page.
    fn import_page(&mut self, page: u32, content: &[u8]) -> Result<(), EngineError>;
}
