//! The graph's operations on the CPU: the kernels of [`crate::cpu`], all row-invariant.

use std::ops::Range;
use std::sync::Arc;

use super::backend::{Backend, MatrixData, Projection};
use super::batch::{RaggedBatch, RowSet};
use crate::EngineError;
use crate::cpu::{
    self, Compute, KvStore, Packed, Product, RopeStyle, RopeTable, SeqRows, add, attention, matmul, rms_norm,
    rms_norm_in_place, rope, silu_mul,
};

/// Compute threads, KV pages and position tables.
#[derive(Debug)]
pub(crate) struct CpuBackend {
    compute: Arc<Compute>,
    kv: KvStore,
    table: RopeTable,
    style: RopeStyle,
    heads: usize,
    scale: f32,
}

impl CpuBackend {
    /// A backend for sequences of `heads` query heads over the given pages.
    pub(crate) fn new(
        compute: Arc<Compute>,
        kv: KvStore,
        table: RopeTable,
        style: RopeStyle,
        heads: usize,
    ) -> Self {
        let scale = 1.0 / (kv.head_dim() as f32).sqrt();
        Self { compute, kv, table, style, heads, scale }
    }
}

impl Backend for CpuBackend {
    type Device = Compute;
    type Matrix = Packed;
    type Vector = Vec<f32>;
    type Buffer = Vec<f32>;

    fn matrix(device: &Compute, data: &MatrixData<'_>) -> Result<Packed, String> {
        Packed::from_ggml(device, data.dtype.code(), data.data, data.outputs, data.inputs)
            .map_err(|e| e.to_string())
    }

    fn vector(_device: &Compute, values: Vec<f32>) -> Result<Vec<f32>, String> {
        Ok(values)
    }

    fn matrix_bytes(matrix: &Packed) -> usize {
        matrix.bytes()
    }

    fn begin(&mut self, _batch: &RaggedBatch) -> Result<(), EngineError> {
        Ok(())
    }

    fn embed(&self, table: &Packed, tokens: &[u32], out: &mut Vec<f32>) -> Result<(), EngineError> {
        let width = table.inputs();
        out.resize(tokens.len() * width, 0.0);
        for (token, row) in tokens.iter().zip(out.chunks_exact_mut(width)) {
            table.dequantise_row(*token as usize, row);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &Vec<f32>,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        out.resize(x.len(), 0.0);
        rms_norm(&self.compute, x, weight, eps, out);
        Ok(())
    }

    fn head_norm(&self, x: &mut Vec<f32>, weight: &Vec<f32>, eps: f32) -> Result<(), EngineError> {
        rms_norm_in_place(&self.compute, x, weight, eps);
        Ok(())
    }

    fn matmul(
        &self,
        x: &Vec<f32>,
        rows: usize,
        products: &mut [Projection<'_, Self>],
    ) -> Result<(), EngineError> {
        let mut products: Vec<_> = products
            .iter_mut()
            .map(|product| {
                let weights = &product.linear.weight;
                product.out.resize(rows * weights.outputs(), 0.0);
                Product { weights, bias: product.linear.bias.as_deref(), out: product.out.as_mut_slice() }
            })
            .collect();
        matmul(&self.compute, x, rows, &mut products);
        Ok(())
    }

    fn rope(
        &self,
        x: &mut Vec<f32>,
        heads: usize,
        batch: &RaggedBatch,
        set: RowSet,
    ) -> Result<(), EngineError> {
        let head_dim = self.kv.head_dim();
        rope(&self.compute, x, heads, head_dim, batch.positions(set), &self.table, self.style);
        Ok(())
    }

    fn write_kv(
        &mut self,
        layer: usize,
        k: &Vec<f32>,
        v: &Vec<f32>,
        batch: &RaggedBatch,
    ) -> Result<(), EngineError> {
        self.kv.write_rows(&self.compute, layer, &batch.slots, k, v);
        Ok(())
    }

    fn attention(
        &self,
        layer: usize,
        q: &Vec<f32>,
        batch: &RaggedBatch,
        set: RowSet,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let seqs: Vec<_> = batch
            .spans(set)
            .iter()
            .map(|span| SeqRows {
                first_row: span.first_row,
                rows: span.rows,
                start_pos: span.start,
                block_table: &batch.tables[span.table.clone()],
            })
            .collect();
        out.resize(q.len(), 0.0);
        attention(&self.compute, layer, &self.kv, q, self.heads, &seqs, self.scale, out);
        Ok(())
    }

    fn silu_mul(&self, gate: &mut Vec<f32>, up: &Vec<f32>) -> Result<(), EngineError> {
        silu_mul(&self.compute, gate, up);
        Ok(())
    }

    fn add(&self, x: &mut Vec<f32>, y: &Vec<f32>) -> Result<(), EngineError> {
        add(&self.compute, x, y);
        Ok(())
    }

    fn gather(
        &self,
        x: &Vec<f32>,
        width: usize,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        out.clear();
        for row in rows {
            let start = *row as usize * width;
            out.extend_from_slice(&x[start..start + width]);
        }
        Ok(())
    }

    fn logits(
        &self,
        head: &Packed,
        hidden: &Vec<f32>,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let width = head.inputs();
        let count = rows.len();
        out.resize(count * head.outputs(), 0.0);
        let hidden = &hidden[rows.start * width..rows.end * width];
        matmul(&self.compute, hidden, count, &mut [Product::new(head, out)]);
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        self.kv.copy_page(from, to);
        Ok(())
    }

    fn export_page(&self, page: u32, out: &mut [u8]) -> Result<(), EngineError> {
        self.kv.export_page(page, out);
        Ok(())
    }

    fn import_page(&mut self, page: u32, content: &[u8]) -> Result<(), EngineError> {
        self.kv.import_page(page, content);
        Ok(())
    }
}

impl From<crate::gguf::RopeStyle> for RopeStyle {
    fn from(style: crate::gguf::RopeStyle) -> Self {
        match style {
            crate::gguf::RopeStyle::Interleaved => Self::Interleaved,
            crate::gguf::RopeStyle::HalfSplit => Self::HalfSplit,
        }
    }
}

impl From<cpu::CpuError> for EngineError {
    /// For errors of construction; kernels do not fail.
    fn from(error: cpu::CpuError) -> Self {
        Self::Load(error.to_string())
    }
}
