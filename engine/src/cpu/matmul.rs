//! `y = x · Wᵀ (+ bias)` over packed weights.
//!
//! Two ways to the same bits. Few rows: the time goes into reading weights, so a unit of work is a few panels, expanded
//! in registers and multiplied with all rows at once, or with a tile of them after another while they are in L1. Many rows: the time goes into multiply-adds, so a unit expands its
//! panels once into a small buffer (L2) and runs a register tile of rows × panels over it.
//!
//! Rows are first brought into the form that the inner loop reads: into tiles of integers for integer weights, and, if
//! they are many, into tiles of `[inputs][rows of the tile]` for dense ones.
#![expect(unsafe_code, reason = "units of work write disjoint columns of the outputs; kernels take pointers")]
#![expect(clippy::needless_range_loop, reason = "parallel arrays in registers read clearest by index")]

use std::cell::Cell;
use std::marker::PhantomData;

use super::kernels::{Format, RowTile};
use super::packed::{PANEL, SharedMut, with_format};
use super::rows::{Quantise, row_values};
use super::scratch::{Scratch, Slot};
use super::simd::{Kernel, Simd};
use super::{Compute, Packed, SimdLevel};

/// Inputs that the expanded panels of a unit cover at a time (a multiple of every block length): 2 panels of 2048
/// inputs are 256 KiB of f32, a quarter of L2 (of integers half as much).
const EXPANDED_INPUTS: usize = 2048;

/// Tiles of rows that integer weights are multiplied with from where they lie; more are worth an expanded buffer.
const DIRECT_TILES: usize = 8;

/// One weight matrix of a [`matmul`] call and where its result goes.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix, `[outputs, inputs]`.
    pub weights: &'a Packed,
    /// Added to each output after the sum over the inputs; `[outputs]`.
    pub bias: Option<&'a [f32]>,
    /// The result, `[rows, outputs]`, row-major; overwritten.
    pub out: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// A product without a bias.
    pub fn new(weights: &'a Packed, out: &'a mut [f32]) -> Self {
        Product { weights, bias: None, out }
    }

    /// A product with a bias of `[outputs]` values.
    pub fn with_bias(weights: &'a Packed, bias: &'a [f32], out: &'a mut [f32]) -> Self {
        Product { weights, bias: Some(bias), out }
    }
}

