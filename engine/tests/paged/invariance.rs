//! A token's result depends on its own sequence alone, bit for bit: not on the batch, the chunks, the phase, the pages or
//! the threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use config::ids::PageId;
use engine::Engine;
use engine::gguf::write::TinyModel;
use engine::paged::{KvBudget, LoadOptions, PagedEngine};
use engine::store::default_model_for_tests;
use policies::kv::PageLayout;
use policies::request::Sampling;
use policies::rng::Rng;
use proptest::prelude::*;

use crate::common::{draw, generate, gguf, load, slice, step, table};
use crate::oracle::Tiny;

/// What a sequence leaves behind: the logits after each token, and its keys and values.
#[derive(Debug, PartialEq)]
struct Traces {
    logits: Vec<Vec<u32>>,
    kv: Vec<Vec<u8>>,
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Keys and values of the first `tokens` tokens of a sequence: per token, all layers and heads.
fn stored(engine: &PagedEngine, pages: &[PageId], tokens: usize) -> Vec<Vec<u8>> {
    let layout = engine.kv().layout;
    let PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes } = layout;
    let token_bytes = (kv_heads * head_dim * element_bytes) as usize;
    let mut out = vec![Vec::new(); tokens];
    let mut content = vec![0; layout.page_bytes()];
    for (index, token) in out.iter_mut().enumerate() {
        let (page, slot) = (index / page_tokens as usize, index % page_tokens as usize);
        if slot == 0 {
            engine.export(pages[page], &mut content).unwrap();
        }
        for half in 0..2 * layers as usize {
            let start = (half * page_tokens as usize + slot) * token_bytes;
            token.extend_from_slice(&content[start..start + token_bytes]);
        }
    }
    out
}

/// Computes sequences in a random order of random chunks, over random pages; or, with no rng, one token a step, one
/// sequence after the other.
fn run(engine: &mut PagedEngine, texts: &[Vec<u32>], rng: Option<&mut Rng>) -> Vec<Traces> {
    let kv = engine.kv();
    let mut free: Vec<u32> = (0..kv.pages).collect();
    let mut plain = Rng::new(0);
    let random = rng.is_some();
    let rng = rng.unwrap_or(&mut plain);
    let mut pages: Vec<Vec<PageId>> = Vec::new();
    for text in texts {
        let count = kv.layout.pages_for(text.len() as u32);
        let mut take = || {
            let at = if random { rng.below(free.len() as u64) as usize } else { 0 };
            PageId(free.remove(at))
        };
        pages.push((0..count).map(|_| take()).collect());
    }
    let mut done = vec![0; texts.len()];
    let mut logits = vec![Vec::new(); texts.len()];
    while (0..texts.len()).any(|i| done[i] < texts[i].len()) {
        let mut slices = Vec::new();
        let mut parts = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let left = text.len() - done[i];
            let chunk = match random {
                _ if left == 0 => 0,
                false if slices.is_empty() => 1,
                false => 0,
                true => match rng.below(4) {
                    0 => 0,
                    1 => 1,
                    2 => 1 + rng.below(left.min(9) as u64) as usize,
                    _ => 1 + rng.below(left as u64) as usize,
                },
            };
            if chunk > 0 {
                slices.push(slice(
                    i as u64,
                    &text[done[i]..done[i] + chunk],
                    done[i] as u32,
                    pages[i].clone(),
                ));
                parts.push((i, chunk));
            }
        }
        if random && slices.len() > 1 {
            let by = rng.below(slices.len() as u64) as usize;
            slices.rotate_left(by);
            parts.rotate_left(by);
        }
        let mut rows = engine.logits(&slices).unwrap().into_iter();
        for (i, chunk) in parts {
            logits[i].extend(rows.by_ref().take(chunk).map(|row| bits(&row)));
            done[i] += chunk;
        }
    }
    texts
        .iter()
        .zip(logits)
        .zip(pages)
        .map(|((text, logits), pages)| Traces { logits, kv: stored(engine, &pages, text.len()) })
        .collect()
}

fn texts(rng: &mut Rng, vocab: u32, longest: u64) -> Vec<Vec<u32>> {
    (0..1 + rng.below(4))
        .map(|_| (0..1 + rng.below(longest)).map(|_| rng.below(u64::from(vocab)) as u32).collect())
        .collect()
}

