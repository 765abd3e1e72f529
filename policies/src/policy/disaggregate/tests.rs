use super::*;
use crate::cost::{Hardware, HardwareProfile, ModelShape};
use crate::kv::handoff::HandoffConfig;
use crate::kv::{Fingerprint, PageLayout};
use crate::placement::{KvPeer, WorkerInfo};
use crate::policy::testing;
use crate::time::Span;

const T: Time = Time::ZERO;
const UNIFIED: WorkerRole = WorkerRole::Unified;
const PREFILL: WorkerRole = WorkerRole::Prefill;
const DECODE: WorkerRole = WorkerRole::Decode;

fn kv() -> KvPeer {
    let layout = PageLayout { page_tokens: 16, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2 };
    KvPeer { address: "h:1".to_owned(), fingerprint: Fingerprint([7; 32]), layout }
}

fn with(row: CandidateRow, change: impl FnOnce(&mut WorkerInfo)) -> CandidateRow {
    let mut info = WorkerInfo::clone(&row.info);
    change(&mut info);
    CandidateRow { info: Arc::new(info), ..row }
}

/// An idle worker of this role.
fn row(n: u64, role: WorkerRole) -> CandidateRow {
    with(testing::row(n), |info| {
        info.role = role;
        info.kv = Some(kv());
        info.shape = ModelShape::named("smollm2-135m");
    })
}

fn query(prompt: u32, rows: Vec<CandidateRow>, prefill: Vec<CandidateRow>) -> PolicyQuery {
    let prefill_known = prefill.len() as u32;
    PolicyQuery { prefill: prefill.into(), prefill_known, ..testing::query(prompt, None, rows) }
}

fn request(query: &PolicyQuery, change: impl FnOnce(&mut PlaceRequest)) -> PolicyQuery {
    let mut request = PlaceRequest::clone(&query.request);
    change(&mut request);
    PolicyQuery { request: Arc::new(request), ..query.clone() }
}

fn options(fallback: PrefillFallback) -> DisaggregateOptions {
    DisaggregateOptions {
        min_remote_tokens: Some(512),
        effective_tokens: Some(2048),
        prefill_busy_tokens: Some(4096),
        max_outstanding: Some(8),
        fallback,
        ..DisaggregateOptions::default()
    }
}

fn opinion(fallback: PrefillFallback, query: &PolicyQuery) -> Opinion {
    let opinion = Disaggregate::new(options(fallback)).opinion(T, query);
    // It says nothing on where the request goes.
    assert!(opinion.exclude.is_empty() && opinion.pin.is_none() && opinion.costs.is_empty());
    let all: Vec<&WorkerId> = opinion.verdicts.iter().map(|v| &v.worker).collect();
    assert_eq!(all, query.rows.iter().map(|r| &r.worker).collect::<Vec<_>>(), "one for each, in their order");
    opinion
}

/// The verdict on the first worker.
fn verdict(fallback: PrefillFallback, query: &PolicyQuery) -> Verdict {
    opinion(fallback, query).verdicts.swap_remove(0)
}

/// The names of those that could compute the prompt, best first; none: nobody else does.
fn pool(verdict: &Verdict) -> Vec<&str> {
    match &verdict.prompt {
        Prompt::By { pool, .. } => pool.iter().map(|(id, _)| id.node.as_str()).collect(),
        Prompt::Here | Prompt::Nobody => Vec::new(),
    }
}

fn code(verdict: &Verdict) -> &str {
    verdict.why.split(':').next().unwrap()
}

