//! The weights of a model on a device.

use super::backend::Backend;

/// A linear layer: `y = x · weightᵀ + bias`.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend> {
    /// `[outputs, inputs]`.
    pub(crate) weight: B::Matrix,
    /// `[outputs]`.
    pub(crate) bias: Option<B::Vector>,
}

/// One transformer block.
#[derive(Debug)]
pub(crate) struct Layer<B: Backend> {
    /// Norm before attention.
    pub(crate) attn_norm: B::Vector,
    /// Queries.
    pub(crate) q: Linear<B>,
    /// Keys.
    pub(crate) k: Linear<B>,
    /// Values.
    pub(crate) v: Linear<B>,
    /// Norms of each head of queries and keys, before the rotation (qwen3).
    pub(crate) qk_norm: Option<(B::Vector, B::Vector)>,
    /// Attention's output.
    pub(crate) o: Linear<B>,
    /// Norm before the feed-forward part.
    pub(crate) ffn_norm: B::Vector,
    /// The gate, which silu is applied to.
    pub(crate) gate: Linear<B>,
    /// What the gate multiplies.
    pub(crate) up: Linear<B>,
    /// Back to the residual's width.
    pub(crate) down: Linear<B>,
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights<B: Backend> {
    /// `[vocab, hidden]`.
    pub(crate) embed: B::Matrix,
    /// The blocks in order; at least one.
    pub(crate) layers: Vec<Layer<B>>,
    /// Norm before the head.
    pub(crate) final_norm: B::Vector,
    /// `[vocab, hidden]`; `None` when the embeddings are tied, which are then held once.
    head: Option<B::Matrix>,
}

impl<B: Backend> Weights<B> {
    /// Puts the parts together.
    pub(crate) fn new(
        embed: B::Matrix,
        layers: Vec<Layer<B>>,
        final_norm: B::Vector,
        head: Option<B::Matrix>,
    ) -> Self {
        Self { embed, layers, final_norm, head }
    }

    /// The matrix that makes logits.
    pub(crate) fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Bytes of all matrices on the device.
    pub(crate) fn bytes(&self) -> usize {
        let mut bytes = B::matrix_bytes(&self.embed) + self.head.as_ref().map_or(0, B::matrix_bytes);
        for layer in &self.layers {
            for linear in [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down] {
                bytes += B::matrix_bytes(&linear.weight);
            }
        }
        bytes
    }
}
