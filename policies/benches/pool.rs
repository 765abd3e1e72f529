//! A pool of 100,000 pages: finding, giving and letting go of a prompt's pages, and putting pages for which others leave.

use std::hint::black_box;

use config::ids::WorkerId;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use policies::kv::{Fingerprint, PageHash, page_hashes};
use policies::pool::{DiskLimits, OpId, PoolEffect, PoolLimits, Run, Store};
use policies::time::{Span, Time};

const FP: Fingerprint = Fingerprint([3; 32]);
const BYTES: u64 = 400_000;
/// Pages of a prompt: 4,096 tokens.
const PAGES: usize = 256;
const PROMPTS: u32 = 400;

/// Prompts of which eight begin alike.
fn prompt(n: u32) -> Vec<PageHash> {
    let tokens: Vec<u32> =
        (0..16 * PAGES as u32).map(|at| if at < 2048 { n / 8 } else { n * 7919 + at }).collect();
    page_hashes(&FP, 16, &tokens)
}

/// Puts a prompt; the disk is as fast as it is asked.
fn put(store: &mut Store, pages: Vec<PageHash>) {
    let (now, owner, mut fx) = (Time(1), WorkerId::new("w".into(), 1), Vec::new());
    let run = Run { fingerprint: FP, parent: None, pages, page_bytes: BYTES };
    let Ok(begun) = store.begin(now, &owner, run) else { return };
    for index in begun.first..PAGES {
        store.arrived(now, begun.put, index, BYTES, &mut fx);
        settle(store, &mut fx);
    }
}

fn settle(store: &mut Store, fx: &mut Vec<PoolEffect>) {
    while !fx.is_empty() {
        let writes: Vec<OpId> = fx
            .drain(..)
            .filter_map(|e| if let PoolEffect::WriteDisk { op, .. } = e { Some(op) } else { None })
            .collect();
        for op in writes {
            store.wrote(Time(1), op, Ok(()), fx);
        }
    }
}

fn full(ram: u64, disk: u64) -> Store {
    let disk = DiskLimits {
        capacity: disk * (BYTES + 4223),
        overhead: 4223,
        write_window: 64 << 20,
        write_above: ram * BYTES / 2,
        min_uses: 1,
        back_off: Span::from_secs(1),
    };
    let limits =
        PoolLimits { ram: ram * BYTES, incoming: 64 << 20, lease: Span::from_secs(1), disk: Some(disk) };
    let mut store = Store::new(limits);
    (0..PROMPTS).for_each(|n| put(&mut store, prompt(n)));
    store
}

fn pool(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    group.throughput(Throughput::Elements(PAGES as u64));
    let mut store = full(100_000, 1);
    let owner = WorkerId::new("r".into(), 1);
    let prompts: Vec<Vec<PageHash>> = (0..PROMPTS).map(prompt).collect();
    let (mut n, mut fx) = (0, Vec::new());
    group.bench_function("read", |b| {
        b.iter(|| {
            n = (n + 37) % PROMPTS as usize;
            let hit = store.look_up(Time(1), &owner, &FP, &prompts[n], 0);
            if let Some(reader) = hit.reader {
                store.grant(Time(1), reader, PAGES, &mut fx);
                store.release(Time(1), reader, &mut fx);
            }
            black_box(fx.drain(..).count())
        });
    });
    let mut store = full(20_000, 50_000);
    let mut n = PROMPTS;
    group.bench_function("put", |b| {
        b.iter_batched(
            || {
                n += 1;
                prompt(n)
            },
            |pages| put(&mut store, pages),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, pool);
criterion_main!(benches);
