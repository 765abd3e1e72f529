use std::sync::Arc;

use config::ids::{Attempt, PageId, RequestId};
use proptest::prelude::*;

use super::fake::{FakeModel, FakePages, hash};
use super::*;
use crate::request::{Sampling, Token};
use crate::step::{Draw, PageCopy, SeqKey, Slice, StepPlan};

fn model(hardware: &str) -> CostModel {
    CostModel::Roofline {
        model: ModelShape::named("llama-3.1-8b").unwrap(),
        hardware: Hardware::named(hardware).unwrap(),
    }
}

#[test]
fn every_name_is_known() {
    assert!(Hardware::NAMES.iter().all(|n| Hardware::named(n).is_some()));
    assert!(ModelShape::NAMES.iter().all(|n| ModelShape::named(n).is_some()));
    assert_eq!(Hardware::named("abacus"), None);
}

#[test]
fn figures_by_hand() {
    let h100 = model("h100");
    // One decode token at context 1000 is bound by memory: 16.06 GB of weights and 1000 × 128 KiB of KV at 2.5125 TB/s.
    assert_eq!(ModelShape::named("llama-3.1-8b").unwrap().kv_token_bytes(), 131_072);
    let bytes = 16_060_522_496_u64 + 131_072 * 1000;
    let want = 2_000_000 + (u128::from(bytes) * 1_000_000_000).div_ceil(2_512_500_000_000) as u64;
    assert_eq!(h100.step([Work { start: 999, tokens: 1 }]), Span(want));
    // A prefill of 4096 is bound by compute.
    let flops = 2 * 8_030_261_248_u128 * 4096 + 4 * 32 * 32 * 128 * (4096 * 4097 / 2);
    let want = 2_000_000 + (flops * 1_000_000_000).div_ceil(494_500_000_000_000) as u64;
    assert_eq!(h100.prefill(0, 4096), Span(want));
    assert_eq!(h100.step([]), Span::ZERO);
    assert_eq!(model("zero").prefill(0, 4096), Span::ZERO);
    assert!(
        model("h200").step([Work { start: 999, tokens: 1 }]) < h100.step([Work { start: 999, tokens: 1 }])
    );
}

fn affine() -> Affine {
    Affine {
        step_overhead: Span(1000),
        prefill_per_token: Span(10),
        decode_per_sequence: Span(25),
        attention_per_token: Span(1),
    }
}

#[test]
fn prices_add_up() {
    let cost = CostModel::Affine(affine());
    let works = [(100, 1), (0, 4), (7, 2), (9, 0)].map(|(start, tokens)| Work { start, tokens });
    // Two prompt tokens cost no less than a decode.
    assert_eq!(cost.step(works), Span(1000 + 25 + 40 + 25 + 101 + (1 + 2 + 3 + 4) + (8 + 9)));
    assert_eq!((cost.step([]), cost.transfer(9)), (Span::ZERO, Span::ZERO));
}

proptest! {
    #[test]
    fn more_work_never_takes_less(
        mut works in prop::collection::vec((0_u32..100_000, 0_u32..5000), 1..20),
        at in 0_usize..20,
        more in (0_u32..1000, 0_u32..1000),
    ) {
        let table = [(1, Span(900)), (3, Span(900)), (8, Span(5000)), (600, Span(60_000))];
        let (per_slice, attention_decode, attention_prefill) = (Span(7), Span(9), Span(2));
        let prices = SlicePrices { per_slice, attention_decode, attention_prefill };
        let steps = StepCosts::new(&table, prices).unwrap().serving(1100, Span(50));
        let measured = [CostModel::Affine(affine()), CostModel::Steps(steps)];
        for cost in Hardware::NAMES.iter().map(|name| model(name)).chain(measured) {
            let of = |w: &[(u32, u32)]| cost.step(w.iter().map(|&(start, tokens)| Work { start, tokens }));
            let before = of(&works);
            let i = at % works.len();
            let kept = works[i];
            works[i] = (kept.0 + more.0, kept.1 + more.1);
            prop_assert!(of(&works) >= before);
            works.push((more.0, more.1));
            prop_assert!(of(&works) >= before);
            works.pop();
            works[i] = kept;
            prop_assert!(cost.transfer(more.0) <= cost.transfer(more.0 + more.1));
        }
    }
}

#[test]
fn extreme_work_saturates() {
    let all = vec![Work { start: u32::MAX, tokens: u32::MAX }; 100];
    assert!(model("cpu").step(all) > Span::from_secs(1_000_000));
}

fn key() -> SeqKey {
    SeqKey { request: RequestId::new(1, 1), attempt: Attempt(0), choice: 0 }
}

fn slice(tokens: &[Token], start: u32, table: &[u32], position: u32) -> Slice {
    let sampling = Arc::new(Sampling { logprobs: Some(3), ..Sampling::default() });
    Slice {
        seq: key(),
        tokens: tokens.to_vec(),
        start,
        block_table: table.iter().map(|&p| PageId(p)).collect(),
        draws: vec![Draw { choice: 0, sampling, position, history: None }],
        prompt_logprobs: None,
    }
}

