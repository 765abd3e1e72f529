//! Whole runs in which requests change their workers while they run, and workers leave: what clients see of it is a gap.

use std::path::Path;

use config::Dur;
use sim::network::Addr;
use sim::scenario::{Fault, FaultKind, Faults, Lengths, Move, NodeName};
use sim::{Run, Scenario, simulate};

#[path = "storms/calm.rs"]
mod calm;

/// Workers with time to spare, and streams that last for a second or two.
fn calm(workers: u32) -> Scenario {
    let mut scenario = Scenario { seed: 9, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.temperature) = (80, 20.0, 0.8);
    w.prompt = Lengths::Uniform { min: 8, max: 600 };
    w.output = Lengths::Uniform { min: 20, max: 300 };
    let c = &mut scenario.cluster;
    (c.workers, c.pages, c.max_context, c.credit) = (workers, 3000, 2048, 64);
    scenario
}

fn worker(number: u32) -> NodeName {
    NodeName(Addr::Worker(number))
}

/// A request is moved every few milliseconds.
fn often(every: u64) -> Move {
    let every = Dur::from_millis(every);
    Move {
        at: Dur::from_millis(300),
        every,
        times: (6_000 / (every.as_nanos() / 1_000_000)) as u32,
        ..Move::default()
    }
}

fn fault(kind: FaultKind, node: u32, at: u64, back: u64) -> Fault {
    let back_after = Some(Dur::from_millis(back));
    Fault { at: Dur::from_millis(at), kind, nodes: vec![worker(node)], back_after, ..Fault::default() }
}

/// Every request is answered in full, as where nothing happens.
fn whole(scenario: &Scenario) -> Run {
    let run = simulate(scenario).expect("a run that holds");
    let undisturbed = Scenario {
        moves: Vec::new(),
        faults: Vec::new(),
        random_faults: Faults::default(),
        ..scenario.clone()
    };
    assert_eq!(run.report.finished, run.report.requests, "{:?}", run.report);
    assert_eq!(run.answers, simulate(&undisturbed).expect("a run that holds").answers);
    run
}

#[test]
fn a_request_goes_on_elsewhere_with_the_same_tokens() {
    for to in [Some(worker(1)), None] {
        let mut scenario = calm(2);
        scenario.moves = vec![Move { from: Some(worker(0)), to, sessions: 3, ..often(500) }];
        let run = whole(&scenario);
        let moves = &run.report.moves;
        assert!(moves.moved() >= 20, "{moves:?}");
        assert_eq!(
            moves.outcomes.keys().filter(|end| !["moved", "ended"].contains(*end)).count(),
            0,
            "{moves:?}"
        );
        assert_eq!((moves.gap_ms.count, run.report.retries), (moves.moved(), 0));
        // No more than a step or two and what goes over the link.
        let gap = run.report.inter_token_ms.p99 + 20.0;
        assert!(moves.gap_ms.max < gap, "{moves:?}, p99 inter-token latency {:?}", run.report.inter_token_ms);
        let table = run.report.to_table();
        assert!(table.contains(&format!("{} moved", moves.moved())), "{table}");
        // They are where they moved to.
        let moved = run.placements.values().filter(|placed| placed.len() > 1).count();
        assert!(moved > 10, "{moved}");
    }
}

/// Pages that are full travel while the source goes on: little is computed anew.
#[test]
fn a_move_computes_little_again() {
    let mut scenario = calm(2);
    scenario.moves = vec![often(40)];
    let run = whole(&scenario);
    let moves = run.report.moves.moved();
    assert!(moves > 60, "{:?}", run.report.moves);
    let all: u64 = run.prefilled.values().sum();
    scenario.moves.clear();
    let before: u64 = simulate(&scenario).unwrap().prefilled.values().sum();
    let page = u64::from(scenario.cluster.page_tokens);
    assert!(all <= before + moves * page, "{all} tokens computed, {before} without {moves} moves");
}

#[test]
fn the_same_scenario_takes_the_same_course() {
    let mut scenario = calm(3);
    scenario.moves = vec![often(30)];
    assert_eq!(simulate(&scenario).unwrap().report, simulate(&scenario).unwrap().report);
}

