//! Whole simulated runs: their course is a function of the scenario, they leave nothing behind, and a crash changes no
//! token.

use std::path::Path;

use config::{Dur, SimArgs};
use policies::cost::fake::FakeModel;
use proptest::prelude::*;
use sim::scenario::{Fault, FaultKind, Lengths};
use sim::workload::{Clients, END};
use sim::{Run, Scenario, SimError, run, run_cli, simulate};

/// Trace of `scenarios/small.toml`. It changes whenever a core decides otherwise: look at the report's figures before and
/// after, and put the new one here.
const GOLDEN: &str = "491622b04fe44677";

fn small() -> Scenario {
    let path = Path::new("scenarios/small.toml");
    Scenario::load(path).expect("the small scenario is one")
}

/// Without faults, clients that leave, or refusals: every request is answered in full.
fn calm() -> Scenario {
    let mut scenario = small();
    scenario.faults.clear();
    scenario.workload.leave = 0.0;
    scenario
}

/// Every answer is what the model says to its prompt, or the beginning of it.
fn assert_true_answers(scenario: &Scenario, run: &Run, complete: bool) {
    let mean = scenario.workload.end_every;
    let model = FakeModel { end: (mean > 0).then_some((END, mean)) };
    let mut clients = Clients::new(scenario).expect("a source of arrivals");
    while let Some(arrival) = clients.next().expect("a source of arrivals") {
        let spec = &arrival.spec;
        for (choice, got) in run.answers[&spec.id].iter().enumerate() {
            let want = model.answer(&spec.prompt, &spec.sampling, choice as u32, spec.max_tokens);
            assert!(want.starts_with(got), "{} choice {choice}: {got:?} is not {want:?}", spec.id);
            assert!(!complete || got.len() == want.len(), "{} choice {choice} is cut", spec.id);
        }
    }
}

#[test]
fn the_same_scenario_takes_the_same_course() {
    let (a, b) = (run(&small()).unwrap(), run(&small()).unwrap());
    assert_eq!(a, b);
    assert_eq!(a.trace, GOLDEN, "the course of scenarios/small.toml has changed:\n{}", a.to_table());
}

#[test]
fn another_seed_takes_another() {
    let traces: std::collections::BTreeSet<String> =
        (0..5).map(|seed| run(&Scenario { seed, ..small() }).unwrap().trace).collect();
    assert_eq!(traces.len(), 5);
}

#[test]
fn all_requests_end_and_nothing_is_left() {
    // `simulate` fails when a session, a booking or a page is left.
    let mut preemptions = 0;
    for seed in 0..20 {
        let scenario = Scenario { seed, ..small() };
        let run = simulate(&scenario).unwrap();
        let report = &run.report;
        let failed: u64 = report.failed.values().sum();
        assert_eq!(report.finished + failed, scenario.workload.requests, "{report:?}");
        assert!(report.failed.keys().all(|why| *why == "client-left"), "{report:?}");
        assert_true_answers(&scenario, &run, false);
        preemptions += report.preemptions;
    }
    assert!(preemptions > 0, "memory was never short");
}

#[test]
fn a_crash_changes_no_token() {
    let mut resumed = 0;
    for seed in 0..10 {
        let undisturbed = Scenario { seed, ..calm() };
        let mut crashed = undisturbed.clone();
        // The first two are noticed; of the last two, the next life begins before the former one is missed, and for a
        // while no worker is there.
        for (worker, at, back) in [(0, 2000, 700), (1, 3500, 700), (0, 6000, 240), (1, 6100, 240)] {
            crashed.faults.push(Fault {
                at: Dur::from_millis(at),
                worker,
                kind: FaultKind::Crash,
                back_after: Some(Dur::from_millis(back)),
                ..Fault::default()
            });
        }
        let (a, b) = (simulate(&undisturbed).unwrap(), simulate(&crashed).unwrap());
        assert_eq!(b.report.finished, crashed.workload.requests, "{:?}", b.report);
        assert_eq!(a.answers, b.answers, "seed {seed}");
        assert_true_answers(&crashed, &b, true);
        resumed += b.report.retries;
    }
    assert!(resumed > 50, "the crashes hit nothing: {resumed} placed again");
}