/// Multiplies `x` (`[rows, inputs]`, row-major) by several matrices that share it, in one parallel region.
///
/// Row `r` of every result depends on row `r` of `x` alone, bit for bit (see the module [`cpu`](super)).
///
/// # Panics
/// If a slice's length does not match its shape.
pub fn matmul(compute: &Compute, x: &[f32], rows: usize, products: &mut [Product<'_>]) {
    let Some(inputs) = products.first().map(|p| p.weights.inputs()) else { return };
    assert_eq!(x.len(), rows * inputs, "x of {rows} rows of {inputs}");
    for product in &*products {
        let outputs = product.weights.outputs();
        assert_eq!(product.weights.inputs(), inputs, "inputs of matrices that share x");
        assert_eq!(product.out.len(), rows * outputs, "result of {rows} rows of {outputs}");
        assert!(product.bias.is_none_or(|b| b.len() == outputs), "bias of {outputs}");
    }
    if rows == 0 {
        return;
    }
    let limits = compute.level().dispatch(LimitsOf);
    let any = |quantised| products.iter().any(|p| is_quantised(p.weights) == quantised);
    let (any_dense, any_quantised) = (any(false), any(true));
    let direct_tiles = if limits.wide && !any_dense { DIRECT_TILES } else { 1 };
    let direct = rows <= limits.direct_rows * direct_tiles;
    let (tile_rows, packed_rows) = if direct {
        let tiles = rows.div_ceil(limits.direct_rows);
        let tile_rows = padded_rows(rows.div_ceil(tiles));
        (tile_rows, rows.next_multiple_of(tile_rows))
    } else {
        let last_rows = (rows - 1) % limits.tile_rows + 1;
        (limits.tile_rows, rows - last_rows + part_rows(last_rows, limits.tile_rows))
    };
    let unit_panels = if direct { direct_panels(tile_rows, limits.wide) } else { limits.tile_panels };
    let mut first_unit = 0;
    let targets: Vec<Target<'_>> = products
        .iter_mut()
        .map(|product| {
            let weights = product.weights;
            let target = Target {
                weights,
                bias: product.bias,
                out: SharedMut::new(&mut *product.out),
                rows,
                first_unit,
            };
            first_unit += weights.panels().div_ceil(unit_panels);
            target
        })
        .collect();
    let values = if any_dense && !direct { packed_rows * inputs } else { 0 };
    let mut tiles = Scratch::take(&TILES, values);
    let values = if any_quantised { row_values(inputs, packed_rows) } else { 0 };
    let mut quantised = Scratch::take(&QUANTISED, values);
    let pack = Pack { compute, x, inputs, tile_rows, packed_rows };
    pack.interleave(tiles.values());
    pack.quantise(quantised.values());
    let rows = Rows { plain: x, tiles: tiles.values(), quantised: quantised.values() };
    compute.run_ranges(first_unit, |units| {
        for unit in units {
            let target =
                targets.iter().rfind(|t| t.first_unit <= unit).expect("unit 0 is the first target's");
            let first = (unit - target.first_unit) * unit_panels;
            let panels = first..(first + unit_panels).min(target.weights.panels());
            let work = Unit { target, panels, rows: &rows, tile_rows };
            with_format!(target.weights.ggml_type(), F => if direct {
                compute.level().dispatch(Direct::<F>(work, PhantomData));
            } else {
                work.expanded::<F>(compute.level(), limits.tile_panels);
            });
        }
    });
}

/// Rows of a register tile that holds `rows` rows, at most 8, without an expanded buffer.
const fn padded_rows(rows: usize) -> usize {
    if rows > 4 { rows.next_multiple_of(2) } else { rows }
}

/// Rows of the last register tile, when `left` rows are left and a full tile has `full`: a third, two thirds or all.
fn part_rows(left: usize, full: usize) -> usize {
    [full / 3, full * 2 / 3].into_iter().find(|&rows| rows >= left).unwrap_or(full)
}

/// Panels a direct unit spans, so that enough independent sums hide the latency of the multiply-add.
fn direct_panels(rows: usize, wide: bool) -> usize {
    match (rows, wide) {
        (1..=3, true) => 4,
        (_, true) => 2,
        (1..=2, false) => 2,
        (_, false) => 1,
    }
}

fn is_quantised(weights: &Packed) -> bool {
    with_format!(weights.ggml_type(), F => F::QUANTISED)
}

/// Brings rows into tiles of `tile_rows` rows; the last has those that are left of `packed_rows`. Rows past the end are
/// left as they are (their sums are dropped).
struct Pack<'a> {
    compute: &'a Compute,
    x: &'a [f32],
    inputs: usize,
    tile_rows: usize,
    packed_rows: usize,
}

impl Pack<'_> {
    /// Tiles of `[inputs][rows]`; nothing if there is no room for them.
    fn interleave(&self, tiles: &mut [f32]) {
        self.each(tiles, self.inputs, |x, own_rows, tile| {
            for (r, row) in x.chunks_exact(self.inputs).enumerate() {
                for (i, &value) in row.iter().enumerate() {
                    tile[i * own_rows + r] = value;
                }
            }
        });
    }

    /// Tiles of integers; nothing if there is no room for them.
    fn quantise(&self, tiles: &mut [f32]) {
        self.each(tiles, row_values(self.inputs, 1), |x, tile_rows, tile| {
            self.compute.level().dispatch(Quantise { x, inputs: self.inputs, tile_rows, tile });
        });
    }

    /// Calls `pack(rows of x, rows of the tile, tile)` for every tile; a row of a tile has `width` values.
    fn each(&self, tiles: &mut [f32], width: usize, pack: impl Fn(&[f32], usize, &mut [f32]) + Sync) {
        if tiles.is_empty() {
            return;
        }
        let Self { x, inputs, tile_rows, packed_rows, .. } = *self;
        let count = packed_rows.div_ceil(tile_rows);
        let to = SharedMut::new(tiles);
        let pack = |t: usize| {
            let first = t * tile_rows;
            let own_rows = tile_rows.min(packed_rows - first);
            // SAFETY: each tile is written once.
            let tile = unsafe { to.part(first * width, own_rows * width) };
            let end = x.len().min((first + own_rows) * inputs);
            pack(&x[first * inputs..end], own_rows, tile);
        };
        if count == 1 { pack(0) } else { self.compute.run(count, pack) }
    }
}

