//! The graph of the llama family (llama, mistral, qwen2, qwen3) over a ragged batch.
//!
//! Rows of different sequences go through the same operations together; only attention knows which pages are whose. In
//! the last layer, rows whose logits nobody wants contribute their keys and values and stop there.

use std::fmt::Debug;
use std::mem::swap;
use std::ops::Range;

use super::backend::{Backend, Projection};
use super::batch::{RaggedBatch, RowSet};
use super::weights::Weights;
use crate::EngineError;
use crate::gguf::ModelSpec;

/// A model that is ready to run, whatever its device.
pub(crate) trait Model: Debug + Send {
    /// Computes a batch: keys and values go to their pages, the hidden states of the output rows are kept for
    /// [`Model::logits`].
    fn run(&mut self, batch: &RaggedBatch) -> Result<(), EngineError>;

    /// Logits of some of the last batch's output rows, `[rows, vocab]`; `rows` counts within the outputs.
    fn logits(&mut self, rows: Range<usize>) -> Result<&[f32], EngineError>;

    /// Copies a page that exists.
    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), EngineError>;

    /// Reads a page that exists.
    fn export_page(&self, page: u32, out: &mut [u8]) -> Result<(), EngineError>;

    /// Sets a page that exists.
    fn import_page(&mut self, page: u32, content: &[u8]) -> Result<(), EngineError>;
}

/// The graph with its weights and its device.
#[derive(Debug)]
pub(crate) struct Graph<B: Backend> {
    backend: B,
    weights: Weights<B>,
    heads: usize,
    kv_heads: usize,
    hidden: usize,
    eps: f32,
    scratch: Scratch<B>,
}

/// Activations, kept from step to step.
#[derive(Debug)]
struct Scratch<B: Backend> {
    /// The residual stream.
    x: B::Buffer,
    /// Its norm, the input of a product; after the last layer the output rows' hidden states.
    h: B::Buffer,
    /// Rows on their way from `x` or `h`.
    picked: B::Buffer,
    q: B::Buffer,
    k: B::Buffer,
    v: B::Buffer,
    attended: B::Buffer,
    gate: B::Buffer,
    up: B::Buffer,
    /// What is added to the residual stream.
    delta: B::Buffer,
    logits: Vec<f32>,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        Self {
            x: B::Buffer::default(),
            h: B::Buffer::default(),
            picked: B::Buffer::default(),
            q: B::Buffer::default(),
            k: B::Buffer::default(),
            v: B::Buffer::default(),
            attended: B::Buffer::default(),
            gate: B::Buffer::default(),
            up: B::Buffer::default(),
            delta: B::Buffer::default(),
            logits: Vec::new(),
        }
    }
}

impl<B: Backend> Graph<B> {
    /// Puts a model together.
    pub(crate) fn new(backend: B, weights: Weights<B>, spec: &ModelSpec) -> Self {
        Self {
            backend,
            weights,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            hidden: spec.hidden,
            eps: spec.rms_eps as f32,
            scratch: Scratch::default(),
        }
    }
}

impl<B: Backend> Model for Graph<B> {
    fn run(&mut self, batch: &RaggedBatch) -> Result<(), EngineError> {
        let Self { backend: b, weights, eps, scratch: s, .. } = self;
        let eps = *eps;
        let mut rows = batch.rows();
        if rows == 0 {
            return Ok(());
        }
        let mut set = RowSet::All;
        b.begin(batch)?;
        b.embed(&weights.embed, &batch.tokens, &mut s.x)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let (q, k, v) = (&layer.q, &layer.k, &layer.v);
            b.rms_norm(&s.x, &layer.attn_norm, eps, &mut s.h)?;
            let is_last = index + 1 == weights.layers.len();
            if is_last && batch.outputs.len() < rows {
                let mut keys_values =
                    [Projection { linear: k, out: &mut s.k }, Projection { linear: v, out: &mut s.v }];
                b.matmul(&s.h, rows, &mut keys_values)?;
                (set, rows) = (RowSet::Outputs, batch.outputs.len());
                b.gather(&s.h, self.hidden, &batch.outputs, &mut s.picked)?;
                swap(&mut s.h, &mut s.picked);
                b.gather(&s.x, self.hidden, &batch.outputs, &mut s.picked)?;
                swap(&mut s.x, &mut s.picked);
                if rows > 0 {
                    b.matmul(&s.h, rows, &mut [Projection { linear: q, out: &mut s.q }])?;
                }
            } else {
                let mut all = [
                    Projection { linear: q, out: &mut s.q },
                    Projection { linear: k, out: &mut s.k },
                    Projection { linear: v, out: &mut s.v },
                ];
                b.matmul(&s.h, rows, &mut all)?;
            }
            if let Some((_, k_norm)) = &layer.qk_norm {
                b.head_norm(&mut s.k, k_norm, eps)?;
            }
            b.rope(&mut s.k, self.kv_heads, batch, RowSet::All)?;
            b.write_kv(index, &s.k, &s.v, batch)?;
            if rows == 0 {
                return Ok(());
            }
            if let Some((q_norm, _)) = &layer.qk_norm {
                b.head_norm(&mut s.q, q_norm, eps)?;
            }
            b.rope(&mut s.q, self.heads, batch, set)?;
            b.attention(index, &s.q, batch, set, &mut s.attended)?;
            b.matmul(&s.attended, rows, &mut [Projection { linear: &layer.o, out: &mut s.delta }])?;
            b.add(&mut s.x, &s.delta)?;

            b.rms_norm(&s.x, &layer.ffn_norm, eps, &mut s.h)?;
            let mut gate_up = [
                Projection { linear: &layer.gate, out: &mut s.gate },
                Projection { linear: &layer.up, out: &mut s.up },
            ];
            b.matmul(&s.h, rows, &mut gate_up)?;
            b.silu_mul(&mut s.gate, &s.up)?;
            b.matmul(&s.gate, rows, &mut [Projection { linear: &layer.down, out: &mut s.delta }])?;
            b.add(&mut s.x, &s.delta)?;
        }
        b.rms_norm(&s.x, &weights.final_norm, eps, &mut s.h)
    }

    fn logits(&mut self, rows: Range<usize>) -> Result<&[f32], EngineError> {
        let s = &mut self.scratch;
        self.backend.logits(self.weights.head(), &s.h, rows, &mut s.logits)?;
        Ok(&s.logits)
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        self.backend.copy_page(from, to)
    }

    fn export_page(&self, page: u32, out: &mut [u8]) -> Result<(), EngineError> {
        self.backend.export_page(page, out)
    }

    fn import_page(&mut self, page: u32, content: &[u8]) -> Result<(), EngineError> {
        self.backend.import_page(page, content)
    }
}
