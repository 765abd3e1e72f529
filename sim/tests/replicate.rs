//! Whole runs in which workers fetch what others hold of prompts: what that may not change, what it saves, and that it
//! leaves nothing behind.

use config::{Choice, Dur, WorkerRole};
use sim::scenario::{Lengths, NodeClass};
use sim::{Run, Scenario, simulate};

#[path = "storms/calm.rs"]
mod calm;
#[path = "storms/weather.rs"]
mod weather;

fn class(role: WorkerRole, count: u32) -> NodeClass {
    NodeClass { role, count, ..NodeClass::default() }
}

/// Groups with long prefixes, whose requests go to workers in turn.
fn scenario(nodes: Vec<NodeClass>) -> Scenario {
    let mut scenario = Scenario { seed: 5, nodes, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.groups, w.shared_prefix) = (120, 20.0, 12, 1000);
    w.prompt = Lengths::Uniform { min: 1100, max: 2000 };
    w.output = Lengths::Exponential { mean: 30, max: 100 };
    let c = &mut scenario.cluster;
    (c.pages, c.max_context, c.choice) = (2000, 4096, Choice::RoundRobin);
    c.cluster_policies = vec!["disaggregate".into(), "replicate".into()];
    scenario.policy.disaggregate.min_remote_tokens = Some(256);
    scenario.policy.disaggregate.effective_tokens = Some(256);
    scenario.policy.replicate.min_tokens = Some(64);
    scenario
}

/// The same without it.
fn alone(scenario: &Scenario) -> Scenario {
    let mut alone = scenario.clone();
    alone.cluster.cluster_policies.retain(|name| name != "replicate");
    alone
}

fn computed(run: &Run) -> u64 {
    run.prefilled.values().sum()
}

#[test]
fn what_is_fetched_is_not_computed_and_answers_are_the_same() {
    for nodes in [
        vec![class(WorkerRole::Unified, 4)],
        vec![class(WorkerRole::Prefill, 3), class(WorkerRole::Decode, 2)],
    ] {
        let scenario = scenario(nodes);
        let (with, without) = (simulate(&scenario).unwrap(), simulate(&alone(&scenario)).unwrap());
        assert_eq!(with.report.finished, 120, "{:?}", with.report);
        assert_eq!(with.answers, without.answers);
        let (less, more) = (computed(&with), computed(&without));
        assert!(less + 5_000 < more, "{less} tokens computed, {more} without");
        let (more, less) = (with.report.prefix_hit_rate, without.report.prefix_hit_rate);
        assert!(more > less + 0.02, "{more} of the prompts' tokens were not computed, {less} without");
        assert!(with.handoffs.committed() > without.handoffs.committed() + 10);
        assert_eq!(with.handoffs.outcomes.len(), 1, "{:?}", with.handoffs);
        let fetched = |run: &Run| {
            let placed = run.placements.values().flatten();
            let stages = placed.flat_map(|(_, stages)| stages.iter());
            stages.filter(|stage| stage.policy.as_str() == "replicate" && stage.action == "fetch").count()
        };
        assert!(fetched(&with) > 10 && fetched(&without) == 0);
    }
}

#[test]
fn shadow_fetches_nothing() {
    let mut scenario = scenario(vec![class(WorkerRole::Unified, 4)]);
    scenario.policy.replicate.mode = config::Mode::Shadow;
    let (shadow, without) = (simulate(&scenario).unwrap(), simulate(&alone(&scenario)).unwrap());
    assert_eq!((&shadow.answers, &shadow.prefilled), (&without.answers, &without.prefilled));
    assert!(shadow.handoffs.outcomes.is_empty());
    let said = shadow.placements.values().flatten().flat_map(|(_, stages)| stages.iter());
    assert!(said.filter(|stage| stage.action == "would_fetch").count() > 10);
}

/// Turns of a conversation whose prompts are computed at prefill workers, which have never seen the answers.
#[test]
fn prefill_workers_fetch_the_answers_of_earlier_turns() {
    let mut scenario = scenario(vec![class(WorkerRole::Prefill, 2), class(WorkerRole::Decode, 1)]);
    let w = &mut scenario.workload;
    (w.groups, w.shared_prefix, w.requests, w.rate, w.turns) = (1, 0, 80, 4.0, 4);
    w.prompt = Lengths::Uniform { min: 600, max: 900 };
    w.output = Lengths::Fixed(400);
    w.think = Dur::from_millis(500);
    let (with, without) = (simulate(&scenario).unwrap(), simulate(&alone(&scenario)).unwrap());
    assert_eq!(with.answers, without.answers);
    let (less, more) = (computed(&with), computed(&without));
    assert!(less + 10_000 < more, "{less} tokens computed, {more} without");
}

fn storm(seed: u64) -> Scenario {
    let nodes = match seed % 3 {
        0 => vec![class(WorkerRole::Unified, 4)],
        1 => vec![class(WorkerRole::Prefill, 2), class(WorkerRole::Decode, 2)],
        _ => vec![class(WorkerRole::Prefill, 2), class(WorkerRole::Decode, 1), class(WorkerRole::Unified, 1)],
    };
    let mut scenario = Scenario { seed, ..scenario(nodes) };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.leave, w.deadline) = (60, 30.0, 0.1, Dur::from_secs(20));
    scenario.cluster.pages = [300, 700, 2000][seed as usize / 3 % 3];
    weather::storm(&mut scenario);
    scenario
}

fn hold(seeds: u64) {
    let (mut committed, mut lost, mut fetched) = (0, 0, 0);
    for seed in 0..seeds {
        let scenario = storm(seed);
        let run = simulate(&scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        calm::agrees(&scenario, &run, |calm| calm.cluster.cluster_policies.clear());
        committed += run.handoffs.committed();
        lost += run.handoffs.outcomes.get("link_lost").copied().unwrap_or(0);
        let stages = run.placements.values().flatten().flat_map(|(_, stages)| stages.iter());
        fetched += stages.filter(|stage| stage.action == "fetch").count() as u64;
    }
    assert!(committed > seeds && lost > seeds && fetched > seeds, "{committed}, {lost}, {fetched}");
}

#[test]
fn some_seeds_of_a_storm_over_fetches_hold() {
    hold(30);
}

/// `cargo test --release -p sim -- --ignored a_thousand`
#[test]
#[ignore = "minutes"]
fn a_thousand_seeds_of_a_storm_over_fetches_hold() {
    hold(1000);
}
