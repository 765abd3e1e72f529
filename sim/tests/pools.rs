//! Whole runs with pools that keep KV pages: what they save, what happens to them, and that nothing of it is left behind.

use config::{Choice, Dur, Size, WorkerRole};
use sim::report::page::{Shown, html};
use sim::report::{PoolFigures, Pools};
use sim::scenario::{Arrivals, Fault, FaultKind, Lengths, NodeClass, PoolClass};
use sim::{Report, Run, Scenario, run, simulate};

#[path = "storms/calm.rs"]
mod calm;
#[path = "storms/weather.rs"]
mod weather;

#[path = "pools/full.rs"]
mod full;
#[path = "pools/storm.rs"]
mod storm;

/// A page of the model that these scenarios have, in bytes.
const PAGE: u64 = 8 << 20;

fn pool(ram_pages: u64, disk_pages: Option<u64>) -> PoolClass {
    PoolClass {
        ram: Size(ram_pages * PAGE),
        disk: disk_pages.map(|pages| Size(pages * (PAGE + 8192))),
        ..PoolClass::default()
    }
}

/// Groups with long prefixes; workers hold some of them at a time.
fn scenario(pools: Vec<PoolClass>) -> Scenario {
    let mut scenario = Scenario { seed: 7, pools, ..Scenario::default() };
    let w = &mut scenario.workload;
    (w.requests, w.rate, w.groups, w.shared_prefix) = (150, 15.0, 12, 1000);
    w.prompt = Lengths::Uniform { min: 1100, max: 1600 };
    w.output = Lengths::Exponential { mean: 20, max: 80 };
    let c = &mut scenario.cluster;
    (c.workers, c.pages, c.max_context, c.choice) = (3, 125, 4096, Choice::RoundRobin);
    c.page_tokens = 64;
    c.cluster_policies = vec!["pool-replicate".into()];
    scenario.policy.pool_replicate.min_tokens = Some(64);
    scenario
}

fn fault(kind: FaultKind, nodes: &[&str], at_ms: u64, lasting_ms: u64) -> Fault {
    Fault {
        at: Dur::from_millis(at_ms),
        kind,
        nodes: nodes.iter().map(|name| name.parse().expect("a node's name")).collect(),
        back_after: Some(Dur::from_millis(lasting_ms)),
        ..Fault::default()
    }
}

/// Tokens computed in prefill by all lives of workers.
fn computed(report: &Report) -> u64 {
    report.workers.iter().map(|worker| worker.prefilled_tokens).sum()
}

fn pools(report: &Report) -> &Pools {
    report.pools.as_ref().expect("a run with pools")
}

fn only(report: &Report) -> &PoolFigures {
    let [one] = &pools(report).each[..] else { panic!("one pool") };
    one
}

/// All requests are answered, as without pools.
fn unharmed(scenario: &Scenario) -> Run {
    let run = simulate(scenario).expect("a run that holds");
    let alone = simulate(&Scenario { pools: Vec::new(), ..scenario.clone() });
    assert_eq!(run.report.finished, scenario.workload.requests, "{:?}", run.report.failed);
    // Where a fault is about a pool there is none without.
    if let Ok(alone) = alone {
        assert_eq!(run.answers, alone.answers);
    }
    run
}

#[test]
fn what_a_pool_holds_is_not_computed_again() {
    let scenario = scenario(vec![pool(500, None)]);
    let with = unharmed(&scenario).report;
    let without = run(&Scenario { pools: Vec::new(), ..scenario }).unwrap();
    assert!(without.pools.is_none());
    let (less, more) = (computed(&with), computed(&without));
    assert!(less + 20_000 < more, "{less} tokens computed, {more} without");
    let one = only(&with);
    assert!(one.fetched_tokens > 20_000 && one.stored > 125 && one.given_disk == 0, "{one:?}");
    assert_eq!(one.fetched_tokens, pools(&with).fetched_tokens);
    assert_eq!((one.written, one.pauses, one.lives), (0, 0, 1));
    assert!(one.found <= one.looked_up && one.given_ram * 64 >= one.fetched_tokens);
}

