//! The KV pages of this machine, in the layout attention reads.
//!
//! A page of one layer holds K as `[kv head][block of 16 tokens][dim][16 tokens]` (a dot product over `dim` is then
//! parallel over 16 tokens without a reduction across lanes) and V as `[kv head][token][dim]`. Pages are contiguous over
//! their layers, so that copying one is one copy and an untouched one stays untouched memory.
#![expect(
    unsafe_code,
    reason = "typed views of the pages' memory; rows written in parallel to distinct slots"
)]

use half::f16;

use super::packed::{Buffer, SharedMut};
use super::simd::Simd;
use super::{Compute, CpuError};

/// Tokens that a block of K interleaves.
pub(super) const BLOCK: usize = 16;

/// Element type of the stored K and V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Half precision, rounded to nearest even when written.
    F16,
    /// Single precision: what was computed.
    F32,
}

/// Where one token's K and V live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvSlot {
    /// Page of the store.
    pub page: u32,
    /// Token within the page, `0..page_tokens`.
    pub slot: u32,
}

/// Sizes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) pages: usize,
    pub(super) page_tokens: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Shape {
    /// Elements of K (or V) of one layer of one page.
    fn half(&self) -> usize {
        self.page_tokens * self.kv_heads * self.head_dim
    }

    fn page(&self) -> usize {
        2 * self.layers * self.half()
    }

    /// Where K of a layer of a page begins.
    fn k_start(&self, page: usize, layer: usize) -> usize {
        page * self.page() + layer * 2 * self.half()
    }

    /// Offset within K of one element.
    fn k_at(&self, token: usize, head: usize, dim: usize) -> usize {
        ((head * self.page_tokens + token / BLOCK * BLOCK) * self.head_dim) + dim * BLOCK + token % BLOCK
    }

    /// Offset within V of a token's first element.
    fn v_at(&self, token: usize, head: usize) -> usize {
        (head * self.page_tokens + token) * self.head_dim
    }
}

