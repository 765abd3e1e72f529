//! `y = x · Wᵀ (+ bias)` over packed weights.

use super::{Compute, Packed};

/// One weight matrix of a [`matmul`] call and where its result goes.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix, `[outputs, inputs]`.
    pub weights: &'a Packed,
    /// Added to each output after the sum over the inputs; `[outputs]`.
    pub bias: Option<&'a [f32]>,
    /// The result, `[rows, outputs]`, row-major; overwritten.
    pub out: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// A product without a bias.
    pub fn new(weights: &'a Packed, out: &'a mut [f32]) -> Self {
        Product { weights, bias: None, out }
    }

    /// A product with a bias of `[outputs]` values.
    pub fn with_bias(weights: &'a Packed, bias: &'a [f32], out: &'a mut [f32]) -> Self {
        Product { weights, bias: Some(bias), out }
    }
}

/// Multiplies `x` (`[rows, inputs]`, row-major) by several matrices that share it, in one parallel region.
///
/// Row `r` of every result depends on row `r` of `x` alone, bit for bit (see the module [`cpu`](super)).
///
/// # Panics
/// If a slice's length does not match its shape.
pub fn matmul(compute: &Compute, x: &[f32], rows: usize, products: &mut [Product<'_>]) {
    todo!()
}