/// A disk that gives later than a worker computes is left alone, also after a while without transfers and where requests
/// come together.
#[test]
fn a_slow_disk_costs_next_to_nothing() {
    let mut scenario = scenario(vec![PoolClass { disk_read: Size(1_500_000_000), ..pool(10, Some(2000)) }]);
    scenario.cluster.workers = 6;
    let w = &mut scenario.workload;
    (w.requests, w.rate) = (1200, 15.0);
    w.arrivals = Arrivals::OnOff { on: Dur::from_secs(2), off: Dur::from_secs(8) };
    let with = unharmed(&scenario).report;
    let without = run(&Scenario { pools: Vec::new(), ..scenario }).unwrap();
    let ratio = |of: fn(&Report) -> f64| of(&with) / of(&without);
    let (mean, p99) = (ratio(|r| r.ttft_ms.mean), ratio(|r| r.ttft_ms.p99));
    let one = only(&with);
    assert!(one.fetched_tokens > 0 && one.written > 125, "it was tried: {one:?}");
    assert!(mean < 1.05 && p99 < 1.1, "TTFT {mean} and {p99} of what it is without a pool, {one:?}");
}

#[test]
fn a_worker_that_has_crashed_fetches_what_it_had() {
    let mut scenario = scenario(vec![pool(500, None)]);
    // All have room for everything: what they compute twice they have lost.
    scenario.cluster.pages = 1000;
    scenario.faults =
        vec![fault(FaultKind::Crash, &["w0", "w1"], 4000, 300), fault(FaultKind::Crash, &["w2"], 6000, 300)];
    let with = unharmed(&scenario).report;
    let without = run(&Scenario { pools: Vec::new(), ..scenario.clone() }).unwrap();
    let (less, more) = (computed(&with), computed(&without));
    assert!(less + 15_000 < more, "{less} tokens computed, {more} without");
    // The same course each time, to the last event.
    assert_eq!(with, run(&scenario).unwrap());
}

#[test]
fn a_pool_finds_on_its_disk_what_it_has_written() {
    // RAM for some pages, so that most are written.
    let mut scenario = scenario(vec![pool(25, Some(1000))]);
    scenario.faults = vec![fault(FaultKind::Crash, &["p0", "w0", "w1", "w2"], 5000, 300)];
    let with = unharmed(&scenario).report;
    let one = only(&with);
    assert!(one.lives == 2 && one.written > 50 && one.given_disk > 125, "{one:?}");
    scenario.pools[0].disk = None;
    let without = unharmed(&scenario).report;
    let ram = only(&without);
    assert!(ram.lives == 2 && ram.written == 0 && ram.given_disk == 0, "{ram:?}");
    assert!(computed(&with) + 5000 < computed(&without), "{} and {}", computed(&with), computed(&without));
}

#[test]
fn pools_stand_still_and_are_cut_off() {
    for kind in
        [FaultKind::Freeze, FaultKind::Partition, FaultKind::Reset, FaultKind::SlowLink, FaultKind::SlowNode]
    {
        let mut scenario = scenario(vec![pool(50, Some(1000)), pool(250, None)]);
        scenario.network.bandwidth = Some(Size(2_000_000_000));
        let faults =
            [(2000, "p0"), (4000, "p1"), (6000, "p0")].map(|(at, name)| fault(kind, &[name], at, 1500));
        scenario.faults = faults.map(|fault| Fault { factor: 20.0, ..fault }).to_vec();
        let run = unharmed(&scenario);
        assert!(pools(&run.report).fetched_tokens > 5000, "{kind:?}: {:?}", run.report.pools);
        assert!(pools(&run.report).each.iter().all(|one| one.lives == 1));
        let lost = matches!(kind, FaultKind::Freeze | FaultKind::Partition | FaultKind::Reset);
        assert_eq!(lost, run.lost_messages > 0, "{kind:?}: {}", run.lost_messages);
    }
}

#[test]
fn prefill_workers_fetch_and_are_asked() {
    let mut scenario = scenario(vec![pool(500, None)]);
    scenario.cluster.workers = Scenario::default().cluster.workers;
    let class = |role, count| NodeClass { role, count, ..NodeClass::default() };
    scenario.nodes = vec![class(WorkerRole::Prefill, 2), class(WorkerRole::Decode, 1)];
    scenario.cluster.cluster_policies.insert(0, "disaggregate".into());
    scenario.policy.disaggregate.min_remote_tokens = Some(128);
    let run = unharmed(&scenario);
    let one = only(&run.report);
    assert!(one.fetched_tokens > 10_000 && one.taken["committed"] > 50, "{one:?}");
}

#[test]
fn a_slow_disk_costs_pages_and_no_time() {
    let mut slow = scenario(vec![PoolClass { disk_write: Size(20_000_000), ..pool(15, Some(1000)) }]);
    slow.policy.pool_replicate.min_tokens = Some(64);
    let run = unharmed(&slow);
    let one = only(&run.report);
    assert!(one.written > 2 && one.dropped > 50, "{one:?}");
    assert_eq!(one.no_space, 0);
}