/// All KV pages. Memory is reserved at once but costs nothing until a page is written.
#[derive(Debug)]
pub struct KvStore {
    shape: Shape,
    dtype: KvDtype,
    data: Buffer,
}

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
        for (key, value) in [("layers", layers), ("pages", pages), ("kv-heads", kv_heads)] {
            if value == 0 {
                return Err(CpuError::BadKvShape { key, value, limit: "at least 1" });
            }
        }
        if pages > u32::MAX as usize {
            return Err(CpuError::BadKvShape { key: "pages", value: pages, limit: "at most 4294967295" });
        }
        if page_tokens == 0 || !page_tokens.is_multiple_of(BLOCK) {
            return Err(CpuError::BadKvShape {
                key: "page-tokens",
                value: page_tokens,
                limit: "a multiple of 16",
            });
        }
        if head_dim == 0 || !head_dim.is_multiple_of(8) || head_dim > 256 {
            let limit = "a multiple of 8, at most 256";
            return Err(CpuError::BadKvShape { key: "head-dim", value: head_dim, limit });
        }
        let sizes = [2, layers, pages, page_tokens, kv_heads, head_dim, dtype.size()];
        let bytes = sizes.iter().fold(1_u128, |product, &n| product.saturating_mul(n as u128));
        // Attention may read (never use) up to a vector past the last element.
        let data = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| Buffer::try_zeroed(bytes.checked_add(64)?))
            .ok_or(CpuError::OutOfMemory { bytes })?;
        Ok(KvStore { shape: Shape { layers, pages, page_tokens, kv_heads, head_dim }, dtype, data })
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.shape.layers
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.shape.pages
    }

    /// Tokens a page holds.
    pub fn page_tokens(&self) -> usize {
        self.shape.page_tokens
    }

    /// KV heads of a layer.
    pub fn kv_heads(&self) -> usize {
        self.shape.kv_heads
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    /// Element type.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// Bytes of one page over all layers: what [`export_page`](Self::export_page) writes.
    pub fn page_bytes(&self) -> usize {
        self.shape.page() * self.dtype.size()
    }

    /// Stores one token's K and V (`[kv_heads * head_dim]` each) of one layer.
    ///
    /// # Panics
    /// If the layer, the slot or a length does not fit.
    pub fn write(&mut self, layer: usize, at: KvSlot, k: &[f32], v: &[f32]) {
        self.check_row(layer, at, k.len(), v.len());
        let shape = self.shape;
        match self.dtype {
            KvDtype::F16 => {
                write_row::<f16>(&SharedMut::new(elements_mut(&mut self.data)), &shape, layer, at, k, v);
            }
            KvDtype::F32 => {
                write_row::<f32>(&SharedMut::new(elements_mut(&mut self.data)), &shape, layer, at, k, v);
            }
        }
    }

    /// Stores many tokens' K and V of one layer: row `r` of `k` and `v` (`[rows, kv_heads * head_dim]`) goes to
    /// `slots[r]`. No two slots may be equal.
    ///
    /// # Panics
    /// If the layer, a slot or a length does not fit.
    pub fn write_rows(&mut self, compute: &Compute, layer: usize, slots: &[KvSlot], k: &[f32], v: &[f32]) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        assert_eq!(k.len(), slots.len() * width, "k of {} rows of {width}", slots.len());
        assert_eq!(v.len(), slots.len() * width, "v of {} rows of {width}", slots.len());
        let rows = k.chunks_exact(width).zip(v.chunks_exact(width)).zip(slots);
        if slots.len() < 32 {
            for ((k, v), &at) in rows {
                self.write(layer, at, k, v);
            }
            return;
        }
        // Threads share by page, so that two never write the same cache line, nor the same slot if slots repeat.
        let mut parts: Vec<(u32, usize)> = slots.iter().map(|s| s.page).zip(0..).collect();
        parts.sort_unstable();
        for &at in slots {
            self.check_row(layer, at, width, width);
        }
        let groups: Vec<&[(u32, usize)]> = parts.chunk_by(|a, b| a.0 == b.0).collect();
        let shape = self.shape;
        match self.dtype {
            KvDtype::F16 => {
                let data = SharedMut::new(elements_mut::<f16>(&mut self.data));
                write_groups(compute, &data, &shape, layer, &groups, slots, k, v);
            }
            KvDtype::F32 => {
                let data = SharedMut::new(elements_mut::<f32>(&mut self.data));
                write_groups(compute, &data, &shape, layer, &groups, slots, k, v);
            }
        }
    }

    /// Copies a whole page (copy-on-write of a shared, partly filled page).
    ///
    /// # Panics
    /// If a page does not exist.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let bytes = self.page_bytes();
        self.check_page(from);
        self.check_page(to);
        let start = from as usize * bytes;
        self.data.as_mut_slice().copy_within(start..start + bytes, to as usize * bytes);
    }

    /// Writes a page in the canonical layout (layer, k/v, token, kv head, dim), little-endian elements.
    ///
    /// # Panics
    /// If the page does not exist or `out` is not `page_bytes()` long.
    pub fn export_page(&self, page: u32, out: &mut [u8]) {
        self.check_page(page);
        assert_eq!(out.len(), self.page_bytes(), "bytes of a page");
        let bytes = self.page_bytes();
        let own = &self.data.as_slice()[page as usize * bytes..][..bytes];
        match self.dtype {
            KvDtype::F16 => self.shape.export::<2>(own, out),
            KvDtype::F32 => self.shape.export::<4>(own, out),
        }
    }

    /// Reads a page in the canonical layout.
    ///
    /// # Panics
    /// If the page does not exist or `data` is not `page_bytes()` long.
    pub fn import_page(&mut self, page: u32, data: &[u8]) {
        self.check_page(page);
        assert_eq!(data.len(), self.page_bytes(), "bytes of a page");
        let bytes = self.page_bytes();
        let shape = self.shape;
        let own = &mut self.data.as_mut_slice()[page as usize * bytes..][..bytes];
        match self.dtype {
            KvDtype::F16 => shape.import::<2>(own, data),
            KvDtype::F32 => shape.import::<4>(own, data),
        }
    }

    pub(super) fn elements<T: KvElem>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "element type of the store");
        elements(&self.data)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    fn check_page(&self, page: u32) {
        assert!((page as usize) < self.shape.pages, "page {page} of {}", self.shape.pages);
    }

    fn check_row(&self, layer: usize, at: KvSlot, k: usize, v: usize) {
        self.check_page(at.page);
        assert!(layer < self.shape.layers, "layer {layer} of {}", self.shape.layers);
        assert!(
            (at.slot as usize) < self.shape.page_tokens,
            "slot {} of {}",
            at.slot,
            self.shape.page_tokens
        );
        let width = self.shape.kv_heads * self.shape.head_dim;
        assert!(k == width && v == width, "k of {k} and v of {v} values, not {width}");
    }
}

impl Shape {
    /// Copies a page's elements of `SIZE` bytes to the canonical layout.
    fn export<const SIZE: usize>(&self, page: &[u8], canonical: &mut [u8]) {
        let (page, _) = page.as_chunks::<SIZE>();
        let rows = canonical.as_chunks_mut::<SIZE>().0.chunks_exact_mut(self.head_dim);
        for (row, (at, step)) in rows.zip(self.canonical_rows()) {
            for (to, from) in row.iter_mut().zip(page[at..].iter().step_by(step)) {
                *to = little_endian(*from);
            }
        }
    }

