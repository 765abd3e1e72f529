//! The simulator places as live nodes do: one log of requests through both.

use serde_json::{Value, json};

use super::{PAGE, Routed, ask, completion, text, with};
use crate::harness::wait_for;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

/// A worker and, of each stage, policy, mode, action and why, without names.
type Placed = (usize, Vec<[String; 4]>);

/// Live: `w2#17`; simulated: `w00001#1`.
fn number(worker: &str) -> usize {
    let (name, _) = worker.split_once('#').unwrap_or((worker, ""));
    let number: usize = name[1..].parse().unwrap();
    if name.len() == 2 { number - 1 } else { number }
}

/// Names of workers as their numbers; nothing else that differs between two runs.
fn neutral(why: &str) -> String {
    why.split_inclusive([' ', ',', ';', ')', ':'])
        .map(|word| match word.trim_end_matches([' ', ',', ';', ')', ':']) {
            worker if worker.starts_with('w') && worker.contains('#') => format!("w{} ", number(worker)),
            _ => word.to_owned(),
        })
        .collect()
}

fn live(body: &Value) -> Placed {
    let placement = &body["stages"][0];
    let word = |stage: &Value, key: &str| neutral(stage[key].as_str().unwrap());
    let stages = placement["stages"].as_array().unwrap();
    let stages = stages.iter().map(|s| ["policy", "mode", "action", "why"].map(|key| word(s, key))).collect();
    (number(placement["worker"].as_str().unwrap()), stages)
}

/// Requests that share beginnings, one after the other, in a cluster of processes; their log, replayed in virtual time
/// with the same configuration, is placed on the same workers for the same reasons.
#[test]
fn a_log_of_requests_is_placed_in_the_simulator_as_it_was_live() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("requests.jsonl");
    let keys = [("LOG__RECORD", log.to_str().unwrap()), ("ENGINE__FAKE__STEP_OVERHEAD", "1ms")];
    let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &keys);
    let client = cluster["g1"].client();
    let mut placed = Vec::new();
    for i in 0..36_usize {
        // Five beginnings of several lengths, a page that is not full among them, and prompts that share nothing.
        let prompt = match i % 6 {
            5 => text(&format!("alone {i}"), 90),
            group => text(&format!("group {group}"), 40 + 37 * group) + &text(&format!("own {i}"), 25),
        };
        cluster.settle();
        placed.push(live(&ask(&client, &with(&completion(&prompt, 5), json!({"ignore_eos": true}))).body));
    }
    let whole = || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() == placed.len());
    wait_for("all requests in the log", whole);

    let production = folder.path().join("config.toml");
    std::fs::write(&production, "").unwrap();
    let scenario = format!(
        "config = {production:?}\nhardware = \"zero\"\n[workload]\ntrace = {log:?}\n[cluster]\nworkers = {}\n\
         page-tokens = {PAGE}\npages = 4096\nmax-context = 8192\n",
        WORKERS.len()
    );
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let scenario = sim::Scenario::load(&path).unwrap();
    let run = sim::simulate(&scenario).unwrap();
    let simulated: Vec<Placed> = run
        .placements
        .values()
        .map(|placements| {
            let [(worker, stages)] = &placements[..] else { panic!("placed once: {placements:?}") };
            let stage = |s: &policies::policy::Stage| {
                [s.policy.as_str(), s.mode.as_str(), &s.action, &s.why].map(neutral)
            };
            (number(&worker.to_string()), stages.iter().map(stage).collect())
        })
        .collect();
    assert_eq!(run.report.finished, placed.len() as u64);
    for (i, (live, simulated)) in placed.iter().zip(&simulated).enumerate() {
        assert_eq!(live, simulated, "request {i}");
    }
    assert_eq!(placed.len(), simulated.len());
    let used: std::collections::BTreeSet<usize> = placed.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(used.len(), WORKERS.len(), "every worker has a part in it");
    let hits =
        placed.iter().filter(|(_, stages)| stages.iter().any(|s| s[0] == "cache-aware" && s[2] != "abstain"));
    assert!(hits.count() > 10, "{placed:?}");
}