#[test]
fn a_report_says_what_pools_did() {
    let scenario = scenario(vec![pool(25, Some(1000))]);
    let report = run(&scenario).unwrap();
    let table = report.to_table();
    assert!(table.contains("tokens fetched; pages: "), "{table}");
    assert!(table.contains("from disk") && table.contains("\np00000 "), "{table}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    assert_eq!(json["pools"]["each"][0]["name"], "p00000");
    let of = |key: &str| json["pools"][key].as_u64().unwrap();
    assert!(of("fetched_tokens") > 0 && of("given_disk") > 0 && of("written") > 0);
    // Without pools nothing is said of them.
    let without = Scenario { pools: Vec::new(), ..scenario.clone() };
    let alone = run(&without).unwrap();
    let page = |scenario, report| html(&[Shown { name: "it", scenario, report }]).unwrap();
    let shown = page(&scenario, &report);
    assert!(shown.contains("<h2>Pools</h2>") && shown.contains("<td>p00000</td>"), "{shown}");
    assert!(!page(&without, &alone).contains("<h2>Pools</h2>"));
    assert!(!alone.to_table().contains("tokens fetched") && !alone.to_json().unwrap().contains("\"pools\""));
}

#[test]
fn pools_are_data() {
    let text = "cluster.cluster-policies = ['pool-replicate']\n[[pool]]\nname = 'fast'\ncount = 2\nram = '8GiB'\n\
                [[pool]]\nram = '64MiB'\ndisk = '10GiB'\ndisk-read = '1GiB'\ndisk-write = '500MiB'\n\
                disk-latency = '2ms'\nhardware = 'l40s'\n\
                [[fault]]\nat = '1s'\nback-after = '2s'\npool = 2\nkind = 'pool-disk-full'\n\
                [[fault]]\nat = '1s'\nnodes = ['p0', 'w1']\n[faults.random]\nfull-disks = 3";
    let scenario = Scenario::from_toml(text, "test").unwrap();
    scenario.validate().unwrap();
    assert_eq!((scenario.pool_count(), scenario.pools[1].disk_latency), (3, Dur::from_millis(2)));
    let drawn = scenario.random_faults.random.draw(1, 2, 3);
    assert!(drawn.len() == 3 && drawn.iter().all(|fault| fault.kind == FaultKind::PoolDiskFull));
    assert!(scenario.random_faults.random.draw(1, 2, 0).is_empty());
    let disk = "[[pool]]\ndisk = '1GiB'\n[[pool]]\n";
    let full = "[[fault]]\nat = '1s'\nkind = 'pool-disk-full'\n";
    let cases = [
        ("[[pool]]\nram = '1MiB'".into(), "`pool.ram` is 1MiB: a page of this model takes 2097152 bytes"),
        ("[[pool]]\ndisk = '1KiB'".into(), "`pool.disk` is 1KiB"),
        ("[[pool]]\ncount = 0".into(), "`pool.count` is 0: use 1 to 1000"),
        ("[[pool]]\nhardware = 'abacus'".into(), "`pool.hardware` is abacus"),
        ("[[pool]]\ndisk-read = '0B'".into(), "`pool.disk-read (bytes)` is 0"),
        ("[[pool]]\nsize = '1GiB'".into(), "size"),
        (format!("{disk}{full}back-after = '1s'"), "fault.worker"),
        (format!("{disk}{full}pool = 0"), "`fault.back-after` is missing"),
        (
            format!("{disk}{full}back-after = '1s'\npool = 1"),
            "`fault.pool` is p1: it has no disk; set pool.disk",
        ),
        (format!("{disk}{full}back-after = '1s'\npool = 2"), "`fault.pool` is 2: use 0 to 1"),
        (
            format!("{disk}{full}back-after = '1s'\nworker = 0"),
            "`fault.worker` is w0: only pools have a disk",
        ),
        (format!("{full}back-after = '1s'\nnodes = ['p0']"), "there is no pool; add one, [[pool]]"),
        (format!("{disk}[[fault]]\nat = '1s'\nnodes = ['p0']\nkind = 'drain'"), "only workers are drained"),
        (format!("{disk}[[fault]]\nat = '1s'\npool = 0\nworker = 1"), "`fault.pool` is 0"),
    ];
    for (text, part) in cases {
        let error = Scenario::from_toml(&text, "test").and_then(|s| run(&s)).unwrap_err().to_string();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}