#[test]
fn a_prompt_is_sent_from_where_it_is_long_enough() {
    for (prompt, hit, action, why) in [
        (511, 0, "local", "short"),
        (512, 0, "remote", "512 of 512 prompt tokens are not held by w0"),
        (512, 1, "local", "cached"),
        (600, 88, "remote", "512 of 600 prompt tokens are not held by w0"),
        (600, 89, "local", "cached"),
        (1000, 300, "remote", "700 of 1000 prompt tokens are not held by w0"),
        (1000, 301, "local", "ratio"),
        (10_000, 7952, "remote", "2048 of 10000 prompt tokens are not held by w0"),
        (10_000, 7953, "local", "ratio"),
        (10_000, 9489, "local", "cached"),
        (0, 0, "local", "short"),
    ] {
        for role in [DECODE, UNIFIED] {
            let rows = vec![CandidateRow { hit_tokens: hit, ..row(0, role) }];
            let said = verdict(PrefillFallback::Unified, &query(prompt, rows, vec![row(9, PREFILL)]));
            let why_said = if action == "remote" { said.why.split('#').next().unwrap() } else { code(&said) };
            assert_eq!((said.action, why_said), (action, why), "{prompt} {hit}");
            assert_eq!(pool(&said), if action == "remote" { vec!["w9"] } else { vec![] });
            assert_eq!(said.fallback, None);
            assert_eq!(said.would, if action == "remote" { "would_disaggregate" } else { "would_local" });
        }
    }
}

#[test]
fn the_verdict_follows_what_each_worker_holds() {
    let rows = vec![row(0, DECODE), CandidateRow { hit_tokens: 900, ..row(1, DECODE) }, row(2, UNIFIED)];
    let said = opinion(PrefillFallback::Unified, &query(1000, rows, vec![row(9, PREFILL)]));
    let actions: Vec<&str> = said.verdicts.iter().map(|v| v.action).collect();
    assert_eq!(actions, ["remote", "local", "remote"]);
    assert_eq!(said.numbers, [("prefill-workers", 1.0), ("remote", 2.0)]);
}

#[test]
fn a_busy_pool_is_left_alone_without_any_fallback() {
    let busy = |tokens| CandidateRow { prefill_tokens: tokens, ..row(9, PREFILL) };
    for fallback in [PrefillFallback::Unified, PrefillFallback::Decode, PrefillFallback::None] {
        let at = |tokens| {
            verdict(fallback, &query(600, vec![row(0, DECODE), row(1, UNIFIED)], vec![busy(tokens)]))
        };
        assert_eq!(at(4096).action, "remote");
        let said = at(4097);
        assert_eq!((said.action, code(&said), said.fallback), ("local", "prefill_busy", None));
        assert_eq!(said.prompt, Prompt::Here);
    }
    // One that is not busy is enough, though it holds less of the prompt.
    let calm = CandidateRow { prefill_tokens: 4000, ..row(8, PREFILL) };
    let holds = CandidateRow { hit_tokens: 599, ..busy(4097) };
    assert_eq!(
        pool(&verdict(PrefillFallback::None, &query(600, vec![row(0, DECODE)], vec![calm, holds]))),
        ["w8"]
    );
}

/// Its steps are long; what a prefill worker can compute does not make them longer.
#[test]
fn a_full_worker_computes_only_what_is_not_worth_sending() {
    let decode = |n, used, hit_tokens| CandidateRow {
        hit_tokens,
        pages_used: used,
        pages_total: 100,
        ..row(n, DECODE)
    };
    let busy = CandidateRow { prefill_tokens: 5000, ..row(9, PREFILL) };
    let actions = |prompt, rows, prefill| {
        let said = opinion(PrefillFallback::Unified, &query(prompt, rows, prefill));
        said.verdicts.iter().map(|v| v.action).collect::<Vec<_>>()
    };
    let rows = |hit| vec![decode(0, 80, hit), decode(1, 81, hit), decode(2, 10, hit)];
    let calm = vec![row(9, PREFILL)];
    assert_eq!(actions(1000, rows(301), calm.clone()), ["local", "remote", "local"], "cheap by its share");
    assert_eq!(actions(1000, rows(0), vec![busy]), ["local", "remote", "local"], "prefill workers are busy");
    assert_eq!(actions(1000, rows(900), calm), ["local"; 3], "sooner computed than sent");
    // Who has said nothing of its pages is not full.
    assert_eq!(
        actions(1000, vec![CandidateRow { hit_tokens: 301, ..row(0, DECODE) }], vec![row(9, PREFILL)]),
        ["local"]
    );
}

#[test]
fn a_worker_computes_so_many_prompts_for_others_at_once() {
    let full = |handoffs, requests| CandidateRow { handoffs, requests, ..row(9, PREFILL) };
    for (handoffs, requests, action, fallback) in [
        (7, 7, "remote", None),
        (8, 8, "local", Some("prefill_full")),
        (0, 99, "remote", None),
        (0, 100, "local", Some("prefill_full")),
    ] {
        let said = verdict(
            PrefillFallback::Decode,
            &query(600, vec![row(0, DECODE)], vec![full(handoffs, requests)]),
        );
        assert_eq!((said.action, said.fallback), (action, fallback), "{handoffs} {requests}");
    }
}