/// A target that has no place, or is gone: the request stays where it is.
#[test]
fn what_cannot_move_stays() {
    let mut scenario = calm(2);
    // Its window of pages is full with what it has.
    scenario.cluster.max_requests = 2;
    scenario.workload.arrivals = sim::scenario::Arrivals::Closed { clients: 4 };
    scenario.moves = vec![Move { from: Some(worker(0)), to: Some(worker(1)), ..often(100) }];
    let run = whole(&scenario);
    let stayed = run.report.moves.outcomes.get("stayed").copied().unwrap_or(0);
    assert!(stayed > 5, "{:?}", run.report.moves);

    let mut scenario = calm(2);
    scenario.faults = vec![Fault { back_after: None, ..fault(FaultKind::Crash, 1, 200, 0) }];
    scenario.moves = vec![Move { from: Some(worker(0)), to: Some(worker(1)), ..often(100) }];
    let run = whole(&scenario);
    assert_eq!(run.report.moves.moved(), 0);
    assert!(run.report.moves.outcomes["stayed"] > 5, "{:?}", run.report.moves);
}

/// Source or target die, are cut off or stand still in the middle of moves.
#[test]
fn b60_b62_losses_in_the_middle_of_moves_change_no_token() {
    for kind in [FaultKind::Crash, FaultKind::Partition, FaultKind::Freeze, FaultKind::Reset] {
        let (mut moved, mut others) = (0, 0);
        for node in [0, 1] {
            let mut scenario = calm(3);
            scenario.cluster.detect = Dur::from_millis(50);
            // So slow that pages are always under way.
            scenario.network.bandwidth = Some(config::Size(1_000_000_000));
            for at in [700, 1500, 2300, 3100] {
                scenario.faults.push(fault(kind, node, at, 300));
            }
            scenario.moves = vec![
                Move { from: Some(worker(0)), to: Some(worker(1)), sessions: 3, ..often(100) },
                Move { from: Some(worker(1)), to: Some(worker(0)), sessions: 3, ..often(100) },
            ];
            let run = whole(&scenario);
            moved += run.report.moves.moved();
            others += ["elsewhere", "stayed"]
                .map(|end| run.report.moves.outcomes.get(end).unwrap_or(&0))
                .into_iter()
                .sum::<u64>();
        }
        assert!(moved > 10 && others > 3, "{kind:?}: {moved} moved, {others} did not");
    }
}

/// A worker that is drained takes nothing new, ends what it has, and leaves; nobody is placed again for it.
#[test]
fn a_drained_worker_leaves_when_it_holds_nothing() {
    let mut scenario = calm(2);
    scenario.faults = vec![fault(FaultKind::Drain, 0, 1000, 500)];
    let run = whole(&scenario);
    assert_eq!(run.report.retries, 0, "{:?}", run.report);
    let lives: Vec<_> = run.report.workers.iter().map(|w| w.lives).collect();
    assert_eq!(lives, [2, 1]);
    scenario.faults[0].back_after = None;
    let gone = whole(&scenario);
    assert_eq!(gone.prefilled.len(), 1, "it is not back");
    // With moves it is gone sooner.
    scenario.moves =
        vec![Move { at: Dur::from_millis(1001), from: Some(worker(0)), sessions: 100, ..Move::default() }];
    let moved = whole(&scenario);
    assert!(moved.report.moves.moved() > 3, "{:?}", moved.report.moves);
    let drawn = |run: &Run| run.report.workers[0].drawn_tokens;
    assert!(drawn(&moved) < drawn(&gone), "{} tokens with moves, {} without", drawn(&moved), drawn(&gone));
}

/// Everything at once, each seed in its own way: nothing is left behind ([`simulate`] looks), and every answer is the true
/// one, or the beginning of it.
#[test]
fn storms_hold_with_moves_and_drains() {
    hold(60);
}