#[test]
fn a_false_alarm_moves_requests_and_changes_no_token() {
    let mut moved = 0;
    for seed in 0..10 {
        let undisturbed = Scenario { seed, ..calm() };
        let mut alarmed = undisturbed.clone();
        for (worker, at) in [(0, 2000), (1, 3000), (0, 5000), (1, 7000)] {
            alarmed.faults.push(Fault {
                at: Dur::from_millis(at),
                worker,
                kind: FaultKind::FalseAlarm,
                back_after: Some(Dur::from_millis(500)),
                ..Fault::default()
            });
        }
        let (a, b) = (simulate(&undisturbed).unwrap(), simulate(&alarmed).unwrap());
        assert_eq!(b.report.finished, alarmed.workload.requests, "{:?}", b.report);
        assert_eq!(a.answers, b.answers, "seed {seed}");
        // What ran on at the worker until it was told to stop.
        assert!(b.report.drawn_tokens <= b.report.output_tokens + 2 * b.report.retries, "{:?}", b.report);
        moved += b.report.retries;
    }
    assert!(moved > 50, "the alarms hit nothing: {moved} placed again");
}

#[test]
fn several_choices_and_end_tokens_survive_crashes_too() {
    for seed in 0..5 {
        let mut scenario = Scenario { seed, ..small() };
        scenario.workload.choices = 3;
        scenario.workload.end_every = 20;
        scenario.workload.leave = 0.0;
        scenario.workload.rate = 2.0;
        let run = simulate(&scenario).unwrap();
        assert_eq!(run.report.finished, scenario.workload.requests, "{:?}", run.report);
        assert_true_answers(&scenario, &run, true);
    }
}

#[test]
fn a_cluster_that_is_gone_fails_its_requests() {
    let mut scenario = calm();
    scenario.cluster.queue_timeout = Dur::from_secs(5);
    scenario.faults =
        (0..2).map(|worker| Fault { at: Dur::from_secs(4), worker, ..Fault::default() }).collect();
    let run = simulate(&scenario).unwrap();
    let why: Vec<&str> = run.report.failed.keys().copied().collect();
    assert_eq!(why, ["unavailable"], "those that wait time out, new ones are told at once");
    assert!(run.report.finished > 0);
    assert_true_answers(&scenario, &run, false);
}

#[test]
fn limits_turn_requests_away() {
    let mut scenario = calm();
    scenario.workload.rate = 1000.0;
    scenario.cluster.max_requests = 2;
    scenario.cluster.queue_limit = 5;
    let report = run(&scenario).unwrap();
    assert_eq!(report.finished + report.failed["overloaded"], scenario.workload.requests);
    assert_eq!(report.finished, 2 * 2 + 5, "two workers with two each, and five that wait");
}

#[test]
fn work_for_clients_that_left_stops_within_a_step() {
    let mut scenario = calm();
    scenario.workload.leave = 1.0;
    scenario.workload.patience = Dur::from_millis(300);
    scenario.workload.output = Lengths::Fixed(300);
    let report = run(&scenario).unwrap();
    assert!(report.failed["client-left"] > 90, "{report:?}");
    // The step that runs when the client leaves, and one more that may start before the message arrives.
    assert!(report.drawn_tokens <= report.output_tokens + 2 * report.requests, "{report:?}");
    scenario.workload.leave = 0.0;
    scenario.workload.deadline = Dur::from_secs(600);
    let report = run(&scenario).unwrap();
    assert_eq!(report.finished, report.requests);
    assert_eq!(report.drawn_tokens, report.output_tokens, "without losses every token is delivered");
}

