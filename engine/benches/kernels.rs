//! The CPU kernels at the shapes of SmolLM2-135M (30 layers, hidden 576, 9 heads over 3 KV heads of 64, FFN 1536,
//! vocabulary 49152): the matrix products of a step, and attention.
//!
//! `cargo bench -p engine --bench kernels`; rates are tokens a second for products, and rows a second over all layers
//! for attention.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::cpu::{Compute, GgmlType, KvDtype, KvSlot, KvStore, Packed, Product, SeqRows, attention, matmul};

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const KV_WIDTH: usize = 192;
const FFN: usize = 1536;
const VOCABULARY: usize = 49152;
const THREADS: usize = 2;

struct Layer {
    q: Packed,
    k: Packed,
    v: Packed,
    o: Packed,
    gate: Packed,
    up: Packed,
    down: Packed,
}

struct Model {
    layers: Vec<Layer>,
    head: Packed,
}

/// A matrix whose bytes do not repeat within a page; their values do not matter for the time.
fn weights(compute: &Compute, ty: GgmlType, outputs: usize, inputs: usize) -> Packed {
    let blocks = outputs * inputs / ty.block_values();
    let data: Vec<u8> = (0..blocks)
        .flat_map(|block| {
            // A small f16 scale (and offset), then quants.
            (0..ty.block_bytes())
                .map(move |i| if i < 4 { [0x11, 0x14][i % 2] } else { (block * 31 + i * 17) as u8 })
        })
        .collect();
    Packed::from_ggml(compute, ty.code(), &data, outputs, inputs).expect("whole blocks")
}

impl Model {
    fn new(compute: &Compute) -> Self {
        let q4_1 = |outputs, inputs| weights(compute, GgmlType::Q4_1, outputs, inputs);
        let layer = |_| Layer {
            q: q4_1(HIDDEN, HIDDEN),
            k: q4_1(KV_WIDTH, HIDDEN),
            v: q4_1(KV_WIDTH, HIDDEN),
            o: q4_1(HIDDEN, HIDDEN),
            gate: q4_1(FFN, HIDDEN),
            up: q4_1(FFN, HIDDEN),
            down: q4_1(HIDDEN, FFN),
        };
        Model {
            layers: (0..LAYERS).map(layer).collect(),
            head: weights(compute, GgmlType::Q8_0, VOCABULARY, HIDDEN),
        }
    }

    /// All products of one step over `rows` rows, `sampled` of which need logits.
    fn products(&self, compute: &Compute, rows: usize, sampled: usize, buffers: &mut Buffers) {
        let Buffers { x, wide, q, k, v, o, gate, up, down, logits } = buffers;
        let (x, wide) = (&x[..rows * HIDDEN], &wide[..rows * FFN]);
        for layer in &self.layers {
            let qkv = &mut [
                Product::new(&layer.q, &mut q[..rows * HIDDEN]),
                Product::new(&layer.k, &mut k[..rows * KV_WIDTH]),
                Product::new(&layer.v, &mut v[..rows * KV_WIDTH]),
            ];
            matmul(compute, x, rows, qkv);
            matmul(compute, x, rows, &mut [Product::new(&layer.o, &mut o[..rows * HIDDEN])]);
            let gate_up = &mut [
                Product::new(&layer.gate, &mut gate[..rows * FFN]),
                Product::new(&layer.up, &mut up[..rows * FFN]),
            ];
            matmul(compute, x, rows, gate_up);
            matmul(compute, wide, rows, &mut [Product::new(&layer.down, &mut down[..rows * HIDDEN])]);
        }
        let logits = &mut logits[..sampled * VOCABULARY];
        matmul(compute, &x[..sampled * HIDDEN], sampled, &mut [Product::new(&self.head, logits)]);
    }
}

struct Buffers {
    x: Vec<f32>,
    wide: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
    logits: Vec<f32>,
}

impl Buffers {
    fn new(rows: usize, sampled: usize) -> Self {
        let of = |width| vec![0.5; rows * width];
        Buffers {
            x: of(HIDDEN),
            wide: of(FFN),
            q: of(HIDDEN),
            k: of(KV_WIDTH),
            v: of(KV_WIDTH),
            o: of(HIDDEN),
            gate: of(FFN),
            up: of(FFN),
            down: of(HIDDEN),
            logits: vec![0.0; sampled * VOCABULARY],
        }
    }
}

fn products(c: &mut Criterion) {
    let compute = Compute::new(THREADS).expect("threads");
    let model = Model::new(&compute);
    let mut group = c.benchmark_group("products");
    group.sample_size(10);
    for rows in [1, 8, 128, 512] {
        // A decode step samples every row, a prefill chunk its last.
        let sampled = if rows <= 8 { rows } else { 1 };
        let mut buffers = Buffers::new(rows, sampled);
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(BenchmarkId::from_parameter(rows), |b| {
            b.iter(|| model.products(&compute, rows, sampled, black_box(&mut buffers)));
        });
    }
    group.finish();
}

fn attentions(c: &mut Criterion) {
    const PAGES: u32 = 320;
    let compute = Compute::new(THREADS).expect("threads");
    let mut group = c.benchmark_group("attention");
    group.sample_size(10);
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let mut kv = KvStore::new(LAYERS, PAGES as usize, 16, 3, 64, dtype).expect("memory");
        let slots: Vec<KvSlot> =
            (0..PAGES).flat_map(|page| (0..16).map(move |slot| KvSlot { page, slot })).collect();
        let values: Vec<f32> =
            (0..slots.len() * KV_WIDTH).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        for layer in 0..LAYERS {
            kv.write_rows(&compute, layer, &slots, &values, &values);
        }
        let table: Vec<u32> = (0..PAGES).collect();
        // Streams, rows of each, position of the first row.
        for (name, streams, rows, start_pos) in [
            ("prefill 512", 1, 512, 0),
            ("decode at 256", 1, 1, 256),
            ("decode at 256, 8 streams", 8, 1, 256),
        ] {
            let seqs: Vec<SeqRows<'_>> = (0..streams)
                .map(|i| SeqRows { first_row: i * rows, rows, start_pos, block_table: &table[i * 32..] })
                .collect();
            let q = vec![0.5; streams * rows * HIDDEN];
            let mut out = q.clone();
            group.throughput(Throughput::Elements((streams * rows) as u64));
            group.bench_function(BenchmarkId::new(name, format!("{dtype:?}")), |b| {
                b.iter(|| {
                    for layer in 0..LAYERS {
                        attention(&compute, layer, &kv, &q, 9, &seqs, 0.125, black_box(&mut out));
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, products, attentions);
criterion_main!(benches);
