//! The directory of prefixes: look-up of a long prompt, and events, with 1,000,000 pages of 64 workers.
#![expect(clippy::print_stdout, reason = "figures that criterion does not show: memory and percentiles")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use policies::kv::PageHash;
use policies::kv::directory::Directory;
use policies::kv::events::KvEvent;

use config::ids::WorkerId;

const WORKERS: u64 = 64;
/// Pages of 16 tokens of a prompt of 100,000 tokens.
const PROMPT: u64 = 6250;
const PAGES: u64 = 1_000_000;
/// Pages of an event.
const EVENT: u64 = 16;

fn workers() -> Vec<WorkerId> {
    (0..WORKERS).map(|n| WorkerId::new(format!("w{n}").as_str().into(), 1)).collect()
}

fn page(n: u64) -> PageHash {
    let hash = policies::kv::Fingerprint::of(&[("page", &n.to_le_bytes())]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.0[..16]);
    PageHash(bytes)
}

fn stored(pages: impl IntoIterator<Item = u64>) -> KvEvent {
    KvEvent::Stored { parent: None, pages: pages.into_iter().map(page).collect(), tokens: Vec::new() }
}

fn joined(directory: &mut Directory, workers: &[WorkerId]) {
    for worker in workers {
        directory.join(worker);
        directory.snapshot(worker, 0, 0, 1, &[]);
    }
}

/// All hold a share of the pages; of the prompt, the first hundredth is everywhere, and the n-th worker has n 64ths.
fn filled(workers: &[WorkerId]) -> Directory {
    let mut directory = Directory::new();
    joined(&mut directory, workers);
    let share = (PAGES - PROMPT) / WORKERS;
    for (worker, n) in workers.iter().zip(0..) {
        let prompt = (PROMPT / 100).max(PROMPT * (n + 1) / WORKERS);
        let own = PROMPT + n * share..PROMPT + (n + 1) * share;
        directory.events(worker, 1, &[stored(0..prompt), stored(own)]);
    }
    directory
}

fn look_up(c: &mut Criterion) {
    let workers = workers();
    let directory = filled(&workers);
    assert!(directory.pages() as u64 > PAGES - WORKERS);
    println!("{} pages, {} bytes a page", directory.pages(), directory.bytes() / directory.pages());
    let prompt: Vec<PageHash> = (0..PROMPT).map(page).collect();
    let mut hits = Vec::new();
    c.bench_function("directory/look-up of 6250 pages", |b| {
        b.iter(|| directory.hits(&prompt, &workers, &mut hits));
    });
    assert_eq!(u64::from(hits[63]), PROMPT);
    let cold: Vec<PageHash> = (PAGES * 2..PAGES * 2 + PROMPT).map(page).collect();
    c.bench_function("directory/look-up of 6250 unknown pages", |b| {
        b.iter(|| directory.hits(&cold, &workers, &mut hits));
    });

    // Other prompts between two look-ups of one: what it reads has left the cache.
    let share = (PAGES - PROMPT) / WORKERS;
    let prompts: Vec<Vec<PageHash>> =
        (0..WORKERS).map(|n| (0..PROMPT).map(|i| page(PROMPT + n * share + i)).collect()).collect();
    let mut times: Vec<u128> = prompts
        .iter()
        .cycle()
        .take(2000)
        .map(|prompt| {
            #[expect(clippy::disallowed_methods, reason = "a bench measures time")]
            let start = std::time::Instant::now();
            directory.hits(prompt, &workers, &mut hits);
            let took = start.elapsed().as_nanos();
            assert_eq!(hits.iter().sum::<u32>() as u64, PROMPT);
            took
        })
        .collect();
    times.sort_unstable();
    println!(
        "look-up of 6250 pages, changing prompts: p50 {} us, p99 {} us",
        times[1000] / 1000,
        times[1980] / 1000
    );
}

fn ingest(c: &mut Criterion) {
    let workers = workers();
    let messages: Vec<Vec<KvEvent>> =
        (0..PAGES / EVENT).map(|i| vec![stored(i * EVENT..(i + 1) * EVENT)]).collect();
    let mut group = c.benchmark_group("directory");
    group.throughput(Throughput::Elements(PAGES)).sample_size(10);
    group.bench_function("ingest of 1000000 pages, empty at first", |b| {
        b.iter_batched(
            || {
                let mut directory = Directory::new();
                joined(&mut directory, &workers);
                directory
            },
            |mut directory| {
                for (message, i) in messages.iter().zip(0..) {
                    directory.events(&workers[i % workers.len()], (i / workers.len()) as u64 + 1, message);
                }
                directory
            },
            BatchSize::PerIteration,
        );
    });
    // A steady state: a worker stores what another one has dropped.
    let mut directory = filled(&workers);
    let share = (PAGES - PROMPT) / WORKERS;
    let rounds: Vec<Vec<KvEvent>> = (0..share / EVENT)
        .map(|i| {
            let at = PROMPT + i * EVENT..PROMPT + (i + 1) * EVENT;
            let gone = at.clone().map(page).collect();
            vec![KvEvent::Removed { pages: gone }, stored(at)]
        })
        .collect();
    group.throughput(Throughput::Elements(rounds.len() as u64 * 2 * EVENT));
    let mut seq = 1;
    group.bench_function("removed and stored among 1000000 pages", |b| {
        b.iter(|| {
            for events in &rounds {
                seq += 1;
                directory.events(&workers[0], seq, events);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, look_up, ingest);
criterion_main!(benches);
