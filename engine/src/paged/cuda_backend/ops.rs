//! [`Backend`] on the device.

use std::ops::Range;

use candle_core::{D, DType, Device, Result as Computed, Tensor};
use candle_nn::ops::rms_norm;
use candle_nn::rotary_emb::{rope, rope_i};
use mistralrs_paged_attn::reshape_and_cache;
use mistralrs_quant::{GluActivationType, fused_glu};

use super::super::backend::{Backend, MatrixData, Projection};
use super::super::batch::{RaggedBatch, RowSet};
use super::attention::{DevicePlan, indices};
use super::matrix::CudaMatrix;
use super::pages::KvPages;
use super::plan::Plan;
use crate::EngineError;
use crate::gguf::{ModelSpec, RopeStyle};

/// A device with KV pages and position tables.
#[derive(Debug)]
pub(crate) struct CudaBackend {
    device: Device,
    pages: KvPages,
    page_tokens: usize,
    /// `[positions, pairs]`
    cos: Tensor,
    /// `[positions, pairs]`
    sin: Tensor,
    style: RopeStyle,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f32,
    step: Option<Step>,
}

/// Activations, `[rows, width]` of 32-bit floats; `None` before they are first computed.
#[derive(Debug, Default)]
pub(crate) struct Activations(Option<Tensor>);

/// What the operations need of the current batch.
#[derive(Debug)]
struct Step {
    /// `[rows]`: page times tokens a page, plus token in the page.
    slots: Tensor,
    all: Rows,
    /// `None` where all rows are outputs, or none.
    outputs: Option<Rows>,
}

#[derive(Debug)]
struct Rows {
    /// `[rows, 1, pairs]`
    cos: Tensor,
    /// `[rows, 1, pairs]`
    sin: Tensor,
    plan: DevicePlan,
}