/// The rows of a call in the forms that its formats read; those that none reads are empty.
struct Rows<'a> {
    plain: &'a [f32],
    /// `[inputs][rows]` each.
    tiles: &'a [f32],
    /// See [`super::rows`].
    quantised: &'a [f32],
}

struct Limits {
    tile_rows: usize,
    tile_panels: usize,
    direct_rows: usize,
    wide: bool,
}

struct LimitsOf;

impl Kernel for LimitsOf {
    type Output = Limits;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Limits {
        Limits {
            tile_rows: S::TILE_ROWS,
            tile_panels: S::TILE_PANELS,
            direct_rows: S::DIRECT_ROWS,
            wide: S::WIDE,
        }
    }
}

/// A product as the workers see it.
struct Target<'a> {
    weights: &'a Packed,
    bias: Option<&'a [f32]>,
    out: SharedMut<'a, f32>,
    rows: usize,
    first_unit: usize,
}

/// Some panels of one product, for all rows.
struct Unit<'a> {
    target: &'a Target<'a>,
    panels: std::ops::Range<usize>,
    rows: &'a Rows<'a>,
    tile_rows: usize,
}

struct Direct<'a, F>(Unit<'a>, PhantomData<F>);

impl<F: Format> Kernel for Direct<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (self.0.tile_rows, S::WIDE) {
            (1, true) => self.0.direct::<S, F, 1, 4>(s),
            (2, true) => self.0.direct::<S, F, 2, 4>(s),
            (3, true) => self.0.direct::<S, F, 3, 4>(s),
            (4, true) => self.0.direct::<S, F, 4, 2>(s),
            (6, true) => self.0.direct::<S, F, 6, 2>(s),
            (_, true) => self.0.direct::<S, F, 8, 2>(s),
            (1, false) => self.0.direct::<S, F, 1, 2>(s),
            (2, false) => self.0.direct::<S, F, 2, 2>(s),
            (3, false) => self.0.direct::<S, F, 3, 1>(s),
            (_, false) => self.0.direct::<S, F, 4, 1>(s),
        }
    }
}

/// Expands a unit's panels over some inputs into a buffer, panel after panel.
struct Expand<'a, F> {
    unit: &'a Unit<'a>,
    chunk: Chunk,
    buffer: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Expand<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Chunk { start, count, .. } = self.chunk;
        let values = wide_values::<F>(count);
        for (panel, to) in self.unit.panels.clone().zip(self.buffer.chunks_exact_mut(values)) {
            let from = &self.unit.target.weights.panel(panel)[start / F::BLOCK * F::BYTES..];
            let from = &from[..count / F::BLOCK * F::BYTES];
            // SAFETY: both hold exactly `count` inputs.
            unsafe { F::expand::<S>(s, from.as_ptr(), count / F::BLOCK, to.as_mut_ptr().cast()) };
        }
    }
}

/// f32 values that `inputs` inputs of an expanded panel take.
fn wide_values<F: Format>(inputs: usize) -> usize {
    inputs / F::Wide::BLOCK * F::Wide::BYTES / size_of::<f32>()
}

