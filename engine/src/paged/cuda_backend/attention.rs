//! A batch's index arrays on the device, and attention with them.

use candle_core::{Device, Result, Tensor};
use mistralrs_paged_attn::{flash_attn_sinks_varlen, gather_kv_cache, paged_attention};

use super::pages::LayerPages;
use super::plan::{BlockTables, Chunks, Plan, Singles};

/// Paged attention caps scores with this; 1 stands for no cap.
const NO_CAP: f32 = 1.0;

/// [`Plan`] on the device.
#[derive(Debug)]
pub(super) struct DevicePlan {
    singles: Vec<DeviceSingles>,
    chunks: Vec<DeviceChunks>,
    order: Option<Tensor>,
}

#[derive(Debug)]
struct DeviceSingles {
    rows: Option<Tensor>,
    lens: Tensor,
    longest: usize,
    tables: Tensor,
}

#[derive(Debug)]
struct DeviceChunks {
    sequences: usize,
    padded: usize,
    rows: Tensor,
    kept: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    tables: Tensor,
}

impl DevicePlan {
    /// Brings a plan to the device.
    pub(super) fn new(plan: &Plan, device: &Device) -> Result<Self> {
        let singles = plan.singles.iter().map(|call| DeviceSingles::new(call, device));
        let chunks = plan.chunks.iter().map(|call| DeviceChunks::new(call, device));
        Ok(Self {
            singles: singles.collect::<Result<_>>()?,
            chunks: chunks.collect::<Result<_>>()?,
            order: plan.order.as_ref().map(|order| indices(order, device)).transpose()?,
        })
    }

    /// Causal attention of `q`, `[rows, heads, head_dim]` in the type of the pages; the result has its shape.
    pub(super) fn attention(&self, q: &Tensor, pages: &LayerPages, scale: f32) -> Result<Tensor> {
        let mut results = Vec::with_capacity(self.singles.len() + self.chunks.len());
        for call in &self.singles {
            results.push(call.attention(q, pages, scale)?);
        }
        for call in &self.chunks {
            results.push(call.attention(q, pages, scale)?);
        }
        let all = match results.as_slice() {
            [single] => single.clone(),
            many => Tensor::cat(many, 0)?,
        };
        match &self.order {
            Some(order) => all.index_select(order, 0),
            None => Ok(all),
        }
    }
}

impl DeviceSingles {
    fn new(call: &Singles, device: &Device) -> Result<Self> {
        Ok(Self {
            rows: call.rows.as_ref().map(|rows| indices(rows, device)).transpose()?,
            lens: indices(&call.lens, device)?,
            longest: call.longest,
            tables: block_tables(&call.tables, call.lens.len(), device)?,
        })
    }

    fn attention(&self, q: &Tensor, pages: &LayerPages, scale: f32) -> Result<Tensor> {
        let picked;
        let q = match &self.rows {
            Some(rows) => {
                picked = q.index_select(rows, 0)?;
                &picked
            }
            None => q,
        };
        let (keys, values) = (&pages.keys, &pages.values);
        paged_attention(
            q,
            None,
            None,
            keys,
            values,
            &self.tables,
            &self.lens,
            None,
            self.longest,
            scale,
            NO_CAP,
            None,
        )
    }
}

impl DeviceChunks {
    fn new(call: &Chunks, device: &Device) -> Result<Self> {
        let sequences = call.query_ends.len() - 1;
        Ok(Self {
            sequences,
            padded: call.padded,
            rows: indices(&call.rows, device)?,
            kept: indices(&call.kept, device)?,
            query_ends: indices(&call.query_ends, device)?,
            key_ends: indices(&call.key_ends, device)?,
            tables: block_tables(&call.tables, sequences, device)?,
        })
    }

    /// Rows are aligned with the end of their sequence's keys, as causal attention to a context wants it.
    fn attention(&self, q: &Tensor, pages: &LayerPages, scale: f32) -> Result<Tensor> {
        let (_, heads, head_dim) = q.dims3()?;
        let (tables, ends) = (&self.tables, &self.key_ends);
        let (keys, values) =
            gather_kv_cache(&pages.keys, &pages.values, None, None, tables, ends, q.dtype())?;
        let q = q.index_select(&self.rows, 0)?.reshape((self.sequences, self.padded, heads, head_dim))?;
        let q = q.transpose(1, 2)?.contiguous()?;
        let out = flash_attn_sinks_varlen(&q, &keys, &values, None, &self.query_ends, ends, scale, 0)?;
        let out = out.transpose(1, 2)?.contiguous()?;
        out.reshape((self.sequences * self.padded, heads, head_dim))?.index_select(&self.kept, 0)
    }
}

/// Numbers as a tensor on the device.
pub(super) fn indices(values: &[u32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), device)
}

fn block_tables(tables: &BlockTables, sequences: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&tables.pages, (sequences, tables.width), device)
}
