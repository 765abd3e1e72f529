//! Faults of every kind: each does what it says, and no answer is wrong, whatever happens.

use std::path::Path;

use config::Dur;
use policies::cost::fake::FakeModel;
use policies::rng::Rng;
use sim::network::Addr;
use sim::scenario::{Fault, FaultKind, Faults, NodeName, RandomFaults};
use sim::workload::{Clients, END};
use sim::{Run, Scenario, run, seeds, simulate};

/// Two workers, 100 requests in some 12 seconds, and nothing goes wrong.
fn calm() -> Scenario {
    let mut scenario = Scenario::load(Path::new("scenarios/small.toml")).expect("the small scenario is one");
    scenario.faults.clear();
    scenario.workload.leave = 0.0;
    scenario
}

fn fault(kind: FaultKind, nodes: &[Addr], at: u64, lasting: u64) -> Fault {
    Fault {
        at: Dur::from_millis(at),
        kind,
        nodes: nodes.iter().copied().map(NodeName).collect(),
        back_after: Some(Dur::from_millis(lasting)),
        ..Fault::default()
    }
}

fn with(faults: &[Fault]) -> Scenario {
    Scenario { faults: faults.to_vec(), ..calm() }
}

/// Every answer is what the model says to its prompt, or the beginning of it.
fn assert_true_answers(scenario: &Scenario, run: &Run) {
    let mean = scenario.workload.end_every;
    let model = FakeModel { end: (mean > 0).then_some((END, mean)) };
    let mut clients = Clients::new(scenario).expect("a source of arrivals");
    while let Some(arrival) = clients.next().expect("a source of arrivals") {
        let spec = &arrival.spec;
        // A gateway that stands still for ever has not heard of some.
        for (choice, got) in run.answers.get(&spec.id).into_iter().flatten().enumerate() {
            let want = model.answer(&spec.prompt, &spec.sampling, choice as u32, spec.max_tokens);
            assert!(want.starts_with(got), "{} choice {choice}: {got:?} is not {want:?}", spec.id);
        }
    }
}

const W0: Addr = Addr::Worker(0);
const W1: Addr = Addr::Worker(1);

/// All requests are answered in full, as without the faults.
fn unharmed(faults: &[Fault]) -> Run {
    let scenario = with(faults);
    let (run, calm) = (
        simulate(&scenario).expect("a source of arrivals"),
        simulate(&calm()).expect("a source of arrivals"),
    );
    assert_eq!(run.report.finished, 100, "{:?}", run.report);
    assert_eq!(run.answers, calm.answers);
    run
}

#[test]
fn a_short_cut_only_delays() {
    // Shorter than `detect`, 250 ms.
    let run = unharmed(&[fault(FaultKind::Partition, &[W0], 3000, 200)]);
    assert_eq!((run.report.retries, run.lost_messages), (0, 0), "{:?}", run.report);
    let calm = simulate(&calm()).unwrap();
    assert_ne!(run.report.end_to_end_ms, calm.report.end_to_end_ms, "the cut hit nothing");
}

#[test]
fn a_long_cut_moves_what_ran_behind_it() {
    let run = unharmed(&[fault(FaultKind::Partition, &[W0], 3000, 2000)]);
    assert!(run.report.retries > 0 && run.lost_messages > 0, "{:?}", run.report);
    // The same cut from the other side.
    let nodes = [W1, Addr::Controller, Addr::Gateway];
    let other = unharmed(&[fault(FaultKind::Partition, &nodes, 3000, 2000)]).report;
    assert_eq!((other.retries, other.end_to_end_ms), (run.report.retries, run.report.end_to_end_ms));
}

#[test]
fn a_gateway_without_a_controller_places_by_itself() {
    for lasting in [260, 1000, 5000] {
        let run = unharmed(&[fault(FaultKind::Partition, &[Addr::Controller], 3000, lasting)]);
        assert_eq!(run.report.retries, 0, "no request was where something broke: {:?}", run.report);
        // Some wait for the gateway to notice, and nobody for longer than that and a little.
        assert!(run.report.ttft_ms.p99 < 1000.0, "{:?}", run.report);
        let run = unharmed(&[fault(FaultKind::Crash, &[Addr::Controller], 3000, lasting)]);
        assert_eq!(run.report.retries, 0, "{:?}", run.report);
    }
}