/// `cargo test --release -p sim --test moves -- --ignored`
#[test]
#[ignore = "minutes"]
fn a_thousand_storms_hold_with_moves_and_drains() {
    hold(1000);
}

fn hold(seeds: u64) {
    let (mut moved, mut others, mut finished, mut retries) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let mut scenario = Scenario { seed, ..calm(2 + (seed % 3) as u32) };
        (scenario.workload.requests, scenario.workload.leave) = (50, 0.1);
        (scenario.workload.stall, scenario.workload.stall_for) = (0.1, Dur::from_millis(700));
        (scenario.workload.patience, scenario.workload.deadline) = (Dur::from_secs(2), Dur::from_secs(20));
        (scenario.workload.choices, scenario.cluster.credit) = (1 + (seed % 5 / 4) as u32, 16);
        scenario.cluster.pages = [3000, 200, 90][(seed % 3) as usize];
        scenario.cluster.detect = Dur::from_millis(100);
        if seed % 2 == 0 {
            scenario.cluster.cluster_policies = vec!["cache-aware".to_owned()];
        }
        (scenario.network.jitter, scenario.network.loss) = (Dur::from_millis(2), 0.005);
        scenario.network.detect_spread = Dur::from_millis(50);
        scenario.network.bandwidth = Some(config::Size(400_000_000));
        let random = &mut scenario.random_faults.random;
        (random.crashes, random.partitions, random.resets, random.drains) = (2, 2, 2, 2);
        (random.freezes, random.slow_nodes, random.slow_links) = (1, 1, 2);
        (random.within, random.lasting) = (Dur::from_secs(4), Dur::from_millis(400));
        random.all_roles = seed % 4 == 1;
        scenario.moves = vec![Move { sessions: 2, ..often(40) }];
        scenario.cluster.worker_policy = vec![if seed % 3 == 1 { "offload" } else { "fair" }.to_owned()];
        let run = simulate(&scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        calm::agrees(&scenario, &run, |calm| {
            calm.moves.clear();
            calm.cluster.pages = 3000;
        });
        moved += run.report.moves.moved();
        others += run.report.moves.count() - run.report.moves.moved();
        finished += run.report.finished;
        retries += run.report.retries;
    }
    assert!(moved > 8 * seeds && others > 3 * seeds, "{moved} moved, {others} other ends");
    assert!(finished > 25 * seeds && retries > seeds, "{finished} requests finished, {retries} placed again");
}

#[test]
fn moves_are_data() {
    let text = "[cluster]\nworkers = 3\n[[move]]\nat = \"2s\"\nfrom = \"w0\"\nto = \"w2\"\nsessions = 4\n\
                [[move]]\nat = \"3s\"\ntimes = 10\nevery = \"100ms\"\n[[fault]]\nkind = \"drain\"\nworker = 1\nat = \"1s\"";
    let scenario = Scenario::from_toml(text, "test").unwrap();
    scenario.validate().unwrap();
    let [first, second] = &scenario.moves[..] else { panic!("{:?}", scenario.moves) };
    assert_eq!((first.source(), first.target(), first.sessions, first.times), (Some(0), Some(2), 4, 1));
    assert_eq!((second.source(), second.target(), second.times), (None, None, 10));
    for (text, part) in [
        ("[[move]]\nfrom = \"w2\"", "`move.from` is w2: use a worker, w0 to w1"),
        ("[[move]]\nto = \"gateway\"", "`move.to` is gateway"),
        ("[[move]]\nfrom = \"w1\"\nto = \"w1\"", "`move.to` is w1: it is where requests come from"),
        ("[[move]]\nsessions = 0", "`move.sessions` is 0: use 1 to 1000000"),
        ("[[move]]\ntimes = 0", "`move.times` is 0"),
        ("[[move]]\nwhen = \"1s\"", "when"),
        ("[[fault]]\nkind = \"drain\"\nnodes = [\"controller\"]", "only workers"),
    ] {
        let error = Scenario::from_toml(text, "test").and_then(|s| s.validate()).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
    assert!(Scenario::load(Path::new("scenarios/small.toml")).unwrap().moves.is_empty());
}