fn options(path: &Path, threads: usize, page_tokens: usize) -> LoadOptions {
    LoadOptions { threads, page_tokens, kv: KvBudget::Pages(60), ..gguf(path) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_batches_give_what_single_tokens_give(seed: u64) {
        let mut rng = Rng::new(seed);
        let architecture = ["llama", "qwen2", "qwen3"][rng.below(3) as usize];
        // Widths that are and that are not multiples of the kernels' tiles.
        let (hidden, heads, kv_heads) = [(64, 4, 2), (48, 3, 1), (80, 2, 2), (96, 6, 3)][rng.below(4) as usize];
        let shape = TinyModel { architecture, hidden, heads, kv_heads, ffn: 112, seed, ..TinyModel::default() };
        let model = Tiny::new(shape);
        let dir = tempfile::tempdir().unwrap();
        let path = model.write(dir.path());
        let texts = texts(&mut rng, model.vocab(), 150);
        let right = run(&mut load(&options(&path, 1, 16)), &texts, None);
        for _ in 0..3 {
            let (threads, page) = (1 + rng.below(3) as usize, [16, 32, 48][rng.below(3) as usize]);
            let mut engine = load(&options(&path, threads, page));
            let found = run(&mut engine, &texts, Some(&mut rng));
            prop_assert!(found == right, "seed {seed}: {threads} threads, pages of {page}");
        }
    }
}

#[test]
fn the_default_model_gives_the_same_in_any_batch() {
    let mut rng = Rng::new(2024);
    let mut engine = load(&LoadOptions { kv: KvBudget::Pages(120), ..gguf(&default_model_for_tests()) });
    let texts: Vec<Vec<u32>> =
        [70, 33, 5].map(|len| (0..len).map(|_| rng.below(49_152) as u32).collect()).to_vec();
    let right = run(&mut engine, &texts, None);
    for round in 0..4 {
        assert!(run(&mut engine, &texts, Some(&mut rng)) == right, "round {round}");
    }
}

#[test]
fn recomputing_decoded_tokens_in_a_prefill_gives_the_same() {
    let mut engine = load(&gguf(&default_model_for_tests()));
    let prompt: Vec<u32> = vec![504, 3575, 282, 4649, 314];
    let sampling = Sampling { temperature: 0.9, top_p: 0.95, seed: 77, ..Sampling::default() };
    let whole = generate(&mut engine, &prompt, &sampling, 40);
    let text: Vec<u32> = [&prompt, &whole[..]].concat();
    let decoded = stored(&engine, &table(0, 3), text.len() - 1);
    // Preempted after 17 tokens: the next step computes prompt and output together, in other pages.
    let resumed = &text[..prompt.len() + 17];
    let mut next = slice(1, resumed, 0, table(10, 3));
    next.draws = vec![draw(&Arc::new(sampling.clone()), resumed.len() as u32)];
    let outcome = step(&mut engine, vec![next]);
    assert_eq!(outcome.drawn[0].token, whole[17]);
    assert_eq!(stored(&engine, &table(10, 3), resumed.len()), decoded[..resumed.len()]);
    assert_eq!(generate(&mut engine, resumed, &sampling, 23), whole[17..], "and so on to the end");
}

#[test]
fn imported_pages_continue_as_computed_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let model = Tiny::new(TinyModel::default());
    let path = model.write(dir.path());
    let (mut here, mut there) = (load(&options(&path, 2, 16)), load(&options(&path, 1, 16)));
    let text: Vec<u32> = (0..40).map(|i| (i * 7 % 200) + 3).collect();
    step(&mut here, vec![slice(1, &text[..39], 0, table(0, 3))]);
    let mut content = vec![0; here.kv().layout.page_bytes()];
    for (from, to) in [(0, 20), (1, 5), (2, 9)] {
        here.export(PageId(from), &mut content).unwrap();
        there.import(PageId(to), &content).unwrap();
    }
    let own = here.logits(&[slice(1, &text[39..], 39, table(0, 3))]).unwrap();
    let moved = vec![PageId(20), PageId(5), PageId(9)];
    let other = there.logits(&[slice(1, &text[39..], 39, moved)]).unwrap();
    assert_eq!(bits(&own[0]), bits(&other[0]));
}

#[test]
fn draws_do_not_depend_on_batch_mates() {
    let dir = tempfile::tempdir().unwrap();
    let model = Tiny::new(TinyModel::default());
    let mut engine = load(&options(&model.write(dir.path()), 2, 16));
    let sampling = |seed| Sampling { temperature: 1.0, seed, logprobs: Some(3), ..Sampling::default() };
    let prompts: Vec<Vec<u32>> =
        (0..6).map(|i| (0..5 + 7 * i).map(|j| 3 + (i * 31 + j * 17) % 250).collect()).collect();
    let mut slices = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        let mut one = slice(i as u64, prompt, 0, table(i as u32 * 4, 4));
        one.draws = vec![draw(&Arc::new(sampling(i as u64)), prompt.len() as u32)];
        slices.push(one);
    }
    let together = step(&mut engine, slices.clone());
    let alone: BTreeMap<_, _> =
        slices.into_iter().map(|slice| (slice.seq, step(&mut engine, vec![slice]).drawn.remove(0))).collect();
    assert_eq!(together.drawn.len(), prompts.len());
    for drawn in together.drawn {
        assert_eq!(drawn, alone[&drawn.seq]);
    }
}
