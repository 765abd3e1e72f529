//! Whole runs in which busy workers have prompts computed by others (`offload`): what it is for, and that nothing else comes
//! of it, whatever goes wrong.

use std::fmt::Write as _;

use config::{Dur, WorkerRole};
use policies::order::offload::End;
use sim::network::Addr;
use sim::scenario::{Fault, FaultKind, Lengths, NodeClass, NodeName};
use sim::{Run, Scenario, simulate};

#[path = "storms/calm.rs"]
mod calm;

fn class(role: WorkerRole, count: u32) -> NodeClass {
    NodeClass { role, count, ..NodeClass::default() }
}

/// A unified worker that gets every request, and `peers` prefill workers that no policy of the controller makes use of.
fn scenario(peers: u32, policies: &[&str]) -> Scenario {
    let mut scenario = Scenario { seed: 3, ..Scenario::default() };
    let w = &mut scenario.workload;
    // Prompts that share nothing: who computes one computes all of it.
    (w.requests, w.rate, w.shared_prefix) = (150, 14.0, 0);
    w.prompt = Lengths::Uniform { min: 100, max: 3000 };
    w.output = Lengths::Exponential { mean: 30, max: 100 };
    let c = &mut scenario.cluster;
    (c.pages, c.max_context) = (6000, 4096);
    c.worker_policy = policies.iter().map(|name| (*name).to_owned()).collect();
    scenario.nodes = vec![class(WorkerRole::Unified, 1), class(WorkerRole::Prefill, peers)];
    scenario
}

fn whole(run: &Run, other: &Run) {
    assert_eq!(run.report.finished, run.report.requests, "{:?}", run.report);
    assert_eq!(run.answers, other.answers);
}

fn failed(run: &Run) -> u64 {
    run.handoffs.offloaded.count(End::Failed)
}

#[test]
fn a_worker_that_gets_everything_answers_sooner_when_others_compute_prompts() {
    let without = simulate(&scenario(3, &["fcfs"])).unwrap();
    let with = simulate(&scenario(3, &["fcfs", "offload"])).unwrap();
    whole(&with, &without);
    let (before, after) = (without.report.ttft_ms, with.report.ttft_ms);
    assert!(after.p99 < 0.6 * before.p99, "TTFT p99 {} ms with, {} ms without", after.p99, before.p99);
    assert!(after.mean < 0.6 * before.mean, "TTFT mean {} ms with, {} ms without", after.mean, before.mean);
    // Everything that left was computed once, where it went.
    let offloads = &with.report.offloads;
    assert!(offloads.computed() > 20 && failed(&with) == 0, "{offloads:?}");
    let peers: u64 =
        with.prefilled.iter().filter(|(id, _)| id.node.as_str() != "w00000").map(|(_, n)| n).sum();
    assert_eq!(peers, offloads.tokens);
    assert_eq!(with.prefilled.values().sum::<u64>(), without.prefilled.values().sum::<u64>());
    assert_eq!(with.handoffs.committed(), offloads.computed());
    assert_eq!(without.report.offloads.count(), 0);
    let table = with.report.to_table();
    assert!(table.contains(&format!("{} tokens computed elsewhere", offloads.tokens)), "{table}");
}

