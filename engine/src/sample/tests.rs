use std::sync::Arc;

use super::*;

/// Logits that look like a model's: mostly a bulk around zero, a few peaks.
fn logits(vocab: usize, seed: u64) -> Vec<f32> {
    let mut rng = rng::Rng::new(seed);
    (0..vocab)
        .map(|_| {
            let bulk = (rng.unit() + rng.unit() + rng.unit() - 1.5) * 8.0;
            let peak = if rng.below(97) == 0 { 9.0 * rng.unit() } else { 0.0 };
            (bulk + peak) as f32
        })
        .collect()
}

fn at(sampling: &Sampling, position: u32) -> Draw {
    Draw { choice: 0, sampling: Arc::new(sampling.clone()), position, history: None }
}

fn token(logits: &[f32], sampling: &Sampling, position: u32) -> Token {
    Sampler::default().draw(logits, &at(sampling, position)).unwrap().token
}

/// Straightforward probabilities in f64: sorted, cut, renormalised.
fn expected(logits: &[f32], s: &Sampling) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut p: Vec<(f64, usize)> = logits
        .iter()
        .enumerate()
        .map(|(i, l)| ((f64::from(l - max) / f64::from(s.temperature)).exp(), i))
        .collect();
    p.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if s.top_k > 0 {
        p.truncate(s.top_k as usize);
    }
    let total: f64 = p.iter().map(|p| p.0).sum();
    let mut sum = 0.0;
    let mut kept = 0;
    for (weight, _) in &p {
        kept += 1;
        sum += weight;
        if sum >= f64::from(s.top_p) * total {
            break;
        }
    }
    if s.top_p < 1.0 {
        p.truncate(kept);
    }
    p.retain(|p| p.0 >= f64::from(s.min_p));
    let total: f64 = p.iter().map(|p| p.0).sum();
    let mut out = vec![0.0; logits.len()];
    for (weight, i) in p {
        out[i] = weight / total;
    }
    out
}

#[test]
fn frequencies_follow_the_distribution() {
    let logits = logits(400, 3);
    let settings = [
        Sampling { temperature: 1.0, ..Sampling::default() },
        Sampling { temperature: 0.7, top_p: 0.9, ..Sampling::default() },
        Sampling { temperature: 1.3, top_k: 12, ..Sampling::default() },
        Sampling { temperature: 1.5, top_k: 40, top_p: 0.8, ..Sampling::default() },
        Sampling { temperature: 2.0, min_p: 0.05, ..Sampling::default() },
        Sampling { temperature: 1.0, top_p: 0.95, min_p: 0.02, top_k: 1000, ..Sampling::default() },
    ];
    let draws = 40_000_u32;
    let mut sampler = Sampler::default();
    for (index, sampling) in settings.iter().enumerate() {
        let sampling = Sampling { seed: 11 + index as u64, ..sampling.clone() };
        let expected = expected(&logits, &sampling);
        let mut counts = vec![0_u32; logits.len()];
        for position in 0..draws {
            counts[sampler.draw(&logits, &at(&sampling, position)).unwrap().token as usize] += 1;
        }
        // Pearson's statistic over the cells that expect at least 5 draws, the others together in one.
        let (mut statistic, mut cells, mut rest) = (0.0, 0.0, (0.0, 0.0));
        for (count, p) in counts.iter().zip(&expected) {
            assert!(*p > 0.0 || *count == 0, "{sampling:?} drew a token that was cut off");
            let (e, c) = (p * f64::from(draws), f64::from(*count));
            if e >= 5.0 {
                statistic += (c - e).powi(2) / e;
                cells += 1.0;
            } else {
                rest = (rest.0 + e, rest.1 + c);
            }
        }
        if rest.0 >= 5.0 {
            statistic += (rest.1 - rest.0).powi(2) / rest.0;
            cells += 1.0;
        }
        // Mean cells - 1, deviation √(2 (cells - 1)); the seeds are fixed, so this either holds for ever or never.
        let freedom: f64 = cells - 1.0;
        assert!(
            statistic < freedom + 4.0 * (2.0 * freedom).sqrt(),
            "{sampling:?}: {statistic} for {freedom}"
        );
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let mut row = vec![1.0; 300];
    row[70] = 5.0;
    row[200] = 5.0;
    assert_eq!(token(&row, &Sampling::default(), 0), 70);
    row[3] = 5.0;
    assert_eq!(token(&row, &Sampling::default(), 0), 3);
    assert_eq!(token(&[-0.0, 0.0], &Sampling::default(), 0), 0);
    let mut sampler = Sampler::default();
    let found = sampler.logprobs(&[-0.0, 0.0, -1.0], 0, 2).unwrap();
    assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1], "ties by lower token");
}

