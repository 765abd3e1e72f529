//! One tile of attention: a few (row, head) pairs that share a KV head, over some segments.
#![expect(
    unsafe_code,
    reason = "pages, tiles and scratch memory are walked by pointers within checked bounds"
)]
#![expect(clippy::needless_range_loop, reason = "parallel arrays in registers read clearest by index")]

use std::cell::Cell;

use super::super::exp::exp;
use super::super::kv::{BLOCK, KvElem};
use super::super::packed::Buffer;
use super::super::scratch::{Scratch, Slot};
use super::super::simd::{Kernel, Simd};
use super::{Call, SEGMENT, SeqRows, Task};

/// Blocks of 16 tokens in a segment.
const BLOCKS: usize = SEGMENT / BLOCK;
/// Most (row, head) pairs of a tile at any SIMD level.
const MOST: usize = 12;

/// Most pairs of a tile that fetches pages ahead; tiles with more are prefill, whose pages stay in cache.
const AHEAD_PAIRS: usize = 8;

/// Consecutive rows of one sequence × heads of one KV group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) seq: &'a SeqRows<'a>,
    pub(super) kv_head: usize,
    /// First row, counted within the sequence's rows.
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) first_head: usize,
    pub(super) heads: usize,
}

impl Tile<'_> {
    /// (row, head) pairs; pair `i` is row `i / heads`, head `i % heads`, so positions ascend.
    pub(super) fn count(&self) -> usize {
        self.rows * self.heads
    }

    /// Segments that the last row sees.
    pub(super) fn segments(&self) -> usize {
        (self.seq.start_pos + self.first_row + self.rows).div_ceil(SEGMENT)
    }

    /// Positions of segment `segment` that pair `pair` sees.
    fn visible(&self, pair: usize, segment: usize) -> usize {
        let end = self.seq.start_pos + self.first_row + pair / self.heads + 1;
        end.saturating_sub(segment * SEGMENT).min(SEGMENT)
    }

    /// Where pair `pair`'s head begins in `q` and `out`.
    fn offset(&self, pair: usize, call: &Call<'_>) -> usize {
        let row = self.seq.first_row + self.first_row + pair / self.heads;
        (row * call.n_heads + self.first_head + pair % self.heads) * call.shape.head_dim
    }
}

/// Results of single segments that wait for their merge: for each, maximum, sum, then the weighted values.
pub(super) struct Partials {
    buffer: Option<Buffer>,
    len: usize,
}

impl Partials {
    pub(super) fn new(count: usize, head_dim: usize) -> Self {
        let len = count * partial_len(head_dim);
        Partials { buffer: (len > 0).then(|| Buffer::zeroed(len * size_of::<f32>())), len }
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.buffer {
            // SAFETY: aligned to a cache line, and any bits are an f32.
            Some(buffer) => unsafe { &mut buffer.as_mut_slice().align_to_mut::<f32>().1[..self.len] },
            None => &mut [],
        }
    }
}

/// Values of a partial result: whole vectors of weighted values after a vector that holds maximum and sum.
fn partial_len(head_dim: usize) -> usize {
    16 + head_dim.next_multiple_of(16)
}

thread_local! {
    static SCRATCH: Slot = const { Cell::new(None) };
}

/// A task of a call.
pub(super) struct Run<'a, T> {
    pub(super) call: &'a Call<'a>,
    pub(super) task: &'a Task<'a>,
    pub(super) elements: &'a [T],
}

impl<T: KvElem> Kernel for Run<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tile, head_dim) = (self.task.tile, self.call.shape.head_dim);
        let count = tile.count();
        let lanes = padded(count);
        let each = partial_len(head_dim);
        let mut scratch =
            Scratch::take(&SCRATCH, lanes * head_dim.next_multiple_of(16) + MOST * (SEGMENT + 2 * each));
        let (q, rest) = scratch.values().split_at_mut(lanes * head_dim.next_multiple_of(16));
        let (scores, rest) = rest.split_at_mut(MOST * SEGMENT);
        let (state, partial) = rest.split_at_mut(MOST * each);
        self.pack_q(q, lanes);

        for segment in self.task.segments.clone() {
            let segment = Segment::find(&self, segment);
            self.scores(s, q, lanes, &segment, scores);
            for pair in 0..count {
                let visible = tile.visible(pair, segment.index);
                if visible > 0 {
                    let (max, sum) = softmax(s, &mut scores[pair * SEGMENT..][..SEGMENT], visible);
                    (partial[pair * each], partial[pair * each + 1]) = (max, sum);
                }
            }
            self.values(s, &segment, scores, partial);
            if let Some(start) = self.task.partials {
                let at = (start + segment.index * count) * each;
                // SAFETY: a segment of a tile belongs to one task.
                let to = unsafe { self.call.partial_values.part(at, count * each) };
                to.copy_from_slice(&partial[..count * each]);
            } else {
                for pair in 0..count {
                    if tile.visible(pair, segment.index) > 0 {
                        let range = pair * each..(pair + 1) * each;
                        merge(s, segment.index, &mut state[range.clone()], &partial[range]);
                    }
                }
            }
        }
        if self.task.partials.is_none() {
            for pair in 0..count {
                finish(s, self.call, tile, pair, &state[pair * each..][..each]);
            }
        }
    }
}