#[test]
fn the_one_that_is_soonest_done_comes_first() {
    let at = |n, prefill_tokens, hit_tokens, last_chosen| CandidateRow {
        prefill_tokens,
        hit_tokens,
        last_chosen,
        ..row(n, PREFILL)
    };
    let workers =
        vec![at(5, 500, 0, 0), at(6, 900, 590, 0), at(7, 0, 100, 4), at(8, 0, 100, 3), at(9, 0, 0, 1)];
    let said = verdict(PrefillFallback::Unified, &query(600, vec![row(0, DECODE)], workers));
    assert_eq!(pool(&said), ["w8", "w7", "w9", "w6", "w5"]);
    let Prompt::By { pool, limit, strict } = said.prompt else { panic!("{said:?}") };
    let uncached: Vec<u64> = pool.iter().map(|(_, uncached)| *uncached).collect();
    assert_eq!((uncached, limit, strict), (vec![500, 500, 600, 10, 600], 8, false));
}

#[test]
fn for_want_of_a_prefill_worker_the_fallback_counts() {
    use PrefillFallback as F;
    let full = CandidateRow { handoffs: 8, ..row(9, PREFILL) };
    let lacks: [(&str, Vec<CandidateRow>); 3] = [
        ("no_prefill_worker", vec![]),
        ("prefill_full", vec![full]),
        ("incompatible", vec![with(row(9, PREFILL), |info| info.kv = None)]),
    ];
    for (reason, prefill) in lacks {
        // Who may get the request, and what becomes of its prompt under each fallback.
        for (rows, unified, decode, none) in [
            (vec![row(0, DECODE), row(1, UNIFIED)], "w1", "local", "refused"),
            (vec![row(0, DECODE), row(1, DECODE)], "local", "local", "refused"),
            (vec![row(0, UNIFIED), row(1, UNIFIED)], "local", "local", "local"),
        ] {
            for (fallback, expected) in [(F::Unified, unified), (F::Decode, decode), (F::None, none)] {
                let query = query(600, rows.clone(), prefill.clone());
                let said = verdict(fallback, &query);
                let (action, there): (_, &[&str]) = match expected {
                    "w1" => ("remote", &["w1"]),
                    other => (other, &[]),
                };
                assert_eq!(
                    (said.action, &pool(&said)[..]),
                    (action, there),
                    "{reason} {fallback:?} {said:?}"
                );
                assert_eq!((code(&said), said.fallback), (reason, Some(reason)), "{fallback:?}");
                assert_eq!(said.prompt == Prompt::Nobody, expected == "refused");
                // What is under way is not given up.
                let again = verdict(fallback, &request(&query, |r| r.attempt = config::ids::Attempt(1)));
                assert_ne!(again.prompt, Prompt::Nobody, "{reason}");
            }
        }
    }
}

#[test]
fn a_unified_worker_helps_where_it_can() {
    let decode = row(0, DECODE);
    for (name, unified, helps) in [
        ("idle", row(1, UNIFIED), true),
        ("its last place", CandidateRow { requests: 99, ..row(1, UNIFIED) }, true),
        ("full", CandidateRow { requests: 100, ..row(1, UNIFIED) }, false),
        ("enough prompts", CandidateRow { handoffs: 8, ..row(1, UNIFIED) }, false),
        ("busy", CandidateRow { prefill_tokens: 4097, ..row(1, UNIFIED) }, false),
        ("no pages", with(row(1, UNIFIED), |info| info.kv = None), false),
        ("a small window", with(row(1, UNIFIED), |info| info.max_context = 600), false),
        ("a window", with(row(1, UNIFIED), |info| info.max_context = 601), true),
    ] {
        let said =
            verdict(PrefillFallback::Unified, &query(600, vec![decode.clone(), unified.clone()], vec![]));
        assert_eq!(said.action == "remote", helps, "{name}");
        let query = query(600, vec![decode.clone(), unified], vec![]);
        let failed = request(&query, |r| r.avoid = vec![testing::row(1).worker]);
        assert_eq!(verdict(PrefillFallback::Unified, &failed).action, "local", "{name}, but it has failed");
    }
}