impl CudaBackend {
    /// A backend over given pages, for positions up to `context`.
    pub(super) fn new(
        device: &Device,
        pages: KvPages,
        page_tokens: usize,
        context: usize,
        spec: &ModelSpec,
    ) -> Computed<Self> {
        let frequencies = spec.rope.frequencies();
        let pairs = frequencies.inv_freq.len();
        let magnitude = f64::from(frequencies.magnitude);
        let angles =
            (0..context).flat_map(|position| frequencies.inv_freq.iter().map(move |f| position as f64 * f));
        // 32-bit angles would be off by hundredths at positions in the hundred thousands.
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|angle| ((angle.cos() * magnitude) as f32, (angle.sin() * magnitude) as f32)).unzip();
        Ok(Self {
            device: device.clone(),
            pages,
            page_tokens,
            cos: Tensor::from_vec(cos, (context, pairs), device)?,
            sin: Tensor::from_vec(sin, (context, pairs), device)?,
            style: spec.rope.style,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            scale: 1.0 / (spec.head_dim as f32).sqrt(),
            step: None,
        })
    }

    fn prepare(&self, batch: &RaggedBatch) -> Computed<Step> {
        let slot =
            |at: &crate::cpu::KvSlot| i64::from(at.page) * self.page_tokens as i64 + i64::from(at.slot);
        let slots: Vec<_> = batch.slots.iter().map(slot).collect();
        let outputs = batch.outputs.len();
        let outputs = match outputs > 0 && outputs < batch.rows() {
            true => Some(self.rows(batch, RowSet::Outputs)?),
            false => None,
        };
        Ok(Step {
            slots: Tensor::from_vec(slots, batch.rows(), &self.device)?,
            all: self.rows(batch, RowSet::All)?,
            outputs,
        })
    }

    fn rows(&self, batch: &RaggedBatch, set: RowSet) -> Computed<Rows> {
        let positions = indices(batch.positions(set), &self.device)?;
        let plan = Plan::new(batch.spans(set), &batch.tables, self.page_tokens, self.heads);
        Ok(Rows {
            cos: self.cos.index_select(&positions, 0)?.unsqueeze(1)?,
            sin: self.sin.index_select(&positions, 0)?.unsqueeze(1)?,
            plan: DevicePlan::new(&plan, &self.device)?,
        })
    }

    fn step(&self) -> Computed<&Step> {
        self.step.as_ref().ok_or_else(|| candle_core::Error::msg("no batch has begun"))
    }

    fn set(&self, set: RowSet) -> Computed<&Rows> {
        let step = self.step()?;
        Ok(match (set, &step.outputs) {
            (RowSet::Outputs, Some(outputs)) => outputs,
            _ => &step.all,
        })
    }

    /// Each row of a set is a sequence of its own to the rotation, of length 1.
    fn rotate(&self, x: &Tensor, heads: usize, set: RowSet) -> Computed<Tensor> {
        let Rows { cos, sin, .. } = self.set(set)?;
        let (rows, width) = x.dims2()?;
        let x = x.reshape((rows, heads, 1, self.head_dim))?;
        let turn = |x: &Tensor| match self.style {
            RopeStyle::Interleaved => rope_i(x, cos, sin),
            RopeStyle::HalfSplit => rope(x, cos, sin),
        };
        let rotated = 2 * cos.dim(D::Minus1)?;
        let out = if rotated == self.head_dim {
            turn(&x)?
        } else {
            let rest = x.narrow(D::Minus1, rotated, self.head_dim - rotated)?;
            Tensor::cat(&[&turn(&x.narrow(D::Minus1, 0, rotated)?.contiguous()?)?, &rest], D::Minus1)?
        };
        out.reshape((rows, width))
    }

    fn store(&self, layer: usize, k: &Tensor, v: &Tensor) -> Computed<()> {
        let shaped = |x: &Tensor| {
            x.reshape(((), self.kv_heads, self.head_dim))?.to_dtype(self.pages.dtype())?.contiguous()
        };
        let pages = self.pages.layer(layer);
        reshape_and_cache(
            &shaped(k)?,
            &shaped(v)?,
            None,
            None,
            &pages.keys,
            &pages.values,
            &self.step()?.slots,
        )
    }

    fn attend(&self, layer: usize, q: &Tensor, set: RowSet) -> Computed<Tensor> {
        let (rows, width) = q.dims2()?;
        let q = q.reshape((rows, self.heads, self.head_dim))?.to_dtype(self.pages.dtype())?;
        let out = self.set(set)?.plan.attention(&q, self.pages.layer(layer), self.scale)?;
        out.reshape((rows, width))?.to_dtype(DType::F32)
    }

    fn pick(&self, table: &Tensor, rows: &[u32]) -> Computed<Tensor> {
        table.index_select(&indices(rows, &self.device)?, 0)?.to_dtype(DType::F32)
    }
}

impl Activations {
    fn get(&self) -> Computed<&Tensor> {
        self.0
            .as_ref()
            .ok_or_else(|| candle_core::Error::msg("activations are read before they are computed"))
    }

    /// Replaces what is held.
    fn set(&mut self, result: Computed<Tensor>) -> Result<(), EngineError> {
        self.0 = Some(result.map_err(failed)?);
        Ok(())
    }
}

/// What a failure of the device is to a step.
fn failed(error: impl std::fmt::Display) -> EngineError {
    EngineError::Step(format!("on the GPU: {error}"))
}

/// What it is to a page operation.
fn page_failed(error: impl std::fmt::Display) -> EngineError {
    EngineError::Page(format!("on the GPU: {error}"))
}

impl Backend for CudaBackend {
    type Device = Device;
    type Matrix = CudaMatrix;
    type Vector = Tensor;
    type Buffer = Activations;

    fn matrix(device: &Device, data: &MatrixData<'_>) -> Result<CudaMatrix, String> {
        CudaMatrix::new(device, data).map_err(|e| format!("it cannot be brought to the GPU: {e}"))
    }

    fn vector(device: &Device, values: Vec<f32>) -> Result<Tensor, String> {
        let len = values.len();
        Tensor::from_vec(values, len, device).map_err(|e| format!("it cannot be brought to the GPU: {e}"))
    }