/// Merges the partial results of a tile whose segments were shared among tasks.
pub(super) struct Merge<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) task: &'a Task<'a>,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tile = self.task.tile;
        let (count, each) = (tile.count(), partial_len(self.call.shape.head_dim));
        let Some(start) = self.task.partials else { return };
        let mut scratch = Scratch::take(&SCRATCH, each);
        let state = scratch.values();
        for pair in 0..count {
            for segment in 0..tile.segments() {
                if tile.visible(pair, segment) > 0 {
                    // SAFETY: all tasks are done, and the tile is merged once.
                    let partial = unsafe {
                        self.call.partial_values.part((start + segment * count + pair) * each, each)
                    };
                    merge(s, segment, state, partial);
                }
            }
            finish(s, self.call, tile, pair, state);
        }
    }
}

/// Where the K and V of a segment's blocks lie.
struct Segment<T> {
    index: usize,
    blocks: usize,
    /// One more than the segment has blocks, if the tile goes on: the first block of the next segment.
    k: [*const T; BLOCKS + 1],
    v: [*const T; BLOCKS + 1],
}

impl<T: KvElem> Segment<T> {
    #[inline(always)]
    fn find(run: &Run<'_, T>, index: usize) -> Self {
        let (call, tile) = (run.call, run.task.tile);
        let shape = &call.shape;
        let blocks = tile.visible(tile.count() - 1, index).div_ceil(BLOCK);
        let mut found =
            Segment { index, blocks, k: [std::ptr::null(); BLOCKS + 1], v: [std::ptr::null(); BLOCKS + 1] };
        let more = usize::from(index + 1 < tile.segments());
        for block in 0..blocks + more {
            let position = index * SEGMENT + block * BLOCK;
            let page = tile.seq.block_table[position / shape.page_tokens] as usize;
            let token = position % shape.page_tokens;
            let k = shape.k_block(page, call.layer, tile.kv_head, token);
            let v = shape.v_row(page, call.layer, tile.kv_head, token);
            let len = BLOCK * shape.head_dim;
            found.k[block] = run.elements[k..k + len].as_ptr();
            // The last vector of the last token may reach 8 elements past it; the store ends with as many to spare.
            found.v[block] = run.elements[v..v + len + 8].as_ptr();
        }
        found
    }
}

/// Pairs for which a score kernel exists.
fn padded(count: usize) -> usize {
    match count {
        0..=4 => count,
        5..=6 => 6,
        7..=8 => 8,
        _ => MOST,
    }
}