#[test]
fn b53_pages_that_differ_in_anything_are_not_exchanged_and_the_field_is_named() {
    type Change = fn(&mut KvPeer);
    let cases: [(Change, &str); 7] = [
        (|k| k.layout.page_tokens = 32, "page-tokens is 32 at w9#1 and 16 at w0#1"),
        (|k| k.layout.layers = 31, "layers is 31 at w9#1 and 30 at w0#1"),
        (|k| k.layout.kv_heads = 1, "kv-heads is 1 at w9#1 and 3 at w0#1"),
        (|k| k.layout.head_dim = 65, "head-dim is 65 at w9#1 and 64 at w0#1"),
        (|k| k.layout.element_bytes = 4, "bytes of a KV element is 4 at w9#1 and 2 at w0#1"),
        (|k| k.layout.page_tokens = 0, "page-tokens is 0 at w9#1"),
        (
            |k| k.fingerprint = Fingerprint([8; 32]),
            "the fingerprint (weights, quantisation, dtype, RoPE settings) of w9#1",
        ),
    ];
    for (change, named) in cases {
        let other = with(row(9, PREFILL), |info| change(info.kv.as_mut().unwrap()));
        assert!(!other.info.pairs_with(&row(0, DECODE).info));
        let rows = vec![row(0, DECODE), row(1, DECODE)];
        let said = opinion(PrefillFallback::Unified, &query(600, rows, vec![other.clone()]));
        assert_eq!((said.verdicts[0].action, code(&said.verdicts[0])), ("local", "incompatible"));
        assert!(said.verdicts[0].why.contains(named), "{}", said.verdicts[0].why);
        // Each is told its own.
        assert!(!said.verdicts[1].why.contains("w0"), "{}", said.verdicts[1].why);
        // A worker that matches is taken all the same.
        let both = vec![other, row(8, PREFILL)];
        assert_eq!(pool(&verdict(PrefillFallback::None, &query(600, vec![row(0, DECODE)], both))), ["w8"]);
    }
    let at = |change: fn(&mut WorkerInfo), prefill| {
        verdict(PrefillFallback::Unified, &query(600, vec![with(row(0, DECODE), change)], vec![prefill])).why
    };
    assert!(at(|_| {}, with(row(9, PREFILL), |info| info.kv = None)).contains("w9#1 exchanges no KV pages"));
    assert!(at(|info| info.kv = None, row(9, PREFILL)).contains("w0#1 exchanges no KV pages"));
    // The address does not matter, nor does the machine.
    let elsewhere = with(row(9, PREFILL), |info| {
        info.kv.as_mut().unwrap().address = "other:9".to_owned();
        info.hardware.name = "h100".to_owned();
    });
    assert_eq!(
        pool(&verdict(PrefillFallback::Unified, &query(600, vec![row(0, DECODE)], vec![elsewhere]))),
        ["w9"]
    );
}

#[test]
fn each_kind_of_page_has_its_prefill_workers() {
    let large = |row| with(row, |info| info.kv.as_mut().unwrap().layout.page_tokens = 32);
    let rows =
        vec![row(0, DECODE), large(row(1, DECODE)), row(2, UNIFIED), row(3, DECODE), large(row(4, UNIFIED))];
    let said =
        opinion(PrefillFallback::Unified, &query(600, rows, vec![row(8, PREFILL), large(row(9, PREFILL))]));
    let pools: Vec<Vec<&str>> = said.verdicts.iter().map(pool).collect();
    assert_eq!(pools, [["w8"], ["w9"], ["w8"], ["w8"], ["w9"]]);
}

#[test]
fn why_no_prefill_worker_is_left_is_told_apart() {
    let none = |known| PolicyQuery { prefill_known: known, ..query(600, vec![row(0, DECODE)], vec![]) };
    let fallback = |query: &PolicyQuery| verdict(PrefillFallback::Decode, query).fallback;
    assert_eq!(fallback(&none(0)), Some("no_prefill_worker"));
    assert_eq!(fallback(&none(2)), Some("window"));
    let failed = request(&none(2), |r| r.avoid = vec![testing::row(9).worker]);
    assert_eq!(fallback(&failed), Some("prefill_failed"));
}