/// Multiplies all rows with expanded panels.
struct RowTiles<'a, W> {
    unit: &'a Unit<'a>,
    chunk: Chunk,
    buffer: &'a [f32],
    format: PhantomData<W>,
}

impl<W: Format> Kernel for RowTiles<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (S::TILE_ROWS, self.unit.panels.len()) {
            (12, 2) => self.tiles::<S, 4, 8, 12, 2>(s),
            (12, _) => self.tiles::<S, 4, 8, 12, 1>(s),
            (6, _) => self.tiles::<S, 2, 4, 6, 1>(s),
            (_, _) => self.tiles::<S, 1, 2, 4, 1>(s),
        }
    }
}

impl<W: Format> RowTiles<'_, W> {
    /// Tiles of `C` rows; the last of `A`, `B` or `C`, whichever suffices (see [`part_rows`]).
    #[inline(always)]
    fn tiles<S: Simd, const A: usize, const B: usize, const C: usize, const P: usize>(&self, s: S) {
        let rows = self.unit.target.rows;
        for first_row in (0..rows).step_by(C) {
            match part_rows(rows - first_row, C) {
                part if part == A => self.tile::<S, A, P>(s, first_row),
                part if part == B => self.tile::<S, B, P>(s, first_row),
                _ => self.tile::<S, C, P>(s, first_row),
            }
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const P: usize>(&self, s: S, first_row: usize) {
        let (target, chunk) = (self.unit.target, self.chunk);
        let inputs = target.weights.inputs();
        // Tiles before this one are full, so it begins where its first row would.
        let x = if W::QUANTISED {
            let at = row_values(inputs, first_row) + row_values(chunk.start, R);
            &self.unit.rows.quantised[at..][..row_values(chunk.count, R)]
        } else {
            &self.unit.rows.tiles[first_row * inputs + chunk.start * R..][..chunk.count * R]
        };
        let stride = wide_values::<W>(chunk.count);
        let buffer = &self.buffer[..P * stride];
        let mut sums = [[s.splat(0.0); P]; R];
        if !chunk.first {
            target.load(s, &mut sums, first_row, self.unit.panels.start);
        }
        let (panels, stride) = (buffer.as_ptr().cast(), stride * size_of::<f32>());
        let x = RowTile::Tile(x.as_ptr());
        // SAFETY: both slices have just these lengths.
        unsafe { W::tile::<S, R, P>(s, panels, stride, chunk.count / W::BLOCK, x, &mut sums) };
        target.store(s, &sums, first_row, self.unit.panels.start, chunk.last);
    }
}

impl Unit<'_> {
    #[inline(always)]
    fn direct<S: Simd, F: Format, const R: usize, const P: usize>(&self, s: S) {
        debug_assert_eq!(self.tile_rows, R);
        for first_row in (0..self.target.rows).step_by(R) {
            self.direct_tile::<S, F, R, P>(s, first_row);
        }
    }

    #[inline(always)]
    fn direct_tile<S: Simd, F: Format, const R: usize, const P: usize>(&self, s: S, first_row: usize) {
        let weights = self.target.weights;
        let (inputs, rows) = (weights.inputs(), self.target.rows);
        let blocks = inputs / F::BLOCK;
        let x = if F::QUANTISED {
            // All tiles are whole, so it begins where its first row would.
            let tile = &self.rows.quantised[row_values(inputs, first_row)..][..row_values(inputs, R)];
            RowTile::Tile(tile.as_ptr())
        } else {
            assert!(self.rows.plain.len() == inputs * rows, "rows of x");
            let row = |r: usize| self.rows.plain[(first_row + r).min(rows - 1) * inputs..].as_ptr();
            RowTile::Plain(std::array::from_fn(row))
        };
        if self.panels.len() == P {
            let mut sums = [[s.splat(0.0); P]; R];
            let panels = weights.panel(self.panels.start).as_ptr();
            // SAFETY: the unit's P panels exist and lie one after another; x was checked.
            unsafe { F::tile::<S, R, P>(s, panels, weights.panel_bytes(), blocks, x, &mut sums) };
            self.target.store(s, &sums, first_row, self.panels.start, true);
        } else {
            for panel in self.panels.clone() {
                let mut sums = [[s.splat(0.0); 1]; R];
                // SAFETY: as above, one panel.
                unsafe {
                    F::tile::<S, R, 1>(s, weights.panel(panel).as_ptr(), 0, blocks, x, &mut sums);
                }
                self.target.store(s, &sums, first_row, panel, true);
            }
        }
    }

    fn expanded<F: Format>(&self, level: SimdLevel, tile_panels: usize) {
        let inputs = self.target.weights.inputs();
        let chunk_inputs = inputs.min(EXPANDED_INPUTS);
        let mut scratch = Scratch::take(&PANELS, tile_panels * wide_values::<F>(chunk_inputs));
        for start in (0..inputs).step_by(chunk_inputs) {
            let count = chunk_inputs.min(inputs - start);
            let chunk = Chunk { start, count, first: start == 0, last: start + count == inputs };
            let buffer = scratch.values();
            level.dispatch(Expand { unit: self, chunk, buffer, format: PhantomData::<F> });
            let buffer = scratch.values();
            level.dispatch(RowTiles { unit: self, chunk, buffer, format: PhantomData::<F::Wide> });
        }
    }
}