impl<T: KvElem> Run<'_, T> {
    /// Lays the tile's q out as `[dim][lanes]`; pairs that do not exist are 0.
    #[inline(always)]
    fn pack_q(&self, to: &mut [f32], lanes: usize) {
        let (tile, head_dim) = (self.task.tile, self.call.shape.head_dim);
        to.fill(0.0);
        for pair in 0..tile.count() {
            let from = &self.call.q[tile.offset(pair, self.call)..][..head_dim];
            for (to, &value) in to[pair..].iter_mut().step_by(lanes).zip(from) {
                *to = value;
            }
        }
    }

    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, q: &[f32], lanes: usize, segment: &Segment<T>, scores: &mut [f32]) {
        match (lanes, S::WIDE) {
            (1, _) => self.sized_scores::<S, 1>(s, q, segment, scores),
            (2, _) => self.sized_scores::<S, 2>(s, q, segment, scores),
            (3, _) => self.sized_scores::<S, 3>(s, q, segment, scores),
            (4, _) => self.sized_scores::<S, 4>(s, q, segment, scores),
            (6, _) => self.sized_scores::<S, 6>(s, q, segment, scores),
            (8, true) => self.sized_scores::<S, 8>(s, q, segment, scores),
            (_, true) => self.sized_scores::<S, 12>(s, q, segment, scores),
            (lanes, false) => unreachable!("a tile of {lanes} pairs at a narrow SIMD level"),
        }
    }

    /// Scaled scores of all blocks, `[pair][SEGMENT]`; those of positions past a pair's own are meaningless.
    #[inline(always)]
    fn sized_scores<S: Simd, const R: usize>(
        &self,
        s: S,
        q: &[f32],
        segment: &Segment<T>,
        scores: &mut [f32],
    ) {
        let head_dim = self.call.shape.head_dim;
        assert!(q.len() >= head_dim * R && scores.len() >= R * SEGMENT);
        let scale = s.splat(self.call.scale);
        for block in 0..segment.blocks {
            let mut sums = [s.splat(0.0); R];
            let (mut k, mut q) = (segment.k[block], q.as_ptr());
            let (mut next_k, mut own_v) = (segment.k[block + 1], segment.v[block]);
            for _ in 0..head_dim {
                // A page's part of one KV head is small and the next page is anywhere in memory. Few pairs means that
                // nobody has read it lately: fetch K a block ahead, V while the scores are computed.
                if R <= AHEAD_PAIRS {
                    s.prefetch::<true>(next_k.cast());
                    s.prefetch::<true>(own_v.cast());
                    (next_k, own_v) = (next_k.wrapping_add(BLOCK), own_v.wrapping_add(BLOCK));
                }
                // SAFETY: a block of K has `head_dim` vectors, q has `head_dim * R` values.
                unsafe {
                    let keys = T::load(s, k);
                    for r in 0..R {
                        sums[r] = s.fma(s.splat(*q.add(r)), keys, sums[r]);
                    }
                }
                k = k.wrapping_add(BLOCK);
                q = q.wrapping_add(R);
            }
            for r in 0..R {
                // SAFETY: `scores` has R segments.
                unsafe {
                    s.store(scores.as_mut_ptr().add(r * SEGMENT + block * BLOCK), s.mul(sums[r], scale));
                }
            }
        }
    }

    /// Values of the segment, weighted by `weights`, into the partial results.
    #[inline(always)]
    fn values<S: Simd>(&self, s: S, segment: &Segment<T>, weights: &[f32], partial: &mut [f32]) {
        let tile = self.task.tile;
        let count = tile.count();
        let mut pair = 0;
        while pair < count {
            // As many pairs as registers have room for; the tokens that all of them see are done together, the few that
            // only later rows see one by one.
            let together = if S::WIDE { 6 } else { 2 }.min(count - pair);
            let together = if together == 4 || together == 5 { 3 } else { together };
            let common = tile.visible(pair, segment.index);
            match (together, S::WIDE) {
                (6, true) => self.sized_values::<S, 6, 4>(s, segment, pair, 0..common, weights, partial),
                (3, true) => self.sized_values::<S, 3, 4>(s, segment, pair, 0..common, weights, partial),
                (2, true) => self.sized_values::<S, 2, 4>(s, segment, pair, 0..common, weights, partial),
                (_, true) => self.sized_values::<S, 1, 4>(s, segment, pair, 0..common, weights, partial),
                (2, false) => self.sized_values::<S, 2, 2>(s, segment, pair, 0..common, weights, partial),
                (_, false) => self.sized_values::<S, 1, 2>(s, segment, pair, 0..common, weights, partial),
            }
            for later in pair..pair + together {
                let visible = tile.visible(later, segment.index);
                if visible > common {
                    self.sized_values::<S, 1, 2>(s, segment, later, common..visible, weights, partial);
                }
            }
            pair += together;
        }
    }

    /// `partial[pair] += weights[pair] · V` over some tokens (from 0 if they begin at 0), `R` pairs and `D` vectors at a
    /// time.
    #[inline(always)]
    fn sized_values<S: Simd, const R: usize, const D: usize>(
        &self,
        s: S,
        segment: &Segment<T>,
        first_pair: usize,
        tokens: std::ops::Range<usize>,
        weights: &[f32],
        partial: &mut [f32],
    ) {
        let head_dim = self.call.shape.head_dim;
        let each = partial_len(head_dim);
        let weights = &weights[first_pair * SEGMENT..][..R * SEGMENT];
        let partial = &mut partial[first_pair * each..][..R * each];
        let vectors = head_dim.div_ceil(16);
        let mut vector = 0;
        while vector + D <= vectors {
            // SAFETY: the vectors exist.
            unsafe {
                value_chains::<S, T, R, D>(s, segment, tokens.clone(), weights, partial, vector, head_dim);
            }
            vector += D;
        }
        while vector < vectors {
            // SAFETY: the vector exists.
            unsafe {
                value_chains::<S, T, R, 1>(s, segment, tokens.clone(), weights, partial, vector, head_dim);
            }
            vector += 1;
        }
    }
}