    fn matrix_bytes(matrix: &CudaMatrix) -> usize {
        matrix.bytes()
    }

    fn begin(&mut self, batch: &RaggedBatch) -> Result<(), EngineError> {
        self.step = Some(self.prepare(batch).map_err(failed)?);
        Ok(())
    }

    fn embed(&self, table: &CudaMatrix, tokens: &[u32], out: &mut Activations) -> Result<(), EngineError> {
        out.set(table.rows().and_then(|rows| self.pick(rows, tokens)))
    }

    fn rms_norm(
        &self,
        x: &Activations,
        weight: &Tensor,
        eps: f32,
        out: &mut Activations,
    ) -> Result<(), EngineError> {
        out.set(x.get().and_then(|x| rms_norm(x, weight, eps)))
    }

    fn head_norm(&self, x: &mut Activations, weight: &Tensor, eps: f32) -> Result<(), EngineError> {
        let normed = x.get().and_then(|x| {
            let heads = x.reshape(((), weight.dims1()?))?;
            rms_norm(&heads, weight, eps)?.reshape(x.shape())
        });
        x.set(normed)
    }

    fn matmul(
        &self,
        x: &Activations,
        _rows: usize,
        products: &mut [Projection<'_, Self>],
    ) -> Result<(), EngineError> {
        let x = x.get().map_err(failed)?;
        for Projection { linear, out } in products {
            out.set(linear.weight.product(x).and_then(|y| match &linear.bias {
                Some(bias) => y.broadcast_add(bias),
                None => Ok(y),
            }))?;
        }
        Ok(())
    }

    fn rope(
        &self,
        x: &mut Activations,
        heads: usize,
        _batch: &RaggedBatch,
        set: RowSet,
    ) -> Result<(), EngineError> {
        let rotated = x.get().and_then(|x| self.rotate(x, heads, set));
        x.set(rotated)
    }

    fn write_kv(
        &mut self,
        layer: usize,
        k: &Activations,
        v: &Activations,
        _batch: &RaggedBatch,
    ) -> Result<(), EngineError> {
        k.get().and_then(|k| self.store(layer, k, v.get()?)).map_err(failed)
    }

    fn attention(
        &self,
        layer: usize,
        q: &Activations,
        _batch: &RaggedBatch,
        set: RowSet,
        out: &mut Activations,
    ) -> Result<(), EngineError> {
        out.set(q.get().and_then(|q| self.attend(layer, q, set)))
    }

    fn silu_mul(&self, gate: &mut Activations, up: &Activations) -> Result<(), EngineError> {
        let product = gate.get().and_then(|gate| fused_glu(gate, up.get()?, GluActivationType::Silu));
        gate.set(product)
    }

    fn add(&self, x: &mut Activations, y: &Activations) -> Result<(), EngineError> {
        let sum = x.get().and_then(|x| x.add(y.get()?));
        x.set(sum)
    }

    fn gather(
        &self,
        x: &Activations,
        _width: usize,
        rows: &[u32],
        out: &mut Activations,
    ) -> Result<(), EngineError> {
        // There may be no rows, and no kernel for that.
        if rows.is_empty() {
            out.0 = None;
            return Ok(());
        }
        out.set(x.get().and_then(|x| self.pick(x, rows)))
    }

    fn logits(
        &self,
        head: &CudaMatrix,
        hidden: &Activations,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let logits = hidden.get().and_then(|hidden| {
            let picked = hidden.narrow(0, rows.start, rows.len())?;
            head.product(&picked)?.flatten_all()?.to_vec1::<f32>()
        });
        *out = logits.map_err(failed)?;
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        self.pages.copy(from, to).map_err(page_failed)
    }

    fn export_page(&self, page: u32, out: &mut [u8]) -> Result<(), EngineError> {
        self.pages.export(page, out).map_err(page_failed)
    }

    fn import_page(&mut self, page: u32, content: &[u8]) -> Result<(), EngineError> {
        self.pages.import(page, content).map_err(page_failed)
    }
}