/// A run of inputs whose weights are expanded at a time.
#[derive(Clone, Copy)]
struct Chunk {
    start: usize,
    count: usize,
    first: bool,
    last: bool,
}

impl Target<'_> {
    /// Writes the sums of rows that exist to outputs that exist, with the bias if they are `complete`.
    #[inline(always)]
    fn store<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        sums: &[[S::F; P]; R],
        first_row: usize,
        first_panel: usize,
        complete: bool,
    ) {
        for r in 0..R.min(self.rows - first_row) {
            for p in 0..P {
                let column = (first_panel + p) * PANEL;
                let mut value = sums[r][p];
                if let (Some(bias), true) = (self.bias, complete) {
                    value = s.add(value, load_part(s, &bias[column..]));
                }
                let out = self.part(first_row + r, column);
                if out.len() == PANEL {
                    // SAFETY: 16 values.
                    unsafe { s.store(out.as_mut_ptr(), value) };
                } else {
                    let lanes = s.lanes(value);
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
        }
    }

    /// Reads back sums that [`store`](Self::store) wrote incomplete.
    #[inline(always)]
    fn load<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        sums: &mut [[S::F; P]; R],
        first_row: usize,
        first_panel: usize,
    ) {
        for r in 0..R.min(self.rows - first_row) {
            for p in 0..P {
                sums[r][p] = load_part(s, self.part(first_row + r, (first_panel + p) * PANEL));
            }
        }
    }

    /// The outputs of one row that a panel computes.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "parts of different panels are disjoint")]
    fn part(&self, row: usize, column: usize) -> &mut [f32] {
        let outputs = self.weights.outputs();
        // SAFETY: a panel belongs to one unit, a unit to one thread, which holds one part at a time.
        unsafe { self.out.part(row * outputs + column, PANEL.min(outputs - column)) }
    }
}

/// The first 16 values, zeros where there are fewer.
#[inline(always)]
fn load_part<S: Simd>(s: S, from: &[f32]) -> S::F {
    if from.len() >= PANEL {
        // SAFETY: 16 values.
        unsafe { s.load(from.as_ptr()) }
    } else {
        let mut lanes = [0.0; PANEL];
        lanes[..from.len()].copy_from_slice(from);
        // SAFETY: 16 values.
        unsafe { s.load(lanes.as_ptr()) }
    }
}

thread_local! {
    /// The rows of the current call, in tiles; of the calling thread.
    static TILES: Slot = const { Cell::new(None) };
    /// The same as integers.
    static QUANTISED: Slot = const { Cell::new(None) };
    /// Expanded panels; of each compute thread.
    static PANELS: Slot = const { Cell::new(None) };
}

#[cfg(test)]
mod tests;