#[test]
fn a_controller_that_cannot_reach_a_worker_moves_nothing_that_its_gateway_can() {
    // Both are away from the controller, and see each other.
    let run = unharmed(&[fault(FaultKind::Partition, &[W0, Addr::Gateway], 3000, 2000)]);
    assert!(run.report.retries > 0, "what ran at the other worker: {:?}", run.report);
    let alone = unharmed(&[fault(FaultKind::Partition, &[Addr::Controller], 3000, 2000)]);
    assert_eq!(alone.report.retries, 0);
}

#[test]
fn a_node_that_stands_still_goes_on_where_it_stood() {
    for node in [W0, Addr::Controller] {
        // Nobody notices a moment.
        let run = unharmed(&[fault(FaultKind::Freeze, &[node], 3000, 200)]);
        assert_eq!((run.report.retries, run.lost_messages), (0, 0), "{node:?}: {:?}", run.report);
        // A longer time breaks its links.
        let run = unharmed(&[fault(FaultKind::Freeze, &[node], 3000, 2000)]);
        assert_eq!(run.report.retries > 0, node != Addr::Controller, "{node:?}: {:?}", run.report);
    }
    assert_eq!(unharmed(&[fault(FaultKind::Freeze, &[Addr::Gateway], 3000, 200)]).lost_messages, 0);
}

#[test]
fn a_gateway_that_finds_itself_alone_keeps_what_it_has_and_turns_away_what_is_new() {
    for kind in [FaultKind::Freeze, FaultKind::Partition] {
        let scenario = with(&[fault(kind, &[Addr::Gateway], 3000, 2000)]);
        let run = simulate(&scenario).unwrap();
        let failed = run.report.failed["unavailable"];
        assert!(run.report.retries > 0 && run.report.finished + failed == 100, "{:?}", run.report);
        // A request that has an answer has all of it.
        let begun = run.answers.values().filter(|answer| !answer[0].is_empty()).count();
        assert_eq!(begun as u64, run.report.finished, "{:?}", run.report);
        assert_true_answers(&scenario, &run);
    }
}

#[test]
fn a_link_that_breaks_loses_what_is_under_way() {
    let run = unharmed(&[fault(FaultKind::Reset, &[W0], 3000, 0)]);
    assert!(run.report.retries > 0, "{:?}", run.report);
}

#[test]
fn a_dead_gateway_fails_its_requests_and_holds_nothing() {
    let scenario = with(&[fault(FaultKind::Crash, &[Addr::Gateway], 3000, 1000)]);
    let run = simulate(&scenario).unwrap();
    let failed = run.report.failed["unavailable"];
    assert!(failed > 0 && run.report.finished + failed == 100, "{:?}", run.report);
    assert!(run.report.finished > 50, "{:?}", run.report);
    assert_true_answers(&scenario, &run);
}

#[test]
fn slow_nodes_and_links_are_slow() {
    let calm = simulate(&calm()).unwrap().report;
    let slow = Fault { factor: 3.0, ..fault(FaultKind::SlowNode, &[W0, W1], 0, 60_000) };
    let steps = unharmed(&[slow]).report;
    assert!(steps.inter_token_ms.p50 > 2.0 * calm.inter_token_ms.p50, "{steps:?}");
    let added = Dur::from_millis(40);
    let late = Fault { added, ..fault(FaultKind::SlowLink, &[Addr::Controller], 0, 60_000) };
    let links = unharmed(&[late]).report;
    // There and back.
    assert!((links.ttft_ms.mean - calm.ttft_ms.mean - 80.0).abs() < 40.0, "{links:?}");
    assert!((links.inter_token_ms.p50 - calm.inter_token_ms.p50).abs() < 5.0, "{links:?}");
}