fn run(pages: &mut FakePages, slices: Vec<Slice>, copies: Vec<PageCopy>) -> Vec<Token> {
    let outcome = pages.step(&StepPlan { step: 1, copies, slices }).unwrap();
    assert_eq!(outcome.failed, []);
    outcome.drawn.iter().map(|d| d.token).collect()
}

#[test]
fn the_answer_does_not_depend_on_chunks_pages_or_copies() {
    let prompt: Vec<Token> = (0..23).map(|i| i * 7 % 256).collect();
    let fake = FakeModel { end: None };
    let want = fake.answer(&prompt, &Sampling::default(), 0, 3);
    for cut in 1..prompt.len() {
        let mut pages = FakePages::new(fake, 8, 4);
        let table = [5, 0, 3, 7, 1, 2, 4];
        run(&mut pages, vec![slice(&prompt[..cut], 0, &table, cut as u32)], vec![]);
        let mut got = run(&mut pages, vec![slice(&prompt[cut..], cut as u32, &table, 23)], vec![]);
        // The last, partly filled page moves.
        let moved = [5, 0, 3, 7, 1, 6];
        let copy = PageCopy { from: PageId(2), to: PageId(6) };
        got.extend(run(&mut pages, vec![slice(&[got[0]], 23, &moved, 24)], vec![copy]));
        got.extend(run(&mut pages, vec![slice(&[got[1]], 24, &[5, 0, 3, 7, 1, 6, 2], 25)], vec![]));
        assert_eq!(got, want, "cut at {cut}");
    }
}

#[test]
fn a_wrong_page_changes_the_answer_and_a_missing_one_fails_alone() {
    let prompt: Vec<Token> = (0..8).collect();
    let mut pages = FakePages::new(FakeModel::default(), 6, 4);
    run(&mut pages, vec![slice(&prompt, 0, &[0, 1], 8), slice(&prompt[..4], 0, &[2], 4)], vec![]);
    let right = pages.clone().page(1).unwrap()[3];
    assert_eq!(right, hash(&prompt));
    run(&mut pages, vec![slice(&[9], 8, &[0, 1, 4], 9)], vec![]);
    let good = pages.page(4).unwrap()[0];
    run(&mut pages, vec![slice(&[9], 8, &[0, 2, 5], 9)], vec![]);
    assert_ne!(pages.page(5).unwrap()[0], good);

    let bad = [
        slice(&[9], 8, &[0, 1], 9),
        slice(&[9], 8, &[0, 1, 99], 9),
        slice(&[9], 5, &[0, 3], 6),
        slice(&[9], 8, &[], 9),
    ];
    for slice_of in bad {
        let plan =
            StepPlan { step: 1, copies: vec![], slices: vec![slice_of, slice(&prompt, 0, &[0, 1], 8)] };
        let outcome = pages.step(&plan).unwrap();
        assert_eq!((outcome.failed.len(), outcome.drawn.len()), (1, 1), "{:?}", outcome.failed);
    }
    let copy = PageCopy { from: PageId(0), to: PageId(6) };
    assert!(pages.step(&StepPlan { step: 2, copies: vec![copy], slices: vec![] }).is_err());
}

#[test]
fn draws_are_functions_of_their_arguments() {
    let fake = FakeModel { end: Some((256, 20)) };
    let greedy = Sampling::default();
    let warm = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let prompt = [1, 2, 3];
    assert_eq!(fake.answer(&prompt, &greedy, 0, 50), fake.answer(&prompt, &greedy, 1, 50));
    assert_eq!(fake.answer(&prompt, &warm(7), 0, 50), fake.answer(&prompt, &warm(7), 0, 50));
    assert_ne!(fake.answer(&prompt, &warm(7), 0, 50), fake.answer(&prompt, &warm(8), 0, 50));
    assert_ne!(fake.answer(&prompt, &warm(7), 0, 50), fake.answer(&prompt, &warm(7), 1, 50));
    let lengths: Vec<usize> = (0..400).map(|i| fake.answer(&[i], &greedy, 0, 1000).len()).collect();
    let mean = lengths.iter().sum::<usize>() / lengths.len();
    assert!((15..25).contains(&mean), "mean length {mean}");
    let biased = Sampling { logit_bias: vec![(32, -100.0), (256, -100.0)], ..Sampling::default() };
    let text = fake.answer(&prompt, &biased, 0, 500);
    assert!(text.len() == 500 && text.iter().all(|&t| (97..=122).contains(&t)), "letters only: {text:?}");
    let forced = Sampling { logit_bias: vec![(65, 100.0)], ..Sampling::default() };
    assert_eq!(fake.answer(&prompt, &forced, 0, 3), [65, 65, 65]);
}

#[test]
fn logprobs_are_probabilities() {
    let fake = FakeModel::default();
    for h in 0..200 {
        let token = fake.draw(h, &Sampling::default(), 0, 0);
        let lp = fake.logprobs(h, token, 5);
        assert_eq!(lp.top.len(), 5);
        assert_eq!(lp.top[0], (token, lp.own), "the drawn token is the likeliest");
        assert!(lp.top.windows(2).all(|w| w[0].1 >= w[1].1));
        let sum: f32 = lp.top.iter().map(|(_, l)| l.exp()).sum();
        assert!(sum < 1.0 + 1e-6, "{sum}");
        assert!(fake.logprobs(h, token, 0).top.is_empty());
    }
}