#[test]
fn a_prefill_worker_that_takes_whole_requests_computes_their_prompts() {
    for fallback in [PrefillFallback::Unified, PrefillFallback::Decode, PrefillFallback::None] {
        let said = verdict(fallback, &query(6000, vec![row(9, PREFILL)], vec![]));
        assert_eq!(
            (said.prompt.clone(), code(&said), said.fallback),
            (Prompt::Here, "no_decode_worker", None)
        );
    }
}

#[test]
fn some_requests_cannot_be_handed_over() {
    let all = query(600, vec![row(0, DECODE)], vec![row(9, PREFILL)]);
    type Change = fn(&mut PlaceRequest);
    let cases: [(Change, bool); 6] = [
        (|_| {}, true),
        (|r| r.choices = 3, true),
        (|r| r.resumed = true, true),
        (|r| (r.resumed, r.choices) = (true, 2), false),
        (|r| r.prompt_logprobs = true, false),
        (|r| (r.prompt_logprobs, r.choices) = (true, 2), false),
    ];
    for (change, remote) in cases {
        let query = request(&all, change);
        assert_eq!(transferable(&query.request).is_ok(), remote);
        let said = verdict(PrefillFallback::None, &query);
        assert_eq!((said.action, said.fallback), (if remote { "remote" } else { "local" }, None));
        assert!(remote || code(&said) == "not_transferable");
    }
}

#[test]
fn the_times_are_those_of_the_cost_model() {
    let shape = ModelShape::named("smollm2-135m").unwrap();
    let (cpu, slow) = (
        Hardware::named("cpu").unwrap(),
        Hardware { link: 1_000_000_000, ..Hardware::named("h100").unwrap() },
    );
    let decode = CandidateRow { hit_tokens: 40, requests: 5, handoffs: 1, ..row(0, DECODE) };
    let machine = HardwareProfile { name: "slow link".to_owned(), figures: slow };
    let prefill = with(row(9, PREFILL), |info| info.hardware = machine);
    let prefill = CandidateRow { hit_tokens: 100, prefill_tokens: 300, ..prefill };
    let said = verdict(PrefillFallback::Unified, &query(1000, vec![decode.clone()], vec![prefill.clone()]));
    let ms = |span: Option<Span>| span.unwrap().0 as f64 / 1e6;
    let local = ms(cpu.prefill(&shape, 40, 960));
    // 63 pages hold the prompt, of which two full ones are there.
    let bytes = 61.0 * 2.0 * 30.0 * 16.0 * 3.0 * 64.0 * 2.0;
    let expected = [
        ("uncached-tokens", 960.0),
        ("prompt-tokens", 1000.0),
        ("hit-tokens", 40.0),
        ("prefill-queue-tokens", 300.0),
        ("prefill-queue-ms", ms(slow.prefill(&shape, 0, 300))),
        ("prefill-ms", ms(slow.prefill(&shape, 100, 900))),
        ("local-prefill-ms", local),
        ("transfer-bytes", bytes),
        ("transfer-ms", (bytes / 1e9 * 1e3) + 0.05),
        ("decode-stall-ms", local * 4.0),
    ];
    assert_eq!(said.numbers.len(), expected.len(), "{:?}", said.numbers);
    for ((name, value), (expected_name, expected)) in said.numbers.iter().zip(expected) {
        assert_eq!(*name, expected_name);
        assert!((value - expected).abs() <= 1e-5 * expected.max(1.0), "{name} is {value}, not {expected}");
    }
    // Without the model's size there are no times of computing, but the pages have their size.
    let unknown = with(decode, |info| info.shape = None);
    let prefill = with(prefill, |info| info.shape = None);
    let said = verdict(PrefillFallback::Unified, &query(1000, vec![unknown], vec![prefill]));
    let names: Vec<&str> = said.numbers.iter().map(|(name, _)| *name).skip(3).collect();
    assert_eq!(names, ["prefill-queue-tokens", "transfer-bytes", "transfer-ms"]);
}

