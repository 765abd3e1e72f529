//! KV pages as the attention kernels lay them out, and their way to and from the canonical layout.

use candle_core::{DType, Device, Result, Tensor};
use half::f16;
use policies::kv::PageLayout;

/// Bytes that the kernels read of a key at a time: a key's elements lie in groups of so many bytes.
const GROUP_BYTES: usize = 16;

/// Keys and values of all layers.
#[derive(Debug)]
pub(super) struct KvPages {
    layers: Vec<LayerPages>,
    shape: Shape,
    dtype: DType,
    device: Device,
}

/// Pages of one layer.
#[derive(Debug)]
pub(super) struct LayerPages {
    /// `[pages, kv_heads, head_dim / group, page_tokens, group]`.
    pub(super) keys: Tensor,
    /// `[pages, kv_heads, head_dim, page_tokens]`.
    pub(super) values: Tensor,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    kv_heads: usize,
    head_dim: usize,
    tokens: usize,
    /// Elements of [`GROUP_BYTES`].
    group: usize,
}

impl KvPages {
    /// Pages full of zeros. Elements of 4 bytes are 32-bit floats, others 16-bit ones.
    pub(super) fn new(layout: &PageLayout, pages: usize, device: &Device) -> Result<Self> {
        let dtype = if layout.element_bytes == 4 { DType::F32 } else { DType::F16 };
        let shape = Shape {
            kv_heads: layout.kv_heads as usize,
            head_dim: layout.head_dim as usize,
            tokens: layout.page_tokens as usize,
            group: GROUP_BYTES / dtype.size_in_bytes(),
        };
        let layers = (0..layout.layers)
            .map(|_| {
                let groups = shape.head_dim / shape.group;
                let keys = (pages, shape.kv_heads, groups, shape.tokens, shape.group);
                let values = (pages, shape.kv_heads, shape.head_dim, shape.tokens);
                Ok(LayerPages {
                    keys: Tensor::zeros(keys, dtype, device)?,
                    values: Tensor::zeros(values, dtype, device)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { layers, shape, dtype, device: device.clone() })
    }

    /// Pages of a layer.
    #[cfg(feature = "cuda")]
    pub(super) fn layer(&self, layer: usize) -> &LayerPages {
        &self.layers[layer]
    }

    /// What elements are stored as.
    #[cfg(feature = "cuda")]
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Copies a page to another.
    pub(super) fn copy(&self, from: u32, to: u32) -> Result<()> {
        for tensor in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
            let page = tensor.narrow(0, from as usize, 1)?.force_contiguous()?;
            tensor.slice_set(&page, 0, to as usize)?;
        }
        Ok(())
    }

    /// Writes a page in the canonical layout (layer, k/v, token, kv head, dim), little-endian elements.
    pub(super) fn export(&self, page: u32, out: &mut [u8]) -> Result<()> {
        let Shape { kv_heads, head_dim, tokens, .. } = self.shape;
        let mut parts = Vec::with_capacity(2 * self.layers.len());
        for layer in &self.layers {
            let keys = layer.keys.get(page as usize)?.permute((2, 0, 1, 3))?;
            parts.push(keys.reshape((tokens, kv_heads, head_dim))?);
            parts.push(layer.values.get(page as usize)?.permute((2, 0, 1))?.contiguous()?);
        }
        // One copy to the host for all layers.
        let elements = Tensor::stack(&parts, 0)?.flatten_all()?;
        match self.dtype {
            DType::F32 => fill(out, &elements.to_vec1::<f32>()?, |x| x.to_le_bytes()),
            _ => fill(out, &elements.to_vec1::<f16>()?, |x| x.to_le_bytes()),
        }
        Ok(())
    }

    /// Sets a page from the canonical layout.
    pub(super) fn import(&self, page: u32, content: &[u8]) -> Result<()> {
        let Shape { kv_heads, head_dim, tokens, group } = self.shape;
        let shape = [self.layers.len(), 2, tokens, kv_heads, head_dim];
        let elements = Tensor::from_raw_buffer(content, self.dtype, &shape, &self.device)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let both = elements.get(index)?;
            let keys = both.get(0)?.reshape((tokens, kv_heads, head_dim / group, group))?;
            let keys = keys.permute((1, 2, 0, 3))?.unsqueeze(0)?.contiguous()?;
            layer.keys.slice_set(&keys, 0, page as usize)?;
            let values = both.get(1)?.permute((1, 2, 0))?.unsqueeze(0)?.contiguous()?;
            layer.values.slice_set(&values, 0, page as usize)?;
        }
        Ok(())
    }
}

/// Writes elements as bytes.
fn fill<T: Copy, const N: usize>(out: &mut [u8], elements: &[T], bytes: impl Fn(T) -> [u8; N]) {
    for (out, element) in out.chunks_exact_mut(N).zip(elements) {
        out.copy_from_slice(&bytes(*element));
    }
}

#[cfg(test)]
mod tests;
