//! Whole runs in which prompts are computed at other workers than answers: what that may not change, and that it leaves
//! nothing behind.

use config::{Dur, Mode, WorkerRole};
use proptest::prelude::*;
use sim::scenario::{Fault, FaultKind, Faults, Lengths, NodeClass};
use sim::{Run, Scenario, simulate};

#[path = "storms/weather.rs"]
mod weather;

fn class(role: WorkerRole, count: u32) -> NodeClass {
    NodeClass { role, count, ..NodeClass::default() }
}

/// Prompts of which most are worth sending, and `[[node]]` of both kinds.
fn scenario(prefill: u32, decode: u32) -> Scenario {
    let mut scenario = Scenario { seed: 5, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.groups, w.shared_prefix) = (120, 40.0, 4, 100);
    w.prompt = Lengths::Uniform { min: 100, max: 2000 };
    w.output = Lengths::Exponential { mean: 60, max: 200 };
    let c = &mut scenario.cluster;
    (c.pages, c.max_context) = (2000, 4096);
    c.cluster_policies = vec!["disaggregate".into()];
    scenario.policy.disaggregate.min_remote_tokens = Some(256);
    scenario.policy.disaggregate.effective_tokens = Some(256);
    scenario.nodes = vec![class(WorkerRole::Prefill, prefill), class(WorkerRole::Decode, decode)];
    scenario
}

/// The same workload on workers that do everything themselves.
fn unified(scenario: &Scenario) -> Scenario {
    let mut unified = scenario.clone();
    unified.nodes = vec![class(WorkerRole::Unified, scenario.workers())];
    unified.cluster.cluster_policies.clear();
    unified.faults.clear();
    unified
}

fn assert_same_answers(run: &Run, other: &Run) {
    assert_eq!(run.report.finished, run.report.requests, "{:?}", run.report);
    assert_eq!(run.answers, other.answers);
}

#[test]
fn answers_are_those_of_unified_workers() {
    let scenario = scenario(5, 3);
    let (split, whole) = (simulate(&scenario).unwrap(), simulate(&unified(&scenario)).unwrap());
    assert_same_answers(&split, &whole);
    assert!(split.handoffs.committed() > 80, "{:?}", split.handoffs);
    assert_eq!(split.handoffs.outcomes.len(), 1, "{:?}", split.handoffs);
    assert!(split.handoffs.bytes > 0 && whole.handoffs.outcomes.is_empty());
    // The report says the same, and who did what.
    let (report, handoffs) = (&split.report, &split.handoffs);
    let transfers = &report.transfers;
    assert_eq!((transfers.committed, transfers.bytes), (handoffs.committed(), handoffs.bytes));
    let roles: Vec<_> = report.roles.iter().map(|r| (r.role, r.workers)).collect();
    assert_eq!(roles, [("prefill", 5), ("decode", 3)]);
    assert!(report.roles[0].prefilled_share > 0.7 && report.roles[1].drawn_share > 0.7, "{:?}", report.roles);
    let table = report.to_table();
    assert!(
        table.contains(&format!("{} committed; {} pages", transfers.committed, transfers.pages)),
        "{table}"
    );
    assert!(table.contains("\nchecks                every\n") && table.contains("\nprefill "), "{table}");
}

#[test]
fn the_same_scenario_takes_the_same_course() {
    let run = || simulate(&scenario(2, 2)).unwrap().report;
    assert_eq!(run(), run());
}

#[test]
fn streams_do_not_stall_behind_prompts() {
    let mut scenario = scenario(2, 2);
    (scenario.workload.rate, scenario.cluster.max_batch_tokens) = (20.0, 2048);
    scenario.workload.prompt = Lengths::Uniform { min: 1000, max: 3000 };
    let (split, whole) = (simulate(&scenario).unwrap(), simulate(&unified(&scenario)).unwrap());
    let (split, whole) = (split.report.inter_token_ms.p99, whole.report.inter_token_ms.p99);
    assert!(split < 0.7 * whole, "p99 inter-token latency {split} ms, {whole} ms unified");
}

/// A worker that dies while its pages are under way costs time and nothing else.
#[test]
fn a_crash_in_the_middle_of_transfers_changes_no_token() {
    let (mut failed, mut again) = (0, 0);
    for seed in 0..4 {
        let mut scenario = Scenario { seed, ..scenario(2, 2) };
        scenario.workload.rate = 60.0;
        // A link so slow that pages are always under way.
        scenario.hardware = sim::scenario::Machine::Figures(config::HardwareConfig {
            name: Some("h100".into()),
            link: Some(config::Size(400_000_000)),
            ..Default::default()
        });
        for (worker, at) in [(0, 700), (2, 1100), (1, 1500), (3, 1600), (0, 1900)] {
            scenario.faults.push(Fault {
                at: Dur::from_millis(at),
                worker,
                kind: FaultKind::Crash,
                back_after: Some(Dur::from_millis(300)),
                ..Fault::default()
            });
        }
        let run = simulate(&scenario).unwrap();
        assert_same_answers(&run, &simulate(&unified(&scenario)).unwrap());
        failed += run.handoffs.outcomes.get("link_lost").copied().unwrap_or(0);
        again += run.report.retries;
    }
    assert!(failed > 5 && again > 5, "the crashes hit nothing: {failed} transfers, {again} placed again");
}