#[test]
fn late_and_repeated_messages_change_no_token() {
    let calm_run = simulate(&calm()).unwrap();
    let mut scenario = calm();
    scenario.network.jitter = Dur::from_millis(20);
    scenario.network.loss = 0.02;
    let run = simulate(&scenario).unwrap();
    assert_eq!(run.answers, calm_run.answers);
    assert_eq!(run.report.retries, 0, "order is kept: nothing seems to be missing");
    assert!(run.report.ttft_ms.mean > calm_run.report.ttft_ms.mean + 20.0, "{:?}", run.report);
}

#[test]
fn faults_that_never_end_leave_nothing_either() {
    for kind in [FaultKind::Crash, FaultKind::Freeze, FaultKind::Partition] {
        for node in [W0, Addr::Controller, Addr::Gateway] {
            let mut scenario = with(&[Fault { back_after: None, ..fault(kind, &[node], 3000, 0) }]);
            scenario.workload.deadline = Dur::from_secs(20);
            let run = simulate(&scenario).unwrap();
            assert_true_answers(&scenario, &run);
            if node == W0 || node == Addr::Controller {
                assert_eq!(run.report.finished, 100, "{kind:?} {node:?}: {:?}", run.report);
            }
        }
    }
}

/// Everything at once, drawn from the seed.
fn storm() -> Scenario {
    let mut scenario = Scenario::load(Path::new("scenarios/storm.toml")).expect("the storm is a scenario");
    scenario.workload.leave = 0.1;
    scenario
}

#[test]
fn the_same_seed_takes_the_same_course_with_faults() {
    assert_eq!(run(&storm()).unwrap(), run(&storm()).unwrap());
    let one_fault_more = |s: &mut RandomFaults| s.resets += 1;
    let mut other = storm();
    one_fault_more(&mut other.random_faults.random);
    assert_ne!(run(&other).unwrap().trace, run(&storm()).unwrap().trace);
}

#[test]
fn some_seeds_of_a_storm_hold() {
    hold(40);
}

/// `cargo test --release -p sim -- --ignored a_thousand`
#[test]
#[ignore = "minutes"]
fn a_thousand_seeds_of_a_storm_hold() {
    hold(1000);
}

fn hold(n: u64) {
    let scenario = storm();
    let reports = seeds(&scenario, n).unwrap_or_else(|e| panic!("{e}; {}", e.command(None)));
    assert_eq!(reports.len() as u64, n);
    let sum = |of: fn(&sim::Report) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.retries) > 2 * n, "the faults hit nothing");
    assert!(sum(|r| r.finished) > 80 * n, "{} of {} finished", sum(|r| r.finished), 100 * n);
}

/// A storm over a cluster of another shape for each seed: little memory or much, one worker or several, clients that
/// stall and leave, answers of several choices, faults that outlast a queue's patience.
fn shape(seed: u64) -> Scenario {
    let mut rng = Rng::new(seed);
    let mut up_to = |most: u64| rng.below(most + 1) as u32;
    let mut s = Scenario { seed, ..storm() };
    let (w, c) = (&mut s.workload, &mut s.cluster);
    (w.requests, w.choices, w.end_every) = (60, 1 + up_to(2), 20 * up_to(2));
    (w.leave, w.stall) = (0.1 * f64::from(up_to(2)), 0.2 * f64::from(up_to(1)));
    (w.stall_for, w.deadline) = (Dur::from_secs(2), Dur::from_secs(10 + u64::from(up_to(20))));
    (c.workers, c.pages, c.credit) = (1 + up_to(5), 24 + up_to(80), 16 * up_to(2));
    (c.max_requests, c.max_waiting, c.queue_limit) = (2 + up_to(14), 2 + up_to(14), 4 + up_to(60));
    (c.retry_limit, c.queue_timeout) = (1 + up_to(9), Dur::from_secs(1 + u64::from(up_to(9))));
    let lists: [&[&str]; 4] =
        [&[], &["cache-aware"], &["session-affinity"], &["cache-aware", "session-affinity"]];
    let list = lists[up_to(3) as usize];
    c.cluster_policies = list.iter().map(|name| (*name).to_owned()).collect();
    if list.contains(&"session-affinity") {
        (w.turns, w.think) = (3, Dur::from_secs(1));
    }
    (c.detect, s.network.relink) =
        (Dur::from_millis(20 + u64::from(up_to(500))), Dur::from_millis(up_to(300).into()));
    s.network.jitter = Dur::from_millis(up_to(20).into());
    s.network.loss = 0.01 * f64::from(up_to(1));
    let r = &mut s.random_faults.random;
    (r.crashes, r.freezes, r.partitions, r.resets) = (up_to(5), up_to(5), up_to(5), up_to(5));
    (r.slow_nodes, r.slow_links) = (up_to(2), up_to(2));
    r.lasting = Dur::from_millis(50 + u64::from(up_to(3000)));
    s
}

