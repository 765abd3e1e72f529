use super::*;
use crate::cpu::testing::{Rng, all_computes, assert_same_bits};
use crate::cpu::{KvSlot, SimdLevel};

#[derive(Debug, Clone, Copy)]
struct Case {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    page_tokens: usize,
    dtype: KvDtype,
}

/// Sequences with their whole K and V, stored in shuffled pages whose unfilled slots hold NaN.
struct Fixture {
    case: Case,
    kv: KvStore,
    lengths: Vec<usize>,
    tables: Vec<Vec<u32>>,
    /// `[sequence][position][kv_heads * head_dim]`.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// `[sequence][position][n_heads * head_dim]`.
    q: Vec<Vec<f32>>,
}

const LAYER: usize = 1;

impl Fixture {
    fn new(case: Case, lengths: &[usize], seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let pages: usize = lengths.iter().map(|n| n.div_ceil(case.page_tokens)).sum();
        let mut kv =
            KvStore::new(2, pages + 2, case.page_tokens, case.kv_heads, case.head_dim, case.dtype).unwrap();
        let width = case.kv_heads * case.head_dim;
        let nan = vec![f32::NAN; width];
        let mut order: Vec<u32> = (0..kv.pages() as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
        for page in 0..kv.pages() as u32 {
            for slot in 0..case.page_tokens as u32 {
                kv.write(LAYER, KvSlot { page, slot }, &nan, &nan);
            }
        }
        let mut fixture =
            Fixture { case, kv, lengths: lengths.to_vec(), tables: vec![], k: vec![], v: vec![], q: vec![] };
        for &length in lengths {
            let pages = length.div_ceil(case.page_tokens);
            let table: Vec<u32> = order.drain(..pages).collect();
            let (k, v) = (rng.values(length * width), rng.values(length * width));
            for position in 0..length {
                let at = KvSlot {
                    page: table[position / case.page_tokens],
                    slot: (position % case.page_tokens) as u32,
                };
                let range = position * width..(position + 1) * width;
                fixture.kv.write(LAYER, at, &k[range.clone()], &v[range]);
            }
            let q = rng.values(length * width * case.group).iter().map(|v| v * 4.0).collect();
            fixture.tables.push(table);
            fixture.k.push(k);
            fixture.v.push(v);
            fixture.q.push(q);
        }
        fixture
    }

    fn heads(&self) -> usize {
        self.case.kv_heads * self.case.group
    }

    fn scale(&self) -> f32 {
        1.0 / (self.case.head_dim as f32).sqrt()
    }

    /// Runs the rows `start..end` of each named sequence as one batch; returns their results in order.
    fn run(&self, compute: &Compute, parts: &[(usize, std::ops::Range<usize>)]) -> Vec<f32> {
        let width = self.heads() * self.case.head_dim;
        let (mut q, mut seqs) = (vec![], vec![]);
        for (seq, rows) in parts {
            seqs.push(SeqRows {
                first_row: q.len() / width,
                rows: rows.len(),
                start_pos: rows.start,
                block_table: &self.tables[*seq],
            });
            q.extend_from_slice(&self.q[*seq][rows.start * width..rows.end * width]);
        }
        let mut out = vec![f32::NAN; q.len()];
        attention(compute, LAYER, &self.kv, &q, self.heads(), &seqs, self.scale(), &mut out);
        out
    }

    /// Every row of a sequence as a decode step of its own.
    fn decoded(&self, compute: &Compute, seq: usize) -> Vec<f32> {
        (0..self.lengths[seq]).flat_map(|row| self.run(compute, &[(seq, row..row + 1)])).collect()
    }

    /// One row's result in f64.
    fn exact(&self, seq: usize, row: usize) -> Vec<f64> {
        let Case { kv_heads, group, head_dim, .. } = self.case;
        let round = |v: f32| match self.case.dtype {
            KvDtype::F16 => f64::from(f16::from_f32(v).to_f32()),
            KvDtype::F32 => f64::from(v),
        };
        let mut out = vec![];
        for head in 0..kv_heads * group {
            let q = &self.q[seq][(row * kv_heads * group + head) * head_dim..][..head_dim];
            let at = |position: usize| (position * kv_heads + head / group) * head_dim;
            let scores: Vec<f64> = (0..=row)
                .map(|p| {
                    let k = &self.k[seq][at(p)..][..head_dim];
                    q.iter().zip(k).map(|(&a, &b)| f64::from(a) * round(b)).sum::<f64>()
                        * f64::from(self.scale())
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                out.push((0..=row).map(|p| weights[p] * round(self.v[seq][at(p) + d])).sum::<f64>() / sum);
            }
        }
        out
    }
}

const CASES: [Case; 7] = [
    Case { kv_heads: 3, group: 3, head_dim: 64, page_tokens: 16, dtype: KvDtype::F16 },
    Case { kv_heads: 3, group: 3, head_dim: 64, page_tokens: 16, dtype: KvDtype::F32 },
    Case { kv_heads: 1, group: 13, head_dim: 8, page_tokens: 32, dtype: KvDtype::F32 },
    Case { kv_heads: 2, group: 1, head_dim: 24, page_tokens: 48, dtype: KvDtype::F16 },
    Case { kv_heads: 1, group: 4, head_dim: 128, page_tokens: 16, dtype: KvDtype::F16 },
    Case { kv_heads: 2, group: 7, head_dim: 72, page_tokens: 256, dtype: KvDtype::F32 },
    Case { kv_heads: 1, group: 2, head_dim: 256, page_tokens: 64, dtype: KvDtype::F16 },
];

#[test]
fn a_prefill_row_is_its_decode_step() {
    for case in CASES {
        let fixture = Fixture::new(case, &[1, 300, 17], 1);
        let reference = Compute::with_level(1, SimdLevel::Portable).unwrap();
        let expected: Vec<f32> = (0..3).flat_map(|seq| fixture.decoded(&reference, seq)).collect();
        let width = fixture.heads() * case.head_dim;
        for compute in all_computes() {
            let what = format!("{case:?} {compute:?}");
            let whole = fixture.run(&compute, &[(0, 0..1), (1, 0..300), (2, 0..17)]);
            assert_same_bits(&whole, &expected, &what);
            let decoded: Vec<f32> = [0, 127, 128, 255, 256, 299]
                .iter()
                .flat_map(|&row| fixture.run(&compute, &[(1, row..row + 1)]))
                .collect();
            let rows: Vec<f32> = [0, 127, 128, 255, 256, 299]
                .iter()
                .flat_map(|row| expected[(1 + row) * width..(2 + row) * width].to_vec())
                .collect();
            assert_same_bits(&decoded, &rows, &what);
        }
    }
}

#[test]
fn any_split_into_chunks_and_batches_gives_the_same_rows() {
    let mut rng = Rng::new(42);
    for case in CASES {
        let lengths = [150, 37, 270];
        let fixture = Fixture::new(case, &lengths, 2);
        let width = fixture.heads() * case.head_dim;
        let compute = Compute::new(2).unwrap();
        let expected: Vec<Vec<f32>> =
            (0..3).map(|seq| fixture.run(&compute, &[(seq, 0..lengths[seq])])).collect();
        for _ in 0..6 {
            let mut next = [0; 3];
            while next != lengths {
                let parts: Vec<(usize, std::ops::Range<usize>)> = (0..3)
                    .filter(|&seq| next[seq] < lengths[seq])
                    .map(|seq| {
                        let rows = if rng.below(2) == 0 { 1 } else { 1 + rng.below(90) };
                        (seq, next[seq]..(next[seq] + rows).min(lengths[seq]))
                    })
                    .collect();
                let found = fixture.run(&compute, &parts);
                let mut at = 0;
                for (seq, rows) in parts {
                    let part = &expected[seq][rows.start * width..rows.end * width];
                    assert_same_bits(&found[at..at + part.len()], part, &format!("{case:?} {seq} {rows:?}"));
                    at += part.len();
                    next[seq] = rows.end;
                }
            }
        }
    }
}

#[test]
fn results_agree_with_double_precision() {
    for case in CASES {
        let fixture = Fixture::new(case, &[400], 3);
        let compute = Compute::new(2).unwrap();
        let found = fixture.run(&compute, &[(0, 0..400)]);
        let width = fixture.heads() * case.head_dim;
        for row in [0, 1, 15, 16, 127, 128, 200, 399] {
            for (found, exact) in found[row * width..].iter().zip(fixture.exact(0, row)) {
                assert!((f64::from(*found) - exact).abs() < 2e-6, "{case:?} row {row}: {found}, not {exact}");
            }
        }
    }
}

#[test]
fn the_page_size_does_not_show() {
    let case = CASES[0];
    let compute = Compute::new(2).unwrap();
    let small = Fixture::new(case, &[290], 4);
    let expected = small.run(&compute, &[(0, 0..290)]);
    for page_tokens in [32, 80, 512] {
        let large = Fixture::with_values_of(&small, Case { page_tokens, ..case });
        assert_same_bits(&large.run(&compute, &[(0, 0..290)]), &expected, &format!("pages of {page_tokens}"));
    }
}

impl Fixture {
    /// The same sequences in another store.
    fn with_values_of(other: &Fixture, case: Case) -> Self {
        let mut fixture = Fixture::new(case, &other.lengths, 99);
        let width = case.kv_heads * case.head_dim;
        for (seq, &length) in other.lengths.iter().enumerate() {
            for position in 0..length {
                let at = KvSlot {
                    page: fixture.tables[seq][position / case.page_tokens],
                    slot: (position % case.page_tokens) as u32,
                };
                let range = position * width..(position + 1) * width;
                fixture.kv.write(LAYER, at, &other.k[seq][range.clone()], &other.v[seq][range]);
            }
        }
        Fixture { q: other.q.clone(), k: other.k.clone(), v: other.v.clone(), ..fixture }
    }
}

#[test]
fn rows_of_no_sequence_are_left_alone() {
    let fixture = Fixture::new(CASES[0], &[20], 5);
    let width = fixture.heads() * 64;
    let compute = Compute::new(2).unwrap();
    let q = vec![1.0; 5 * width];
    let mut out = vec![7.0; 5 * width];
    let seqs = [SeqRows { first_row: 2, rows: 2, start_pos: 18, block_table: &fixture.tables[0] }];
    attention(&compute, LAYER, &fixture.kv, &q, fixture.heads(), &seqs, 0.1, &mut out);
    for (row, values) in out.chunks(width).enumerate() {
        assert_eq!(values.iter().all(|&v| v == 7.0), ![2, 3].contains(&row), "row {row}");
    }
    attention(&compute, LAYER, &fixture.kv, &q, fixture.heads(), &[], 0.1, &mut out);
}
