//! Compute kernels of engine `paged` on the CPU: matrix products over packed (quantised) weights, attention over KV
//! pages, and the row-wise operations between them.
//!
//! # Row invariance
//! A row's result is a function of that row's own inputs and its own KV, bit for bit. How many other rows share the
//! call, how the work is tiled, how many threads run it and how wide the SIMD unit is never show in the result:
//!
//! - A matrix product's output element is **one** chain of fused multiply-adds in ascending order: over `k = 0, 1, 2, …`
//!   for dense weights, over groups for quantised ones, whose products within a group are exact integer sums (with the
//!   row rounded to 16-bit integers, 32 inputs sharing a scale: a function of the row). SIMD lanes hold different
//!   outputs, never parts of one rounded sum.
//! - Attention works in segments of [`attention::SEGMENT`] positions, counted from position 0. A segment's scores,
//!   maximum, sum and weighted values are chains in a fixed order, and segments are merged in ascending order.
//! - Reductions across lanes (norms, softmax sums) use 16 virtual lanes and one fixed tree on every machine.
//!
//! Everything is written once, generic over [`simd::Simd`] (16 virtual lanes), and instantiated for AVX-512, AVX2 and a
//! portable form; all three agree bit for bit, because each uses only IEEE operations with one rounding.
//!
//! # Use
//! ```text
//! let compute = Compute::new(threads)?;                              // owns the thread pool
//! let w = Packed::from_ggml(&compute, type_code, bytes, outputs, inputs)?;
//! matmul(&compute, &x, rows, &mut [Product::new(&wq, &mut q), Product::new(&wk, &mut k), Product::new(&wv, &mut v)]);
//! rope(&compute, &mut q, heads, head_dim, &positions, &table, RopeStyle::Interleaved);
//! kv.write_rows(&compute, layer, &slots, &k, &v);
//! attention(&compute, layer, &kv, &q, heads, &seqs, scale, &mut out);
//! ```
//!
//! Shapes are the caller's responsibility: a slice of the wrong length is a bug and panics with both lengths. What comes
//! from outside (files, configuration) is checked by the constructors, which return [`CpuError`].

pub mod attention;
mod exp;
pub mod formats;
mod kernels;
pub mod kv;
pub mod matmul;
pub mod ops;
pub mod packed;
pub mod pool;
mod quants;
mod rows;
mod scratch;
pub mod simd;
#[cfg(test)]
mod testing;

pub use attention::{SeqRows, attention};
pub use formats::GgmlType;
pub use kv::{KvDtype, KvSlot, KvStore};
pub use matmul::{Product, matmul};
pub use ops::{RopeStyle, RopeTable, add, rms_norm, rms_norm_in_place, rope, silu_mul};
pub use packed::Packed;
pub use pool::Compute;
pub use simd::SimdLevel;

/// What can be wrong with inputs that come from outside the program.
#[expect(missing_docs, reason = "the fields are the words of the messages")]
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CpuError {
    /// The file holds a tensor type that these kernels do not compute with.
    #[error(
        "tensor type {code} ({name}) is not supported by the CPU kernels; use a file whose tensors are one of {supported}"
    )]
    UnsupportedType { code: u32, name: &'static str, supported: String },
    /// The bytes of a tensor do not fit its shape.
    #[error("a {outputs} x {inputs} tensor of type {name} takes {expected} bytes, but {found} were given")]
    WrongLength { name: &'static str, outputs: usize, inputs: usize, expected: usize, found: usize },
    /// A quantised row must consist of whole blocks.
    #[error(
        "a row of type {name} must be a multiple of {block} values long, but the tensor has rows of {inputs}"
    )]
    PartialBlock { name: &'static str, block: usize, inputs: usize },
    /// A tensor without rows or columns, or one whose size overflows.
    #[error("a tensor of {outputs} x {inputs} values cannot be packed")]
    BadShape { outputs: usize, inputs: usize },
    /// A KV geometry outside of what the attention kernels handle.
    #[error("KV setting {key} = {value} is not supported: {limit}")]
    BadKvShape { key: &'static str, value: usize, limit: &'static str },
    /// The KV store does not fit into memory.
    #[error(
        "{bytes} bytes of KV pages cannot be allocated; lower the number of pages (or the KV memory budget)"
    )]
    OutOfMemory { bytes: u128 },
    /// The operating system refused a thread.
    #[error("cannot start compute thread {index}: {reason}; lower the number of engine threads")]
    Thread { index: usize, reason: String },
}
