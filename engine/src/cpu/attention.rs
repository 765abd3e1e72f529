//! Causal attention of a ragged batch over KV pages.
//!
//! A row's positions are cut into segments of [`SEGMENT`], counted from position 0. Within a segment: scores, their
//! maximum, exponentials relative to it, their sum, and the weighted values, each as a chain in ascending order. Segments
//! are merged in ascending order by rescaling to the larger maximum (the online softmax of Milakov and Gimelshein, 2018,
//! as FlashAttention uses it). A row's result is thus a function of its own position and KV, whatever the page size, and
//! whichever rows are computed together:
//!
//! - Several rows and all heads of a KV group form a tile that reads K and V once.
//! - Where tiles are few and contexts long (decoding), a tile's segments are shared among threads; the merge runs after.

use half::f16;

use super::kv::{KvElem, Shape};
use super::packed::SharedMut;
use super::simd::{Kernel, Simd};
use super::{Compute, KvDtype, KvStore};

mod tile;

use tile::{Partials, Tile};

/// Positions an attention segment covers; segment `s` is positions `s * SEGMENT ..`, whatever the page size.
pub const SEGMENT: usize = 128;

/// The rows of one sequence within the batch: `rows` consecutive rows from `first_row`, at positions `start_pos..`.
#[derive(Debug, Clone, Copy)]
pub struct SeqRows<'a> {
    /// Index of the first of the rows within the batch.
    pub first_row: usize,
    /// Number of rows.
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
/// If lengths, the block tables or `n_heads` do not fit the store, or two sequences share a row.
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
    let shape = kv.shape();
    check(layer, &shape, q, n_heads, seqs, out);
    let limit = compute.level().dispatch(TileRows);
    let group = n_heads / shape.kv_heads;
    let tiles: Vec<Tile<'_>> =
        seqs.iter().flat_map(|seq| tiles_of(seq, shape.kv_heads, group, limit)).collect();

    // A task is a run of segments of one tile, small enough that the threads finish together.
    let total: usize = tiles.iter().map(Tile::segments).sum();
    let run = total.div_ceil(4 * compute.threads()).max(1);
    let mut tasks = Vec::new();
    let mut partial_count = 0;
    for tile in &tiles {
        let segments = tile.segments();
        if compute.threads() == 1 || segments <= run {
            tasks.push(Task { tile, segments: 0..segments, partials: None });
            continue;
        }
        for start in (0..segments).step_by(run) {
            let segments = start..(start + run).min(segments);
            tasks.push(Task { tile, segments, partials: Some(partial_count) });
        }
        partial_count += segments * tile.count();
    }
    // Long tasks first, so that none is left for the end.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.segments.len() * task.tile.count()));

    let mut partials = Partials::new(partial_count, shape.head_dim);
    let call = Call {
        shape,
        layer,
        q,
        n_heads,
        scale,
        out: SharedMut::new(out),
        partial_values: SharedMut::new(partials.values_mut()),
    };
    match kv.dtype() {
        KvDtype::F16 => call.run(compute, kv.elements::<f16>(), &tasks),
        KvDtype::F32 => call.run(compute, kv.elements::<f32>(), &tasks),
    }
}

fn check(layer: usize, shape: &Shape, q: &[f32], n_heads: usize, seqs: &[SeqRows<'_>], out: &[f32]) {
    assert!(layer < shape.layers, "layer {layer} of {}", shape.layers);
    assert!(
        n_heads > 0 && n_heads.is_multiple_of(shape.kv_heads),
        "{n_heads} heads over {} KV heads",
        shape.kv_heads
    );
    let width = n_heads * shape.head_dim;
    assert!(q.len() == out.len() && q.len().is_multiple_of(width), "q of {}, out of {}", q.len(), out.len());
    let mut used = vec![false; q.len() / width];
    for seq in seqs {
        let end = seq.first_row + seq.rows;
        assert!(end <= used.len(), "rows {}..{end} of a batch of {}", seq.first_row, used.len());
        for row in &mut used[seq.first_row..end] {
            assert!(!std::mem::replace(row, true), "a row belongs to two sequences");
        }
        let pages = (seq.start_pos + seq.rows).div_ceil(shape.page_tokens);
        assert!(
            seq.block_table.len() >= pages,
            "{} pages in the table, {pages} needed",
            seq.block_table.len()
        );
        for &page in &seq.block_table[..pages] {
            assert!((page as usize) < shape.pages, "page {page} of {}", shape.pages);
        }
    }
}

/// Cuts a sequence's rows and heads into tiles of at most `limit` (row, head) pairs that share a KV head.
fn tiles_of<'a>(
    seq: &'a SeqRows<'a>,
    kv_heads: usize,
    group: usize,
    limit: usize,
) -> impl Iterator<Item = Tile<'a>> {
    let heads = group.min(limit);
    let rows = (limit / heads).max(1);
    (0..kv_heads).flat_map(move |kv_head| {
        (0..seq.rows).step_by(rows).flat_map(move |first_row| {
            (0..group).step_by(heads).map(move |first_head| Tile {
                seq,
                kv_head,
                first_row,
                rows: rows.min(seq.rows - first_row),
                first_head: kv_head * group + first_head,
                heads: heads.min(group - first_head),
            })
        })
    })
}

struct TileRows;

impl Kernel for TileRows {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::TILE_ROWS
    }
}

/// A run of segments of one tile.
struct Task<'a> {
    tile: &'a Tile<'a>,
    segments: std::ops::Range<usize>,
    /// Where the tile's partial results lie, `[segment][row and head]`, if its segments are shared among tasks; without,
    /// the task has all segments and writes the output.
    partials: Option<usize>,
}

/// What all tasks of a call share.
struct Call<'a> {
    shape: Shape,
    layer: usize,
    q: &'a [f32],
    n_heads: usize,
    scale: f32,
    out: SharedMut<'a, f32>,
    partial_values: SharedMut<'a, f32>,
}

impl Call<'_> {
    fn run<T: KvElem>(&self, compute: &Compute, elements: &[T], tasks: &[Task<'_>]) {
        compute.run(tasks.len(), |task| {
            compute.level().dispatch(tile::Run { call: self, task: &tasks[task], elements });
        });
        // One task of each shared tile stands for the tile.
        let shared: Vec<&Task<'_>> =
            tasks.iter().filter(|task| task.partials.is_some() && task.segments.start == 0).collect();
        let merge = |task: usize| {
            compute.level().dispatch(tile::Merge { call: self, task: shared[task] });
        };
        // Merging is a hundredth of the work: worth a region for large batches alone.
        if shared.len() < 16 { (0..shared.len()).for_each(merge) } else { compute.run(shared.len(), merge) }
    }
}

#[cfg(test)]
mod tests;