/// Nodes of every role die and are cut off, links break and are slow, each seed in its own way: nothing is left behind
/// ([`simulate`] looks), and every answer is the true one, or the beginning of it.
#[test]
fn storms_hold_over_prefill_and_decode_workers() {
    let (mut committed, mut lost, mut finished, mut retries) = (0, 0, 0, 0);
    for seed in 0..30 {
        let mut scenario = Scenario { seed, ..scenario(2, 2) };
        (scenario.workload.requests, scenario.workload.rate) = (60, 30.0);
        scenario.workload.output = Lengths::Exponential { mean: 30, max: 100 };
        scenario.workload.deadline = Dur::from_secs(20);
        weather::storm(&mut scenario);
        let run = simulate(&scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let whole = simulate(&Scenario { random_faults: Faults::default(), ..unified(&scenario) }).unwrap();
        assert_eq!((run.report.requests, whole.report.finished), (60, 60), "seed {seed}");
        for (id, answers) in &run.answers {
            for (got, all) in answers.iter().zip(&whole.answers[id]) {
                assert!(all.starts_with(got), "seed {seed}: {id}");
            }
        }
        committed += run.handoffs.committed();
        lost += run.handoffs.outcomes.get("link_lost").copied().unwrap_or(0);
        finished += run.report.finished;
        retries += run.report.retries;
    }
    assert!(committed > 60 && lost > 60, "{committed} transfers came to their end, {lost} lost their links");
    assert!(finished > 900 && retries > 60, "{finished} requests finished, {retries} placed again");
}

/// Two machines of which one has half the bandwidth: transfers that meet share it.
#[test]
fn transfers_share_the_links_of_their_machines() {
    let ttft = |link: u64| {
        let mut scenario = scenario(2, 1);
        scenario.workload.prompt = Lengths::Fixed(1500);
        scenario.nodes[1].hardware = Some(sim::scenario::Machine::Figures(config::HardwareConfig {
            name: Some("h100".into()),
            link: Some(config::Size(link)),
            ..Default::default()
        }));
        let run = simulate(&scenario).unwrap();
        assert!(run.handoffs.committed() > 20, "{:?}", run.handoffs);
        assert_eq!(run.report.finished, 120);
        run.report.ttft_ms.mean
    };
    let (wide, narrow) = (ttft(50_000_000_000), ttft(8_000_000_000));
    assert!(narrow > wide + 5.0, "mean TTFT {wide} ms, {narrow} ms over a narrow link of the decode worker");
}

#[test]
fn without_prefill_workers_prompts_are_computed_where_they_are_answered() {
    let mut scenario = scenario(1, 2);
    // All that compute prompts are gone for good before the first request comes.
    scenario.faults.push(Fault {
        at: Dur::from_millis(1),
        worker: 0,
        kind: FaultKind::Crash,
        back_after: None,
        ..Fault::default()
    });
    scenario.cluster.detect = Dur::from_millis(1);
    let run = simulate(&scenario).unwrap();
    assert_same_answers(&run, &simulate(&unified(&scenario)).unwrap());
    assert_eq!(run.handoffs.committed(), 0);
}

#[test]
fn shadow_changes_no_placement() {
    let mut scenario = scenario(2, 2);
    scenario.policy.disaggregate.mode = Mode::Shadow;
    let shadow = simulate(&scenario).unwrap();
    scenario.cluster.cluster_policies.clear();
    let without = simulate(&scenario).unwrap();
    assert_eq!((&shadow.answers, &shadow.prefilled), (&without.answers, &without.prefilled));
    assert!(shadow.handoffs.outcomes.is_empty());
    assert_eq!(shadow.report.ttft_ms, without.report.ttft_ms);
}

/// Where prefill workers are the bottleneck, one that may is switched; what it has goes on to its end.
#[test]
fn a_policy_changes_roles() {
    let mut scenario = scenario(1, 4);
    scenario.nodes[1].role_switch = true;
    scenario.workload.output = Lengths::Fixed(2);
    (scenario.workload.rate, scenario.workload.requests) = (120.0, 600);
    let d = &mut scenario.policy.disaggregate;
    (d.rebalance, d.rebalance_after, d.prefill_busy_tokens) = (true, Dur::from_millis(300), Some(1_000_000));
    let run = simulate(&scenario).unwrap();
    assert_same_answers(&run, &simulate(&unified(&scenario)).unwrap());
    let prefill = |run: &Run| run.roles.values().filter(|role| **role == WorkerRole::Prefill).count();
    assert_eq!(prefill(&run), 2, "{:?}", run.roles);
    scenario.policy.disaggregate.mode = Mode::Shadow;
    assert_eq!(prefill(&simulate(&scenario).unwrap()), 1);
    scenario.policy.disaggregate.mode = Mode::Prod;
    scenario.nodes[1].role_switch = false;
    assert_eq!(prefill(&simulate(&scenario).unwrap()), 1);
}

#[test]
fn kinds_of_workers_are_as_they_say() {
    let text = r#"
        model = { name = "llama-3.1-8b", layers = 16, kv-dtype = "fp8" }
        [cluster]
        pages = 500
        [[node]]
        name = "big"
        count = 2
        role = "prefill"
        hardware = "h200"
        max-batch-tokens = 4096
        [[node]]
        count = 3
        role = "decode"
        pages = 700
        hardware = { name = "h100", link = "64GB" }
    "#;
    let scenario = Scenario::from_toml(text, "here").unwrap();
    scenario.validate().unwrap();
    assert_eq!(scenario.workers(), 5);
    let c: Vec<_> = scenario.nodes.iter().map(|n| n.over(&scenario.cluster)).collect();
    assert_eq!((c[0].pages, c[0].max_batch_tokens), (500, 4096));
    assert_eq!((c[1].pages, c[1].max_batch_tokens), (700, 512));
    let shape = scenario.model.shape().unwrap();
    assert_eq!((shape.layers, shape.kv_heads, shape.element_bytes), (16, 8, 1));
    for (wrong, part) in [
        ("[[node]]\ncount = 0", "node.count"),
        ("[cluster]\nworkers = 7\n[[node]]\ncount = 2", "cluster.workers"),
        ("[[node]]\nhardware = \"abacus\"", "h100"),
        ("[[node]]\nhardware = { name = \"abacus\", flops = 1e12 }", "set flops, memory-bandwidth and link"),
        ("[[node]]\nrole = \"judge\"", "judge"),
        ("[[node]]\nworker-policy = [\"unfair\"]", "runtime.worker-policy"),
        ("[model]\nparams = 1000", "model.dtype"),
        ("[model]\nname = \"gpt-9\"", "smollm2"),
        ("[model]\nname = \"llama-3.1-8b\"\nheads = 0", "model.heads"),
    ] {
        let result = Scenario::from_toml(wrong, "here").and_then(|s| s.validate());
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    /// Random workloads over 5 prefill and 3 decode workers leave nothing behind ([`simulate`] looks), whatever happens.
    #[test]
    fn nothing_is_left_of_random_runs(
        seed in 0_u64..1_000_000,
        pages in 260_u32..1200,
        window in 1_u32..40,
        rate in 5.0_f64..150.0,
        leave in 0.0_f64..0.5,
        choices in 1_u32..3,
        end_every in prop_oneof![Just(0_u32), 2_u32..60],
        link in 50_000_000_u64..50_000_000_000,
        crashes in prop::collection::vec((0_u32..8, 100_u64..3000, prop_oneof![Just(None), (50_u64..900).prop_map(Some)], any::<bool>()), 0..6),
        max_output in 1_u32..80,
    ) {
        let mut scenario = Scenario { seed, ..scenario(5, 3) };
        let w = &mut scenario.workload;
        (w.requests, w.rate, w.leave, w.choices, w.end_every) = (30, rate, leave, choices, end_every);
        w.output = Lengths::Uniform { min: 1, max: max_output };
        w.patience = Dur::from_millis(300);
        w.stall = leave / 2.0;
        scenario.cluster.pages = pages;
        scenario.cluster.credit = 16;
        scenario.policy.disaggregate.window_pages = window;
        scenario.policy.disaggregate.accept_within = Dur::from_millis(200);
        scenario.policy.disaggregate.progress_within = Dur::from_millis(700);
        scenario.hardware = sim::scenario::Machine::Figures(config::HardwareConfig {
            name: Some("h100".into()),
            link: Some(config::Size(link)),
            ..Default::default()
        });
        for (worker, at, back, alarm) in crashes {
            let kind = if alarm { FaultKind::FalseAlarm } else { FaultKind::Crash };
            let back_after = back.map(Dur::from_millis);
            scenario.faults.push(Fault { at: Dur::from_millis(at), worker, kind, back_after, ..Fault::default() });
        }
        let run = simulate(&scenario).unwrap();
        prop_assert_eq!(run.report.requests, 30);
        let whole = simulate(&unified(&scenario)).unwrap();
        for (id, answers) in &run.answers {
            for (one, other) in answers.iter().zip(&whole.answers[id]) {
                let short = one.len().min(other.len());
                prop_assert_eq!(&one[..short], &other[..short], "{}", id);
            }
        }
    }
}