/// # Safety
/// `vector + D <= head_dim.div_ceil(16)`, `weights` has `R` segments, `partial` `R` partial results.
#[inline(always)]
unsafe fn value_chains<S: Simd, T: KvElem, const R: usize, const D: usize>(
    s: S,
    segment: &Segment<T>,
    tokens: std::ops::Range<usize>,
    weights: &[f32],
    partial: &mut [f32],
    vector: usize,
    head_dim: usize,
) {
    let each = partial_len(head_dim);
    let at = partial.as_mut_ptr().wrapping_add(16 + vector * 16);
    let mut sums = [[s.splat(0.0); D]; R];
    if tokens.start > 0 {
        for r in 0..R {
            for d in 0..D {
                // SAFETY: within partial result `r`.
                sums[r][d] = unsafe { s.load(at.add(r * each + d * 16)) };
            }
        }
    }
    for block in tokens.start / BLOCK..tokens.end.div_ceil(BLOCK) {
        let first = tokens.start.max(block * BLOCK);
        let last = tokens.end.min((block + 1) * BLOCK);
        let mut v = segment.v[block].wrapping_add((first - block * BLOCK) * head_dim + vector * 16);
        for token in first..last {
            // SAFETY: the token lies in the block; its last vector reaches at most 8 elements past it.
            unsafe {
                let mut values = [T::load(s, v); D];
                for d in 1..D {
                    values[d] = T::load(s, v.add(d * 16));
                }
                for r in 0..R {
                    let weight = s.splat(*weights.get_unchecked(r * SEGMENT + token));
                    for d in 0..D {
                        sums[r][d] = s.fma(weight, values[d], sums[r][d]);
                    }
                }
            }
            v = v.wrapping_add(head_dim);
        }
    }
    for r in 0..R {
        for d in 0..D {
            // SAFETY: within partial result `r`.
            unsafe { s.store(at.add(r * each + d * 16), sums[r][d]) };
        }
    }
}

/// Turns the first `visible` scores into weights relative to their maximum (0 for the rest of their block); returns the
/// maximum and the sum of the weights.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], visible: usize) -> (f32, f32) {
    let lowest = s.splat(f32::NEG_INFINITY);
    let blocks = visible.div_ceil(BLOCK);
    assert!(scores.len() >= blocks * BLOCK);
    let at = scores.as_mut_ptr();
    let mut max = lowest;
    for block in 0..blocks {
        // SAFETY: the block exists.
        let own = s.keep_first(visible - block * BLOCK, unsafe { s.load(at.add(block * BLOCK)) }, lowest);
        max = s.max(own, max);
    }
    let largest = s.largest(max);
    let max = s.splat(largest);
    let mut sum = s.splat(0.0);
    for block in 0..blocks {
        // SAFETY: the block exists.
        unsafe {
            let own = s.keep_first(visible - block * BLOCK, s.load(at.add(block * BLOCK)), lowest);
            let weight = exp(s, s.sub(own, max));
            sum = s.add(sum, weight);
            s.store(at.add(block * BLOCK), weight);
        }
    }
    (largest, s.sum(sum))
}

/// Adds segment `segment` to the state of the segments before it. Both are `maximum, sum, …, weighted values`.
#[inline(always)]
fn merge<S: Simd>(s: S, segment: usize, state: &mut [f32], partial: &[f32]) {
    if segment == 0 {
        state.copy_from_slice(partial);
        return;
    }
    let max = if state[0] > partial[0] { state[0] } else { partial[0] };
    let old = exp(s, s.splat(state[0] - max));
    let new = exp(s, s.splat(partial[0] - max));
    state[0] = max;
    state[1] = s.lanes(new)[0].mul_add(partial[1], s.lanes(old)[0] * state[1]);
    for (state, partial) in state.chunks_exact_mut(16).zip(partial.chunks_exact(16)).skip(1) {
        // SAFETY: 16 values each.
        unsafe {
            let sum = s.fma(s.load(partial.as_ptr()), new, s.mul(s.load(state.as_ptr()), old));
            s.store(state.as_mut_ptr(), sum);
        }
    }
}

/// Writes a pair's result: its weighted values over the sum of its weights.
#[inline(always)]
fn finish<S: Simd>(s: S, call: &Call<'_>, tile: &Tile<'_>, pair: usize, state: &[f32]) {
    // SAFETY: a pair belongs to one tile, which is finished once.
    let out = unsafe { call.out.part(tile.offset(pair, call), call.shape.head_dim) };
    let sum = s.splat(state[1]);
    for (out, state) in out.chunks_mut(16).zip(state[16..].chunks_exact(16)) {
        // SAFETY: 16 values.
        let value = s.div(unsafe { s.load(state.as_ptr()) }, sum);
        let count = out.len();
        out.copy_from_slice(&s.lanes(value)[..count]);
    }
}