/// Whoever takes turns gives every long prompt to the same one of two workers, here.
#[test]
fn an_uneven_placement_is_made_up_for() {
    let mut trace = String::new();
    for i in 0..120 {
        let (at, long) = (i * 40, i % 2 == 0);
        let (tokens, first) = if long { (3072, 1_000 + 100 * i) } else { (512, 1_000_000 + i) };
        let blocks: Vec<String> = (0..tokens / 512).map(|block| (first + block).to_string()).collect();
        let blocks = blocks.join(", ");
        let row = format!("\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 20");
        writeln!(trace, "{{{row}, \"hash_ids\": [{blocks}]}}").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("uneven.jsonl");
    std::fs::write(&file, trace).unwrap();
    let run = |policy: &str| {
        let mut scenario = scenario(0, &[policy]);
        scenario.nodes = vec![class(WorkerRole::Unified, 2)];
        scenario.cluster.choice = config::Choice::RoundRobin;
        scenario.workload.trace = Some(file.clone());
        simulate(&scenario).unwrap()
    };
    let (without, with) = (run("fcfs"), run("offload"));
    whole(&with, &without);
    let (before, after) = (without.report.ttft_ms.p99, with.report.ttft_ms.p99);
    assert!(after < 0.7 * before, "TTFT p99 {after} ms with, {before} ms without");
    assert!(with.report.offloads.computed() > 5, "{:?}", with.report.offloads);
}

#[test]
fn the_same_scenario_takes_the_same_course() {
    let run = || simulate(&scenario(2, &["fair", "offload"])).unwrap().report;
    assert_eq!(run(), run());
}

/// Only the peers that are named, and only so many at once.
#[test]
fn names_and_limits_are_kept() {
    let mut named = scenario(3, &["offload"]);
    named.worker_policy.offload.peers = vec!["w2".to_owned()];
    let run = simulate(&named).unwrap();
    let who: Vec<_> = run.prefilled.iter().filter(|(_, n)| **n > 0).map(|(id, _)| id.node.as_str()).collect();
    assert_eq!(who, ["w00000", "w00002"]);
    let few = |most: u32| {
        let mut scenario = scenario(3, &["offload"]);
        scenario.worker_policy.offload.max_outstanding = most;
        simulate(&scenario).unwrap().report.offloads.computed()
    };
    assert!(few(1) < few(4), "{} with one at a time, {} with four", few(1), few(4));
    let mut long = scenario(3, &["offload"]);
    long.worker_policy.offload.min_suffix = 5000;
    assert_eq!(simulate(&long).unwrap().report.offloads.count(), 0);
}

/// What is known of peers is as old as their last heartbeats: a slow one has them give up on what looks busy.
#[test]
fn peers_are_known_by_their_heartbeats() {
    let run = |heartbeat: Dur| {
        let mut scenario = scenario(1, &["offload"]);
        scenario.cluster.heartbeat = heartbeat;
        simulate(&scenario).unwrap()
    };
    let (fast, slow) = (run(Dur::from_millis(5)), run(Dur::from_secs(30)));
    whole(&fast, &slow);
    assert_ne!(fast.report.trace, slow.report.trace);
    assert!(slow.report.offloads.computed() > 0, "what went there from here is known in any case");
}

/// A peer that dies, stands still, is cut off or loses its links while it computes: each prompt comes back, and is answered
/// as if nothing had happened.
#[test]
fn b44_b47_prompts_come_back_from_peers_that_are_lost() {
    let calm = simulate(&scenario(1, &["fcfs"])).unwrap();
    for kind in [FaultKind::Crash, FaultKind::Freeze, FaultKind::Partition, FaultKind::Reset] {
        let mut lost = 0;
        for at in [1500, 2500, 3500, 4500] {
            let mut scenario = scenario(1, &["offload"]);
            scenario.cluster.detect = Dur::from_millis(100);
            scenario.policy.disaggregate.accept_within = Dur::from_millis(500);
            scenario.policy.disaggregate.progress_within = Dur::from_millis(500);
            scenario.faults.push(Fault {
                at: Dur::from_millis(at),
                kind,
                nodes: vec![NodeName(Addr::Worker(1))],
                back_after: Some(Dur::from_millis(400)),
                ..Fault::default()
            });
            let run = simulate(&scenario).unwrap_or_else(|e| panic!("{kind:?} at {at}: {e}"));
            whole(&run, &calm);
            assert_eq!(run.report.retries, 0, "{kind:?}: nobody is placed again for it");
            lost += failed(&run);
        }
        assert!(lost > 0, "{kind:?} hit nothing");
    }
}

/// Nodes of every role die and are cut off, links break and lose messages, clients leave: nothing is left behind
/// ([`simulate`] looks), and every answer is the true one, or the beginning of it.
#[test]
fn storms_hold_with_offload() {
    hold(40);
}

/// `cargo test --release -p sim --test offload -- --ignored`
#[test]
#[ignore = "minutes"]
fn a_thousand_storms_hold_with_offload() {
    hold(1000);
}

fn hold(seeds: u64) {
    let (mut computed, mut failed_all, mut withdrawn, mut finished) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let mut scenario = scenario(2, &[["offload"], ["fair"]][(seed % 4 == 3) as usize]);
        if seed % 4 == 3 {
            scenario.cluster.worker_policy.push("offload".to_owned());
        }
        scenario.seed = seed;
        // Of the unified ones each may be the peer of another.
        scenario.nodes[0].count = 1 + (seed % 3) as u32;
        (scenario.workload.requests, scenario.workload.rate) =
            (60, 20.0 * f64::from(scenario.nodes[0].count));
        (scenario.workload.leave, scenario.workload.patience) = (0.15, Dur::from_secs(1));
        scenario.workload.deadline = Dur::from_secs(20);
        // On some seeds there is not enough memory for all that could leave.
        scenario.cluster.pages = [6000, 900, 400][(seed / 3 % 3) as usize];
        scenario.cluster.detect = Dur::from_millis(100);
        (scenario.cluster.heartbeat, scenario.network.detect_spread) =
            (Dur::from_millis(50), Dur::from_millis(50));
        (scenario.network.jitter, scenario.network.loss) = (Dur::from_millis(2), 0.005);
        scenario.network.bandwidth = Some(config::Size(400_000_000));
        let random = &mut scenario.random_faults.random;
        (random.crashes, random.partitions, random.resets) = (3, 3, 3);
        (random.freezes, random.slow_nodes, random.slow_links) = (2, 1, 2);
        (random.within, random.lasting) = (Dur::from_secs(3), Dur::from_millis(400));
        random.all_roles = seed % 2 == 1;
        let run = simulate(&scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        calm::agrees(&scenario, &run, |calm| {
            calm.cluster.worker_policy = vec!["fcfs".to_owned()];
            calm.cluster.pages = 6000;
        });
        computed += run.report.offloads.computed();
        failed_all += failed(&run);
        withdrawn += run.handoffs.offloaded.count(End::Withdrawn);
        finished += run.report.finished;
    }
    assert!(
        2 * computed > 5 * seeds && failed_all > seeds,
        "{computed} prompts were computed elsewhere, {failed_all} failed"
    );
    assert!(
        4 * withdrawn > seeds && finished > 30 * seeds,
        "{withdrawn} withdrawn, {finished} requests finished"
    );
}

/// A node's configuration with it is used as it is.
#[test]
fn a_node_s_configuration_may_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = (folder.path().join("node.toml"), folder.path().join("scenario.toml"));
    let node = "[cluster]\nheartbeat = \"200ms\"\n[runtime]\nworker-policy = [\"fair\", \"offload\"]\n\
                [worker-policy.offload]\nmin-suffix = 300\n";
    std::fs::write(&file, node).unwrap();
    std::fs::write(&path, "config = \"node.toml\"\n[cluster]\nworkers = 3\n").unwrap();
    let scenario = Scenario::load(&path).unwrap();
    scenario.validate().unwrap();
    assert_eq!(scenario.cluster.worker_policy, ["fair", "offload"]);
    assert_eq!(scenario.cluster.heartbeat, Dur::from_millis(200));
    assert_eq!(scenario.worker_policy.offload.min_suffix, 300);
    assert!(scenario.peers().unwrap().is_empty());
}