#[test]
fn clients_that_stall_stop_only_themselves_and_go_on() {
    let mut waited = 0;
    for seed in 0..10 {
        let mut reading = Scenario { seed, ..calm() };
        reading.cluster.credit = 8;
        let mut scenario = reading.clone();
        scenario.workload.stall = 0.4;
        scenario.workload.stall_for = Dur::from_secs(5);
        let (a, b) = (simulate(&reading).unwrap(), simulate(&scenario).unwrap());
        assert_eq!(b.report.finished, scenario.workload.requests, "{:?}", b.report);
        assert_eq!(a.answers, b.answers, "seed {seed}");
        assert_true_answers(&scenario, &b, true);
        waited += u32::from(b.report.end_to_end_ms.p99 > 2.0 * a.report.end_to_end_ms.p99);
        // Without credit a worker does not notice.
        scenario.cluster.credit = 0;
        reading.cluster.credit = 0;
        assert_eq!(simulate(&scenario).unwrap().report.end_to_end_ms, run(&reading).unwrap().end_to_end_ms);
    }
    assert!(waited > 5, "the stalls stopped nobody");
}

#[test]
fn credit_costs_nothing_while_clients_read() {
    for credit in [0, 64] {
        let mut scenario = calm();
        scenario.cluster.credit = credit;
        let (got, want) = (run(&scenario).unwrap(), run(&calm()).unwrap());
        assert_eq!((got.ttft_ms, got.inter_token_ms), (want.ttft_ms, want.inter_token_ms), "credit {credit}");
    }
}

#[test]
fn a_prefix_cache_saves_work_and_changes_no_answer() {
    let with = calm();
    let mut without = with.clone();
    without.cluster.prefix_cache = false;
    let (a, b) = (simulate(&with).unwrap(), simulate(&without).unwrap());
    assert_eq!(a.answers, b.answers);
    assert_eq!(b.report.cached_tokens, 0);
    assert!(a.report.prefix_hit_rate > 0.3, "{:?}", a.report);
    assert!(a.report.ttft_ms.mean < b.report.ttft_ms.mean);
}

#[test]
fn figures_of_one_request_are_those_of_the_cost_model() {
    let mut scenario = calm();
    scenario.workload.requests = 1;
    scenario.workload.prompt = Lengths::Fixed(20);
    scenario.workload.shared_prefix = 0;
    scenario.workload.output = Lengths::Fixed(3);
    let report = run(&scenario).unwrap();
    let cost = scenario.cost().unwrap();
    // To the controller and back, to the worker and back: four messages.
    let network = 4.0 * 0.2;
    let ms = |span: policies::time::Span| span.as_secs_f64() * 1e3;
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    close(report.ttft_ms.p50, network + ms(cost.prefill(0, 20)));
    close(report.inter_token_ms.p50, ms(cost.prefill(20, 1)));
    close(
        report.end_to_end_ms.p50,
        network + ms(cost.prefill(0, 20)) + ms(cost.prefill(20, 1)) + ms(cost.prefill(21, 1)),
    );
    assert_eq!((report.output_tokens, report.prompt_tokens, report.inter_token_ms.count), (3, 20, 2));
}