#[test]
fn extremes_give_the_favourite_or_something_valid() {
    for vocab in [1, 2, 63, 64, 65, 1000, 49_152] {
        let row = logits(vocab, vocab as u64);
        let best = token(&row, &Sampling::default(), 0);
        for position in 0..5 {
            for s in [
                Sampling { temperature: 1e-6, ..Sampling::default() },
                Sampling { temperature: f32::MIN_POSITIVE / 4.0, ..Sampling::default() },
                Sampling { temperature: 2.0, top_p: 1e-6, ..Sampling::default() },
                Sampling { temperature: 2.0, top_p: 0.0, ..Sampling::default() },
                Sampling { temperature: 2.0, top_k: 1, ..Sampling::default() },
                Sampling { temperature: 2.0, min_p: 1.0, ..Sampling::default() },
            ] {
                assert_eq!(token(&row, &s, position), best, "{vocab}: {s:?}");
            }
            let wild = Sampling { temperature: 2.0, top_k: u32::MAX, ..Sampling::default() };
            assert!((token(&row, &wild, position) as usize) < vocab);
        }
    }
}

#[test]
fn huge_logits_do_not_overflow() {
    let row = [f32::MAX, f32::MIN, 0.0, f32::MAX];
    let s = Sampling { temperature: 0.5, logprobs: Some(4), ..Sampling::default() };
    for position in 0..20 {
        let sampled = Sampler::default().draw(&row, &at(&s, position)).unwrap();
        assert!([0, 3].contains(&sampled.token));
        let own = sampled.logprobs.unwrap().own;
        assert!((own - 0.5_f32.ln()).abs() < 1e-6, "{own}");
    }
}

#[test]
fn rows_that_are_not_finite_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 15, 16, 63, 64, 99] {
            let mut row = logits(100, 1);
            row[place] = bad;
            let refused = Sampler::default().draw(&row, &at(&Sampling::default(), 0)).unwrap_err();
            assert_eq!(refused, NonFinite { token: place as Token });
            assert_eq!(Sampler::default().logprobs(&row, 0, 3), Err(refused));
        }
    }
}

#[test]
fn a_draw_depends_on_seed_choice_and_position_only() {
    let row: Vec<f32> = logits(5000, 9).iter().map(|logit| logit * 0.2).collect();
    let s = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    let mut sampler = Sampler::default();
    let alone: Vec<Token> = (0..40).map(|position| token(&row, &s, position)).collect();
    let mut mixed = vec![0; 40];
    for position in (0..40).rev() {
        sampler.draw(&logits(300, 2), &at(&Sampling { top_p: 0.5, ..s.clone() }, position)).unwrap();
        mixed[position as usize] = sampler.draw(&row, &at(&s, position)).unwrap().token;
    }
    assert_eq!(alone, mixed);
    let other_seed = Sampling { seed: 6, ..s.clone() };
    assert_ne!(alone, (0..40).map(|p| token(&row, &other_seed, p)).collect::<Vec<_>>());
    let choice = |choice| {
        (0..40).map(|p| Sampler::default().draw(&row, &Draw { choice, ..at(&s, p) }).unwrap().token).collect()
    };
    let (first, second): (Vec<Token>, Vec<Token>) = (choice(0), choice(1));
    assert_eq!(first, alone);
    assert_ne!(first, second);
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let row = logits(49_152, 21);
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    let norm = f64::from(max) + row.iter().map(|x| f64::from(x - max).exp()).sum::<f64>().ln();
    let s = Sampling {
        temperature: 0.3,
        top_k: 3,
        logit_bias: vec![(17, 100.0)],
        logprobs: Some(20),
        ..Sampling::default()
    };
    let sampled = Sampler::default().draw(&row, &at(&s, 0)).unwrap();
    assert_eq!(sampled.token, 17, "the bias decides the draw");
    let found = sampled.logprobs.unwrap();
    assert!((f64::from(found.own) - (f64::from(row[17]) - norm)).abs() < 1e-5);
    let mut sorted: Vec<(f32, Token)> = row.iter().copied().zip(0..).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    assert_eq!(found.top.len(), 20);
    for ((token, logprob), (logit, expected)) in found.top.iter().zip(&sorted) {
        assert_eq!(token, expected);
        assert!((f64::from(*logprob) - (f64::from(*logit) - norm)).abs() < 1e-5);
    }
    let all = Sampler::default().logprobs(&row[..3], 9, 255).unwrap();
    assert_eq!((all.own, all.top.len()), (f32::NEG_INFINITY, 3), "a small vocabulary; a token outside of it");
}

