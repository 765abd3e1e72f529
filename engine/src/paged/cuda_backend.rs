//! The graph's operations on an NVIDIA GPU: candle tensors, matrix products of `mistralrs-quant`, attention by the kernels
//! of `mistralrs-paged-attn`.
//!
//! Numerics are best effort here: which kernel computes a row depends on how many rows share the batch, and so do its last
//! bits. What the CPU kernels promise (see [`crate::cpu`]) does not hold, and pages of the two are not exchanged.
//!
//! A program with this feature needs the driver's `libcuda.so.1` to start at all; where the driver is there but no device,
//! loading says so.
//!
//! What is arithmetic on the host or plain tensor work ([`plan`], [`pages`]) is compiled and tested without a GPU; all that
//! needs CUDA is behind feature `cuda`.

#[cfg(feature = "cuda")]
mod attention;
#[cfg(feature = "cuda")]
mod matrix;
#[cfg(feature = "cuda")]
mod ops;
mod pages;
mod plan;
#[cfg(feature = "cuda")]
mod target;

#[cfg(feature = "cuda")]
pub(crate) use target::find_device;