    /// The inverse of [`export`](Self::export).
    fn import<const SIZE: usize>(&self, page: &mut [u8], canonical: &[u8]) {
        let (page, _) = page.as_chunks_mut::<SIZE>();
        let rows = canonical.as_chunks::<SIZE>().0.chunks_exact(self.head_dim);
        for (row, (at, step)) in rows.zip(self.canonical_rows()) {
            for (from, to) in row.iter().zip(page[at..].iter_mut().step_by(step)) {
                *to = little_endian(*from);
            }
        }
    }

    /// The rows of `head_dim` elements in canonical order: where each begins in the page, and the step between its
    /// elements.
    fn canonical_rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let heads =
            move || (0..self.page_tokens).flat_map(|token| (0..self.kv_heads).map(move |head| (token, head)));
        (0..self.layers).flat_map(move |layer| {
            let k = layer * 2 * self.half();
            let k_rows = heads().map(move |(token, head)| (k + self.k_at(token, head, 0), BLOCK));
            k_rows.chain(heads().map(move |(token, head)| (k + self.half() + self.v_at(token, head), 1)))
        })
    }

    /// Elements from the store's start to K of `head` of a layer of a page, block 0; blocks follow one another.
    pub(super) fn k_block(&self, page: usize, layer: usize, head: usize, token: usize) -> usize {
        self.k_start(page, layer) + self.k_at(token, head, 0)
    }

    /// Elements from the store's start to V of `head`, `token` of a layer of a page; tokens follow one another.
    pub(super) fn v_row(&self, page: usize, layer: usize, head: usize, token: usize) -> usize {
        self.k_start(page, layer) + self.half() + self.v_at(token, head)
    }
}

impl KvDtype {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            KvDtype::F16 => 2,
            KvDtype::F32 => 4,
        }
    }
}

/// An element of K or V.
pub(super) trait KvElem: Copy + Send + Sync + 'static {
    const DTYPE: KvDtype;
    fn from_f32(value: f32) -> Self;
    /// # Safety
    /// 16 readable elements.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F;
}

impl KvElem for f16 {
    const DTYPE: KvDtype = KvDtype::F16;
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller gives 16 elements.
        unsafe { s.load_f16(from.cast()) }
    }
}

impl KvElem for f32 {
    const DTYPE: KvDtype = KvDtype::F32;
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F {
        // SAFETY: the caller gives 16 elements.
        unsafe { s.load(from) }
    }
}

/// Swaps between this machine's order of bytes and little-endian.
fn little_endian<const SIZE: usize>(mut bytes: [u8; SIZE]) -> [u8; SIZE] {
    if cfg!(target_endian = "big") {
        bytes.reverse();
    }
    bytes
}

fn elements<T: KvElem>(data: &Buffer) -> &[T] {
    // SAFETY: aligned to a cache line, and any bits are an f16 or f32.
    unsafe { data.as_slice().align_to::<T>().1 }
}

fn elements_mut<T: KvElem>(data: &mut Buffer) -> &mut [T] {
    // SAFETY: as above.
    unsafe { data.as_mut_slice().align_to_mut::<T>().1 }
}

/// Writes the rows of each page on one thread.
#[expect(clippy::too_many_arguments, reason = "the inner half of `write_rows`")]
fn write_groups<T: KvElem>(
    compute: &Compute,
    data: &SharedMut<'_, T>,
    shape: &Shape,
    layer: usize,
    groups: &[&[(u32, usize)]],
    slots: &[KvSlot],
    k: &[f32],
    v: &[f32],
) {
    let width = shape.kv_heads * shape.head_dim;
    compute.run(groups.len(), |group| {
        for &(_, row) in groups[group] {
            write_row(data, shape, layer, slots[row], &k[row * width..][..width], &v[row * width..][..width]);
        }
    });
}

/// Writes one token; the caller has checked the bounds and lets no other thread write this page.
fn write_row<T: KvElem>(
    data: &SharedMut<'_, T>,
    shape: &Shape,
    layer: usize,
    at: KvSlot,
    k: &[f32],
    v: &[f32],
) {
    let (page, token) = (at.page as usize, at.slot as usize);
    for head in 0..shape.kv_heads {
        let k = &k[head * shape.head_dim..][..shape.head_dim];
        let v = &v[head * shape.head_dim..][..shape.head_dim];
        // SAFETY: within this page, which one thread alone writes.
        let (block, row) = unsafe {
            let lanes = shape.head_dim * BLOCK - token % BLOCK;
            (
                data.part(shape.k_block(page, layer, head, token), lanes),
                data.part(shape.v_row(page, layer, head, token), shape.head_dim),
            )
        };
        for (to, &value) in block.iter_mut().step_by(BLOCK).zip(k) {
            *to = T::from_f32(value);
        }
        for (to, &value) in row.iter_mut().zip(v) {
            *to = T::from_f32(value);
        }
    }
}

#[cfg(test)]
mod tests;
