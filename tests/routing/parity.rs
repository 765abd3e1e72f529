//! The simulator places as live nodes do: one log of requests through both.

use serde_json::{Value, json};

use super::{PAGE, Routed, Served, ask, completion, text, with};
use crate::harness::wait_for;

// Streams that move, and a worker that leaves.
mod moves;
// Prompts that a pool keeps.
mod pools;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

/// A worker and, of each stage, policy, mode, action and why, without names.
type Placed = (usize, Vec<[String; 4]>);

/// Live: `w2#17`; simulated: `w00001#1`.
fn number(worker: &str) -> usize {
    let (name, _) = worker.split_once('#').unwrap_or((worker, ""));
    let number: usize = name[1..].parse().unwrap();
    if name.len() == 2 { number - 1 } else { number }
}

/// Names of workers as their numbers, and those of pools without them; nothing else that differs between two runs.
fn neutral(why: &str) -> String {
    why.split_inclusive([' ', ',', ';', ')', ':'])
        .map(|word| match word.trim_end_matches([' ', ',', ';', ')', ':']) {
            worker if worker.starts_with('w') && worker.contains('#') => format!("w{} ", number(worker)),
            // The only one.
            pool if pool.starts_with(['s', 'p']) && pool.contains('#') => "pool ".to_owned(),
            _ => word.to_owned(),
        })
        .collect()
}

/// What a live node says of a placement.
fn live(placement: &Value) -> Placed {
    let word = |stage: &Value, key: &str| neutral(stage[key].as_str().unwrap());
    let stages = placement["stages"].as_array().unwrap();
    let stages = stages.iter().map(|s| ["policy", "mode", "action", "why"].map(|key| word(s, key))).collect();
    (number(placement["worker"].as_str().unwrap()), stages)
}

/// A cluster that records its requests, and a folder to replay them in.
struct Recorded {
    folder: tempfile::TempDir,
    cluster: Routed,
    placed: Vec<Placed>,
}

impl Recorded {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("requests.jsonl");
        let keys = [("LOG__RECORD", log.to_str().unwrap()), ("ENGINE__FAKE__STEP_OVERHEAD", "1ms")];
        let cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &keys);
        Self { folder, cluster, placed: Vec::new() }
    }

    /// Asks for a completion when the controller knows all that happened before. Gives back the answer.
    fn ask(&mut self, prompt: &str, tokens: u32, fields: Value) -> Served {
        self.cluster.settle();
        let body = with(&with(&completion(prompt, tokens), json!({"ignore_eos": true})), fields);
        let served = ask(&self.cluster["g1"].client(), &body);
        self.placed.push(live(&served.body["stages"][0]));
        served
    }

    /// Replays the log of all requests in virtual time with the same configuration: it has to place them on the same
    /// workers for the same reasons. Gives back what that run was.
    fn replay(&self) -> sim::Run {
        let log = self.folder.path().join("requests.jsonl");
        let whole =
            || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() == self.placed.len());
        wait_for("all requests in the log", whole);
        let production = self.folder.path().join("config.toml");
        std::fs::write(&production, "").unwrap();
        let scenario = format!(
            "config = {production:?}\nhardware = \"zero\"\n[workload]\ntrace = {log:?}\n[cluster]\nworkers = {}\n\
             page-tokens = {PAGE}\npages = 4096\nmax-context = 8192\n",
            WORKERS.len()
        );
        let path = self.folder.path().join("scenario.toml");
        std::fs::write(&path, scenario).unwrap();
        let scenario = sim::Scenario::load(&path).unwrap();
        let run = sim::simulate(&scenario).unwrap();
        assert_eq!(run.report.finished, self.placed.len() as u64);
        assert_eq!(run.placements.len(), self.placed.len());
        for (i, (live, placements)) in self.placed.iter().zip(run.placements.values()).enumerate() {
            let [simulated] = &placements[..] else { panic!("placed once: {placements:?}") };
            assert_eq!(live, &self::simulated(simulated), "request {i}");
        }
        let used: std::collections::BTreeSet<usize> = self.placed.iter().map(|(worker, _)| *worker).collect();
        assert_eq!(used.len(), WORKERS.len(), "every worker has a part in it");
        run
    }
}

fn simulated((worker, stages): &sim::node::Placed) -> Placed {
    let stage =
        |s: &policies::policy::Stage| [s.policy.as_str(), s.mode.as_str(), &s.action, &s.why].map(neutral);
    (number(&worker.to_string()), stages.iter().map(stage).collect())
}

/// Requests that share beginnings, one after the other, in a cluster of processes; their log, replayed in virtual time
/// with the same configuration, is placed on the same workers for the same reasons.
#[test]
fn a_log_of_requests_is_placed_in_the_simulator_as_it_was_live() {
    let mut recorded = Recorded::start();
    for i in 0..36_usize {
        // Five beginnings of several lengths, a page that is not full among them, and prompts that share nothing.
        let prompt = match i % 6 {
            5 => text(&format!("alone {i}"), 90),
            group => text(&format!("group {group}"), 40 + 37 * group) + &text(&format!("own {i}"), 25),
        };
        recorded.ask(&prompt, 5, json!({}));
    }
    recorded.replay();
    let placed = &recorded.placed;
    let hits =
        placed.iter().filter(|(_, stages)| stages.iter().any(|s| s[0] == "cache-aware" && s[2] != "abstain"));
    assert!(hits.count() > 10, "{placed:?}");
}

/// A turn of a conversation begins with the answers before it, of which the log has no tokens: it finds as much of them in
/// the simulated caches as it found live.
#[test]
fn turns_that_go_on_from_answers_find_as_much_in_the_simulator_as_live() {
    let mut recorded = Recorded::start();
    let mut said: Vec<String> = (0..5).map(|talk| text(&format!("talk {talk}"), 50 + 23 * talk)).collect();
    let mut found = 0;
    for turn in 0..4 {
        for (talk, prompt) in said.iter_mut().enumerate() {
            // They do not say which conversation it is: a log has other names for it, which are others by hash as well.
            let served = recorded.ask(prompt, 30 + 9 * turn, json!({}));
            found += served.cached();
            if turn > 0 {
                // More than the last prompt without its answer had.
                assert!(served.cached() + 2 * PAGE > served.prompt() - 40, "{talk} {turn}: {}", served.body);
            }
            let answer = served.body["choices"][0]["text"].as_str().unwrap();
            *prompt = format!("{prompt}{answer}{}", text(&format!("{talk} asks {turn}"), 21));
        }
    }
    let run = recorded.replay();
    assert_eq!(run.report.cached_tokens, found, "tokens that were found in caches");
}