#[test]
fn penalties_are_those_of_ctrl_and_openai() {
    let history = History { prompt: Arc::from([0, 0, 1]), output: vec![2, 2, 3, 900] };
    let row = [2.0, -2.0, 4.0, 1.0, 0.5];
    let changed = |s: &Sampling| {
        let mut out = row;
        Seen::default().apply(&mut out, s, Some(&history));
        out
    };
    let ctrl = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    assert_eq!(changed(&ctrl), [1.0, -4.0, 2.0, 0.5, 0.5], "once a token, prompt and output");
    let openai = Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..Sampling::default() };
    assert_eq!(changed(&openai), [2.0, -2.0, 3.0, 0.25, 0.5], "the output alone");
    let bias = Sampling { logit_bias: vec![(4, 7.0), (5, 1.0), (0, f32::NAN)], ..Sampling::default() };
    assert_eq!(changed(&bias), [f32::NEG_INFINITY, -2.0, 4.0, 1.0, 7.5]);
    let draw = Draw { history: Some(history), ..at(&Sampling { frequency_penalty: 2.0, ..openai }, 0) };
    assert_eq!(Sampler::default().draw(&row, &draw).unwrap().token, 0, "4 − 4.5 falls behind 2");
}

#[test]
fn banning_every_token_leaves_the_favourite() {
    let s = Sampling {
        temperature: 1.0,
        logit_bias: (0..3).map(|t| (t, f32::NEG_INFINITY)).collect(),
        ..Sampling::default()
    };
    assert_eq!(token(&[1.0, 3.0, 2.0], &s, 0), 1);
    let but_one = Sampling { logit_bias: s.logit_bias[1..].to_vec(), ..s };
    assert_eq!(token(&[1.0, 3.0, 2.0], &but_one, 7), 0);
}

#[test]
fn the_exponential_is_accurate() {
    let mut worst = 0.0_f64;
    for i in 0..2_000_000_u32 {
        let x = -(f64::from(i) * 43e-6) as f32;
        let (found, right) = (f64::from(math::exp(x)), f64::from(x).exp());
        worst = worst.max((found - right).abs() / right);
    }
    assert!(worst < 2e-7, "{worst}");
    assert_eq!(math::exp(0.0), 1.0);
    for x in [-87.1, -1e9, f32::NEG_INFINITY, f32::NAN] {
        assert_eq!(math::exp(x), 0.0);
    }
}

#[test]
fn selections_equal_a_full_sort() {
    let mut rng = rng::Rng::new(77);
    for case in 0..300_u64 {
        let len = 1 + rng.below(900) as usize;
        // Few distinct values, so that ties matter.
        let values: Vec<f32> = (0..len).map(|_| rng.below(12) as f32 - 6.0).collect();
        let mut sorted: Vec<(f32, Token)> = values.iter().copied().zip(0..).collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let n = rng.below(len as u64 + 3) as usize;
        let (mut maxima, mut found) = (Maxima::default(), Vec::new());
        maxima.scan(&values);
        select::top(&values, &maxima, n, &mut found);
        assert_eq!(found, sorted[..n.min(len)], "case {case}");

        let weighed = values.iter().zip(0..).map(|(v, token)| Weighed { weight: (*v + 6.0) as u64, token });
        let mut weighed: Vec<Weighed> = weighed.collect();
        let total: u64 = weighed.iter().map(|w| w.weight).sum();
        let mass = 1 + rng.below(total.max(1));
        let mut right = weighed.clone();
        right.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.token.cmp(&b.token)));
        let mut sum = 0;
        let boundary = right.iter().position(|w| {
            sum += w.weight;
            sum >= mass
        });
        let boundary = boundary.unwrap_or(right.len() - 1);
        assert_eq!(select::nucleus(&mut weighed, mass), right[boundary], "case {case}");
        assert!(right.iter().enumerate().all(|(i, w)| w.reaches(right[boundary]) == (i <= boundary)));
    }
}
