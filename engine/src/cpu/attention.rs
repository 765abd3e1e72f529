//! Causal attention of a ragged batch over KV pages.

use super::{Compute, KvStore};

/// Positions an attention segment covers; segment `s` is positions `s * SEGMENT ..`, whatever the page size.
pub const SEGMENT: usize = 128;

/// The rows of one sequence within the batch: `rows` consecutive rows from `first_row`, at positions `start_pos..`.
#[derive(Debug, Clone, Copy)]
pub struct SeqRows<'a> {
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first of the rows; row `i` sees positions `0 ..= start_pos + i`.
    pub start_pos: usize,
    /// Page of positions `0..page_tokens`, `page_tokens..2 * page_tokens`, …; covers at least `start_pos + rows`.
    pub block_table: &'a [u32],
}

/// Attention of every row of `seqs` to its own sequence's K and V, already written for positions up to and including
/// the row's own.
///
/// `q` and `out` are `[batch rows, n_heads * head_dim]`; head `h` reads KV head `h / (n_heads / kv_heads)`. Rows that no
/// sequence names are left untouched. Slots past a row's position are never read into a result, whatever they hold.
///
/// # Panics
/// If lengths, the block tables or `n_heads` do not fit the store.
#[expect(clippy::too_many_arguments, reason = "one flat call a layer; a struct would only rename them")]
pub fn attention(
    compute: &Compute,
    layer: usize,
    kv: &KvStore,
    q: &[f32],
    n_heads: usize,
    seqs: &[SeqRows<'_>],
    scale: f32,
    out: &mut [f32],
) {
    todo!()
}
