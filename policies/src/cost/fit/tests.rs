use super::*;
use crate::rng::Rng;

const REAL: Affine = Affine {
    step_overhead: Span(3_400_000),
    prefill_per_token: Span(1_200_000),
    decode_per_sequence: Span(2_000_000),
    attention_per_token: Span(900),
};

/// An engine with kernels for few rows and others for many.
fn real() -> StepCosts {
    let ms = |rows, micros| (rows, Span::from_micros(micros));
    let table = [ms(1, 9000), ms(4, 11_000), ms(6, 19_000), ms(16, 30_000), ms(512, 700_000)];
    let (per_slice, attention_decode, attention_prefill) = (Span(400_000), Span(1900), Span(600));
    StepCosts::new(&table, SlicePrices { per_slice, attention_decode, attention_prefill }).unwrap()
}

fn measured(cost: CostModel, noise: f64) -> Vec<Measured> {
    let mut rng = Rng::new(7);
    let mut works: Vec<Vec<Work>> = Vec::new();
    for start in [0, 300, 900] {
        works.extend([16, 60, 64, 128, 180, 512].map(|tokens| vec![Work { start, tokens }]));
        works.extend([1, 2, 3, 4, 6, 8, 12, 16].map(|n| vec![Work { start, tokens: 1 }; n]));
        let decodes = [Work { start, tokens: 1 }; 3];
        works.extend([29, 107].map(|tokens| [&decodes[..], &[Work { start: 0, tokens }]].concat()));
    }
    let measured = |work: Vec<Work>| {
        let took = cost.step(work.iter().copied());
        let factor = 1.0 + noise * (2.0 * rng.unit() - 1.0);
        Measured { work, took: Span((took.0 as f64 * factor) as u64) }
    };
    works.into_iter().map(measured).collect()
}

fn close(found: Span, real: Span, share: f64) -> bool {
    (found.0 as f64 - real.0 as f64).abs() <= share * real.0 as f64
}

#[test]
fn prices_are_found_from_steps_that_they_made() {
    let steps = measured(CostModel::Affine(REAL), 0.0);
    let found = affine(&steps).unwrap();
    assert!(Residual::of(&CostModel::Affine(found), &steps).unwrap().p90 < 1e-3, "{found:?}");
    assert!(close(found.prefill_per_token, REAL.prefill_per_token, 0.01), "{found:?}");
    assert!(close(found.attention_per_token, REAL.attention_per_token, 0.02), "{found:?}");
}

#[test]
fn a_table_is_found_from_steps_that_it_made() {
    let steps = measured(CostModel::Steps(real()), 0.0);
    let found = super::steps(&steps).unwrap();
    let residual = Residual::of(&CostModel::Steps(found), &steps).unwrap();
    assert!(residual.p90 < 0.01 && (residual.sum - 1.0).abs() < 0.01, "{residual:?} of {found:?}");
    assert!(close(found.prices().attention_decode, real().prices().attention_decode, 0.05), "{found:?}");
    // What prices cannot say.
    let coarse = Residual::of(&CostModel::Affine(affine(&steps).unwrap()), &steps).unwrap();
    assert!(coarse.p90 > 10.0 * residual.p90, "{coarse:?}");
}

#[test]
fn noise_and_a_few_disturbed_steps_do_little() {
    for cost in [CostModel::Affine(REAL), CostModel::Steps(real())] {
        let mut steps = measured(cost, 0.05);
        steps[3].took = Span(steps[3].took.0 * 5);
        steps[17].took = Span(steps[17].took.0 * 3);
        let found = match cost {
            CostModel::Affine(_) => CostModel::Affine(affine(&steps).unwrap()),
            _ => CostModel::Steps(super::steps(&steps).unwrap()),
        };
        let undisturbed = measured(cost, 0.0);
        let residual = Residual::of(&found, &undisturbed).unwrap();
        assert!(residual.p90 < 0.06, "{residual:?} of {found:?}");
    }
}

#[test]
fn no_price_is_negative_and_more_rows_never_take_less() {
    // Longer contexts and more rows are faster here, which no price explains.
    let step = |start: u32, tokens: u32| Measured {
        work: vec![Work { start, tokens }],
        took: Span(2_000_000 - u64::from(tokens) * 1000 - u64::from(start) * 100),
    };
    let steps: Vec<Measured> =
        [1, 1, 8, 64].into_iter().flat_map(|n| [0, 500, 1000].map(|start| step(start, n))).collect();
    let found = affine(&steps).unwrap();
    assert_eq!((found.attention_per_token, found.prefill_per_token), (Span::ZERO, Span::ZERO));
    let found = super::steps(&steps).unwrap();
    assert_eq!(found.prices().attention_decode, Span::ZERO);
    assert!(found.table().zip(found.table().skip(1)).all(|(a, b)| a.1 <= b.1), "{found:?}");
}

#[test]
fn steps_that_do_not_tell_are_not_explained() {
    assert_eq!((affine(&[]), super::steps(&[])), (None, None));
    let one = Measured { work: vec![Work { start: 0, tokens: 8 }], took: Span(1000) };
    let all = vec![one; 20];
    assert_eq!((affine(&all), super::steps(&all)), (None, None));
    assert_eq!(Residual::of(&CostModel::Affine(REAL), &[]), None);
}

#[test]
fn kinds() {
    let (prompt, decode) = (Work { start: 0, tokens: 9 }, Work { start: 4, tokens: 1 });
    assert_eq!(Kind::of(&[prompt, prompt]), Kind::Prefill);
    assert_eq!(Kind::of(&[decode]), Kind::Decode);
    assert_eq!(Kind::of(&[decode, prompt]), Kind::Mixed);
}
