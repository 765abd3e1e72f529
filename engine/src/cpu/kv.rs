//! The KV pages of this machine, in the layout attention reads.
//!
//! A page of one layer holds K as `[kv head][block of 16 tokens][dim][16 tokens]` (a dot product over `dim` is then
//! parallel over 16 tokens without a reduction across lanes) and V as `[kv head][token][dim]`.

use super::{Compute, CpuError};

/// Element type of the stored K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    F16,
    F32,
}

/// Where one token's K and V live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvSlot {
    pub page: u32,
    /// Token within the page, `0..page_tokens`.
    pub slot: u32,
}

/// All KV pages. Memory is reserved at once but costs nothing until a page is written.
#[derive(Debug)]
pub struct KvStore {}

impl KvStore {
    /// Reserves `pages` pages of `page_tokens` tokens.
    ///
    /// # Errors
    /// `page_tokens` not a multiple of 16, `head_dim` not a multiple of 8 in `8..=256`, a zero anywhere, or a size that
    /// cannot be allocated.
    pub fn new(
        layers: usize,
        pages: usize,
        page_tokens: usize,
        kv_heads: usize,
        head_dim: usize,
        dtype: KvDtype,
    ) -> Result<Self, CpuError> {
        todo!()
    }

    pub fn layers(&self) -> usize {
        todo!()
    }
    pub fn pages(&self) -> usize {
        todo!()
    }
    pub fn page_tokens(&self) -> usize {
        todo!()
    }
    pub fn kv_heads(&self) -> usize {
        todo!()
    }
    pub fn head_dim(&self) -> usize {
        todo!()
    }
    pub fn dtype(&self) -> KvDtype {
        todo!()
    }

    /// Bytes of one page over all layers: what [`export_page`](Self::export_page) writes.
    pub fn page_bytes(&self) -> usize {
        todo!()
    }

    /// Stores one token's K and V (`[kv_heads * head_dim]` each) of one layer.
    pub fn write(&mut self, layer: usize, at: KvSlot, k: &[f32], v: &[f32]) {
        todo!()
    }

    /// Stores many tokens' K and V of one layer: row `r` of `k` and `v` (`[rows, kv_heads * head_dim]`) goes to
    /// `slots[r]`. No two slots may be equal.
    pub fn write_rows(&mut self, compute: &Compute, layer: usize, slots: &[KvSlot], k: &[f32], v: &[f32]) {
        todo!()
    }

    /// Copies a whole page (copy-on-write of a shared, partly filled page).
    pub fn copy_page(&mut self, from: u32, to: u32) {
        todo!()
    }

    /// Writes a page in the canonical layout (layer, k/v, token, kv head, dim), little-endian elements.
    pub fn export_page(&self, page: u32, out: &mut [u8]) {
        todo!()
    }

    /// Reads a page in the canonical layout.
    pub fn import_page(&mut self, page: u32, data: &[u8]) {
        todo!()
    }
}