#[test]
fn what_a_worker_says_of_itself_does_no_harm() {
    let absurd = |row| {
        with(row, |info| {
            let layout = PageLayout {
                page_tokens: 1,
                layers: u32::MAX,
                kv_heads: u32::MAX,
                head_dim: u32::MAX,
                element_bytes: u32::MAX,
            };
            info.kv.as_mut().unwrap().layout = layout;
            let shape = info.shape.as_mut().unwrap();
            (shape.layers, shape.params, shape.weight_bytes) = (u32::MAX, u64::MAX, u64::MAX);
            let figures = &mut info.hardware.figures;
            (figures.flops, figures.memory, figures.link) = (0, 1, 1);
            (figures.step_overhead, figures.link_latency) = (Span(u64::MAX), Span(u64::MAX));
        })
    };
    let prefill = CandidateRow { hit_tokens: u32::MAX, last_chosen: u64::MAX, ..absurd(row(9, PREFILL)) };
    let said =
        verdict(PrefillFallback::Unified, &query(u32::MAX, vec![absurd(row(0, DECODE))], vec![prefill]));
    assert_eq!(said.action, "remote");
    assert!(said.numbers.iter().all(|(_, value)| value.is_finite()), "{:?}", said.numbers);
}

#[test]
fn what_is_not_configured_follows_from_the_machine() {
    let on = |machine: &str, model: &str| {
        with(testing::row(1), |info| {
            let figures = Hardware::named(machine).unwrap();
            info.hardware = HardwareProfile { name: machine.to_owned(), figures };
            info.shape = ModelShape::named(model);
        })
    };
    let options = DisaggregateOptions::default();
    let of = |row: &CandidateRow| (options.min_remote(row), options.effective(row), options.busy(row));
    let (least, enough, busy) = of(&on("cpu", "smollm2-135m"));
    assert!((64..=256).contains(&least) && enough == 4 * least, "{least} {enough}");
    assert!((2_000..=6_000).contains(&busy), "{busy}");
    let (least, enough, busy) = of(&on("h200", "llama-3.1-8b"));
    assert_eq!((least, enough), (512, 2048), "no more than on any other machine");
    assert!((100_000..=400_000).contains(&busy), "{busy}");
    let (.., slower) = of(&on("l40s", "llama-3.1-8b"));
    assert!(slower < busy, "{slower}");
    assert_eq!(of(&on("zero", "llama-3.1-8b")), (512, 2048, u64::MAX));
    assert_eq!(of(&on("h200", "")), (512, 2048, PREFILL_BUSY_TOKENS), "nothing is known of the model");
    assert_eq!(options.outstanding(), u32::MAX);
    // What is configured counts, whatever the machine.
    let set = self::options(PrefillFallback::Unified);
    assert_eq!((set.min_remote(&on("cpu", "smollm2-135m")), set.outstanding()), (512, 8));
}

#[test]
fn options_are_those_of_the_table() {
    let table = DisaggregateConfig {
        min_remote_tokens: Some(1),
        effective_tokens: Some(2),
        effective_ratio: 0.5,
        prefill_busy_tokens: Some(3),
        decode_busy_threshold: 0.25,
        max_outstanding: Some(4),
        fallback: PrefillFallback::None,
        accept_within: config::Dur::from_secs(5),
        progress_within: config::Dur::from_secs(6),
        lease: config::Dur::from_secs(7),
        window_pages: 8,
        ..DisaggregateConfig::default()
    };
    let options = DisaggregateOptions {
        min_remote_tokens: Some(1),
        effective_tokens: Some(2),
        effective_ratio: 0.5,
        prefill_busy_tokens: Some(3),
        decode_busy_threshold: 0.25,
        max_outstanding: Some(4),
        fallback: PrefillFallback::None,
        rebalance: None,
    };
    assert_eq!(DisaggregateOptions::from(&table), options);
    let limits = HandoffConfig {
        accept_within: Span::from_secs(5),
        progress_within: Span::from_secs(6),
        lease: Span::from_secs(7),
        window_pages: 8,
        ..HandoffConfig::default()
    };
    assert_eq!(HandoffConfig::from(&table), limits);
    let mut policy = Disaggregate::default();
    assert_eq!(policy.name().as_str(), "disaggregate");
    policy.tick(T, &[], &mut Vec::new());
    policy.check().unwrap();
}