#[test]
fn malformed_scenarios_are_refused_with_the_key() {
    let cases = [
        ("sed = 1", "sed"),
        ("[workload]\nrate = 0.0", "workload.rate"),
        ("[workload]\nprompt = { uniform = { min = 9, max = 3 } }", "workload.prompt"),
        ("[workload]\nprompt = { normal = 3 }", "normal"),
        ("[workload]\ndeadline = \"0s\"", "workload.deadline"),
        ("[cluster]\nworkers = 0", "cluster.workers"),
        ("model = \"gpt-9\"", "llama-3.1-8b"),
        ("hardware = \"abacus\"", "h100"),
        ("[[fault]]\nat = \"1s\"\nworker = 2", "fault.worker"),
        ("[[fault]]\nat = 1\nworker = 0", "at"),
    ];
    for (text, part) in cases {
        let error = Scenario::from_toml(text, "test").and_then(|s| run(&s)).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
    let default = Scenario::from_toml("", "test").unwrap();
    assert_eq!(default, Scenario::default());
    let error = Scenario::load(Path::new("no/such/file.toml")).unwrap_err();
    assert!(matches!(&error, SimError::Read { .. }) && error.to_string().contains("no/such/file.toml"));
}

#[test]
fn the_command_line_overrides_the_file() {
    let path = Path::new("scenarios/small.toml");
    let args = SimArgs {
        scenario: Some(path.to_owned()),
        seed: Some(3),
        requests: Some(9),
        rate: Some(1.5),
        workers: Some(4),
        json: true,
        ..SimArgs::default()
    };
    let json = run_cli(&args).unwrap();
    let mut scenario = Scenario { seed: 3, ..small() };
    scenario.workload.requests = 9;
    scenario.workload.rate = 1.5;
    scenario.cluster.workers = 4;
    let report = run(&scenario).unwrap();
    assert_eq!(json, report.to_json().unwrap());
    assert!(json.contains("\"ttft_ms\"") && json.contains(&report.trace));
    let table = run_cli(&SimArgs { json: false, ..args }).unwrap();
    for part in ["TTFT", "inter-token latency", "p99", "9 arrived", &report.trace] {
        assert!(table.contains(part), "{table}");
    }
}

prop_compose! {
    fn scenarios()(
        seed in any::<u64>(),
        (requests, rate, choices, end_every) in (1_u64..40, 1.0..200.0, 1_u32..4, 0_u32..40),
        (own, output) in (1_u32..120, 1_u32..80),
        (groups, shared_prefix, leave) in (1_u32..4, 0_u32..80, 0.0..0.5),
        (workers, pages, page_tokens) in (1_u32..4, 4_u32..64, 1_u32..24),
        (max_batch_tokens, max_running, max_waiting) in (1_u32..100, 1_u32..12, 1_u32..8),
        (max_requests, queue_limit, retry_limit) in (1_u32..8, 0_u32..12, 0_u32..4),
        (prefix_cache, power) in (any::<bool>(), any::<bool>()),
        (credit, stall) in (0_u32..20, 0.0..1.0),
        faults in prop::collection::vec((0_u64..3000, 0_u32..4, prop::option::of(0_u64..1500), any::<bool>()), 0..6),
    ) -> Scenario {
        let mut s = Scenario { seed, ..small() };
        s.workload.requests = requests;
        s.workload.rate = rate;
        s.workload.choices = choices;
        s.workload.end_every = end_every;
        s.workload.prompt = Lengths::Uniform { min: 1, max: own };
        s.workload.output = Lengths::Exponential { mean: output, max: 2 * output };
        s.workload.groups = groups;
        s.workload.shared_prefix = shared_prefix;
        s.workload.leave = leave;
        s.workload.deadline = Dur::from_secs(20);
        s.workload.stall = stall;
        s.workload.stall_for = Dur::from_secs(2);
        s.cluster.credit = credit;
        let c = &mut s.cluster;
        (c.workers, c.pages, c.page_tokens) = (workers, pages, page_tokens);
        (c.max_batch_tokens, c.max_running, c.max_waiting) = (max_batch_tokens, max_running, max_waiting);
        (c.max_requests, c.queue_limit, c.retry_limit) = (max_requests, queue_limit, retry_limit);
        c.prefix_cache = prefix_cache;
        c.choice = if power { config::Choice::PowerOfTwo } else { config::Choice::LeastLoaded };
        let fault = |(at, worker, back, dies): (u64, u32, Option<u64>, bool)| Fault {
            at: Dur::from_millis(at),
            worker: worker % workers,
            kind: if dies { FaultKind::Crash } else { FaultKind::FalseAlarm },
            back_after: back.map(Dur::from_millis),
            ..Fault::default()
        };
        s.faults = faults.into_iter().map(fault).collect();
        s
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cluster_ends_clean_and_says_nothing_wrong(scenario in scenarios()) {
        let run = simulate(&scenario).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let failed: u64 = run.report.failed.values().sum();
        prop_assert_eq!(run.report.finished + failed, scenario.workload.requests);
        prop_assert!(!run.report.failed.contains_key("engine"), "{:?}", run.report);
        assert_true_answers(&scenario, &run, false);
    }
}