#[test]
fn storms_hold_over_clusters_of_any_shape() {
    // 1288: an answer of a controller that was asked before another one.
    (0..40)
        .chain([1288])
        .for_each(|seed| drop(run(&shape(seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"))));
}

/// As [`a_thousand_seeds_of_a_storm_hold`].
#[test]
#[ignore = "minutes"]
fn storms_hold_over_thousands_of_clusters_of_any_shape() {
    let failed: Vec<_> = (0..5000).filter_map(|seed| run(&shape(seed)).err().map(|e| (seed, e))).collect();
    assert!(failed.is_empty(), "{} fail: {:#?}", failed.len(), &failed[..failed.len().min(12)]);
}

#[test]
fn a_seed_that_fails_is_named_with_the_command_that_repeats_it() {
    let mut scenario = storm();
    scenario.seed = 5;
    scenario.workload.rate = 0.0;
    let failed = seeds(&scenario, 3).unwrap_err();
    assert_eq!((failed.seed, failed.held), (5, 0));
    assert_eq!(failed.command(Some(Path::new("a.toml"))), "actor-node sim a.toml --seed 5");
    assert!(failed.to_string().contains("workload.rate"), "{failed}");
}

#[test]
fn faults_are_data() {
    let text = r#"
        [network]
        latency = "1ms"
        jitter = "2ms"
        bandwidth = "10GB"
        loss = 0.001
        [faults]
        random = { crashes = 2, freezes = 1, all-roles = true, within = "5s", lasting = "2s" }
        [[fault]]
        at = "1s"
        kind = "partition"
        nodes = ["w0", "controller"]
        back-after = "500ms"
        [[fault]]
        at = "2s"
        worker = 1
        kind = "slow-node"
        factor = 2.5
    "#;
    let scenario = Scenario::from_toml(text, "test").unwrap();
    scenario.validate().unwrap();
    assert_eq!(scenario.faults[0].targets(), [W0, Addr::Controller]);
    assert_eq!((scenario.faults[1].targets(), scenario.faults[1].permille()), (vec![W1], 2500));
    assert_eq!(scenario.random_faults.random.draw(1, 2, 0).len(), 3);
    assert_ne!(scenario.random_faults.random.draw(1, 2, 0), scenario.random_faults.random.draw(2, 2, 0));
    assert_eq!(Scenario::default().random_faults, Faults::default());
    let cases = [
        ("[[fault]]\nat = \"1s\"", "fault.worker"),
        ("[[fault]]\nat = \"1s\"\nnodes = [\"w7\"]", "fault.nodes"),
        ("[[fault]]\nat = \"1s\"\nnodes = [\"pool\"]", "controller, gateway"),
        ("[[fault]]\nat = \"1s\"\nnodes = [\"gateway\"]\nkind = \"slow-node\"", "only workers"),
        ("[[fault]]\nat = \"1s\"\nworker = 0\nfactor = 0.5", "fault.factor"),
        ("[[fault]]\nat = \"1s\"\nworker = 0\nkind = \"pool-disk-full\"", "only pools have a disk"),
        ("[network]\nloss = 2.0", "network.loss"),
        ("[network]\nbandwidth = \"0B\"", "network.bandwidth"),
        ("[faults]\nrandom = { earthquakes = 1 }", "earthquakes"),
    ];
    for (text, part) in cases {
        let error = Scenario::from_toml(text, "test").and_then(|s| run(&s)).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
}
