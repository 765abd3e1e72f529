//! Whole runs with policies: what they save, what they may cost, and that they break nothing.

use config::{Dur, Mode};
use sim::report::Series;
use sim::scenario::{Fault, FaultKind, Lengths};
use sim::{Report, Run, Scenario, simulate};

const CACHE: &str = "cache-aware";
const SESSION: &str = "session-affinity";

/// Conversations of 5 turns, which begin with one of three system prompts, over three workers.
fn conversations(policies: &[&str]) -> Scenario {
    let mut scenario = Scenario { seed: 3, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.turns, w.rate, w.think) = (100, 5, 8.0, Dur::from_secs(6));
    (w.groups, w.shared_prefix) = (3, 600);
    w.prompt = Lengths::Uniform { min: 20, max: 120 };
    w.output = Lengths::Exponential { mean: 40, max: 100 };
    let c = &mut scenario.cluster;
    (c.workers, c.pages, c.max_context) = (3, 1500, 4096);
    c.cluster_policies = policies.iter().map(|p| (*p).to_owned()).collect();
    scenario
}

fn computed(report: &Report) -> u64 {
    report.prompt_tokens - report.cached_tokens
}

/// The most that one worker has computed over the mean.
fn imbalance(run: &Run) -> f64 {
    let each: Vec<f64> = run.prefilled.values().map(|n| *n as f64).collect();
    each.iter().copied().fold(0.0, f64::max) * each.len() as f64 / each.iter().sum::<f64>()
}

#[test]
fn locality_saves_most_of_the_prefill() {
    let figures = |policies: &[&str]| {
        let run = simulate(&conversations(policies)).unwrap();
        assert_eq!(run.report.finished, 100, "{policies:?}: {:?}", run.report);
        (computed(&run.report) as f64, imbalance(&run))
    };
    let (without, _) = figures(&[]);
    for (list, share) in [(&[CACHE][..], 0.5), (&[SESSION], 0.6), (&[CACHE, SESSION], 0.5)] {
        let (with, imbalance) = figures(list);
        assert!(with < share * without, "{list:?}: {with} tokens computed, {without} without");
        assert!(imbalance < 1.5, "{list:?}: {imbalance}");
    }
}

/// What is found of prompts does not collapse when workers are busy: only the one that is too busy loses its share.
#[test]
fn locality_holds_under_load() {
    for list in [&[CACHE][..], &[CACHE, SESSION]] {
        let rate = |rate: f64, think: u64| {
            let mut scenario = conversations(list);
            (scenario.workload.rate, scenario.workload.think) = (rate, Dur::from_millis(think));
            (scenario.workload.output, scenario.workload.requests) = (Lengths::Fixed(60), 200);
            let run = simulate(&scenario).unwrap();
            assert_eq!(run.report.finished, 200, "{list:?}: {:?}", run.report);
            (run.report.prefix_hit_rate, imbalance(&run), run.report.ttft_ms.p90)
        };
        let (calm, busy) = (rate(2.0, 20_000), rate(1000.0, 400));
        assert!(busy.0 > 0.8 * calm.0, "{list:?}: {busy:?} of {calm:?}");
        assert!(busy.1 < 1.5, "{list:?}: {busy:?}");
    }
}

#[test]
fn shadow_runs_as_without() {
    let without = simulate(&conversations(&[])).unwrap();
    let mut shadowed = conversations(&[CACHE, SESSION]);
    shadowed.policy.cache_aware.mode = Mode::Shadow;
    shadowed.policy.session_affinity.mode = Mode::Shadow;
    let shadow = simulate(&shadowed).unwrap();
    assert_eq!((&shadow.answers, &shadow.prefilled), (&without.answers, &without.prefilled));
    // What is told to the controller more are more events, at times that matter to nobody.
    let figures = |r: &Report| Report { events: 0, trace: String::new(), ..r.clone() };
    let last = |r: &Report| Report {
        seconds: 0.0,
        output_tokens_per_second: 0.0,
        finished_per_second: 0.0,
        stages: Vec::new(),
        workers: Vec::new(),
        series: Series::default(),
        ..figures(r)
    };
    assert_eq!(last(&shadow.report), last(&without.report));
    assert!(simulate(&conversations(&[CACHE, SESSION])).unwrap().prefilled != without.prefilled);
}

#[test]
fn the_same_scenario_takes_the_same_course_with_policies() {
    let run = || simulate(&conversations(&[CACHE, SESSION])).unwrap().report;
    assert_eq!(run(), run());
}

/// Workers that die, come back empty, or are taken for dead: with policies, too, every request is answered in full, and
/// nothing is left ([`simulate`] looks).
#[test]
fn crashes_lose_nothing_with_policies() {
    let fault = |worker, at, kind| Fault {
        at: Dur::from_millis(at),
        worker,
        kind,
        back_after: Some(Dur::from_millis(700)),
        ..Fault::default()
    };
    let undisturbed = simulate(&conversations(&[])).unwrap();
    for list in [&[CACHE][..], &[SESSION], &[CACHE, SESSION], &[SESSION, CACHE]] {
        let mut scenario = conversations(list);
        scenario.cluster.pages = 400;
        for n in 0..8 {
            let kind = if n % 3 == 2 { FaultKind::FalseAlarm } else { FaultKind::Crash };
            scenario.faults.push(fault(n % 3, 1000 + 1500 * u64::from(n), kind));
        }
        let run = simulate(&scenario).unwrap();
        assert_eq!(run.report.finished, 100, "{list:?}: {:?}", run.report);
        assert_eq!(run.answers, undisturbed.answers, "{list:?}");
        assert!(run.report.retries > 0, "{list:?}: the faults hit nothing");
    }
}

#[test]
fn a_policy_that_there_is_not_is_refused_with_those_that_there_are() {
    for names in [&["cache_aware"][..], &[CACHE, CACHE]] {
        let error = simulate(&conversations(names)).unwrap_err().to_string();
        assert!(error.contains("cluster.cluster-policies") && error.contains(SESSION), "{error}");
    }
    let text =
        "[cluster]\ncluster_policies = [\"cache-aware\"]\n[policy.cache-aware]\ncache-threshold = 0.5\n";
    let scenario = Scenario::from_toml(text, "here").unwrap();
    assert_eq!(scenario.cluster.cluster_policies, [CACHE]);
    assert!((scenario.policy.cache_aware.cache_threshold - 0.5).abs() < 1e-9);
}
