//! One course of things, live and in virtual time: streams move in the middle, a worker is drained while requests come.
//!
//! The prompts are the simulator's, token for token, so that the answers can be compared as well. What cannot be the same
//! is time: each act waits, live, until everybody knows what the one before has led to, and has a time of its own in the
//! simulator. How many tokens of a stream there are when it moves differs, and no act depends on that.

use std::fmt::Write as _;
use std::path::Path;

use config::ids::RequestId;
use serde_json::{Value, json};
use sim::workload::{Clients, GATEWAY};

use super::{Placed, WORKERS, live, number, simulated};
use crate::cluster::streams::joined;
use crate::harness::http::Raw;
use crate::harness::wait_for;
use crate::routing::{COMPLETIONS, PAGE, Routed, completion, name_of, with};

const MIGRATIONS: &str = "actor_node_migrations_total";

/// A step of an engine. A stream lasts for longer than all acts take on a busy machine.
const STEP: &str = "15ms";
const LONG: u32 = 1000;
const SHORT: u32 = 6;

/// Pages that prompts of each kind begin with; those of a prompt's own are one, and one that is not full.
const BEGINNINGS: [u64; 3] = [20, 24, 30];
const OWN: u64 = PAGE + 9;

/// Simulated time from one act to the next, and until all streams have ended, in milliseconds.
const APART: u64 = 200;
const ALL: u64 = 30_000;

/// What happens. Requests are counted in the order in which they come, and workers as the simulator counts them.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A request of this kind comes; its answer has so many tokens.
    Ask(usize, u32),
    /// This one goes to that worker, or where the controller says. It is the oldest one where it is.
    Move(usize, Option<usize>),
    /// This worker takes nothing new.
    Drain(usize),
    /// It has nothing left, and is gone.
    Left(usize),
    /// All streams end.
    End,
}

const ACTS: [Act; 20] = [
    Act::Ask(0, LONG),
    Act::Ask(1, LONG),
    Act::Ask(2, LONG),
    // To who has the pages, though it is busy.
    Act::Ask(0, SHORT),
    Act::Move(0, Some(1)),
    // Two have the pages now, one of them has nothing to do.
    Act::Ask(0, SHORT),
    Act::Ask(1, SHORT),
    Act::Move(2, None),
    Act::Ask(2, SHORT),
    // Back to where it was.
    Act::Move(0, Some(0)),
    Act::Move(0, Some(1)),
    Act::Drain(1),
    // The only one that has its pages takes nothing new.
    Act::Ask(1, SHORT),
    Act::Move(0, None),
    Act::Move(1, None),
    Act::Left(1),
    Act::Ask(1, SHORT),
    Act::Ask(0, SHORT),
    Act::End,
    Act::Ask(2, SHORT),
];

/// When each act is in the simulator, in milliseconds.
fn times() -> impl Iterator<Item = (u64, Act)> {
    let ended = ACTS.iter().position(|act| matches!(act, Act::End)).unwrap();
    (0_usize..).zip(ACTS).map(move |(i, act)| (i as u64 * APART + if i >= ended { ALL } else { 0 }, act))
}

/// The requests, as lines of a trace.
fn trace() -> String {
    let asks = times().filter_map(|(at, act)| match act {
        Act::Ask(kind, tokens) => Some((at, kind, tokens)),
        _ => None,
    });
    let line = |(n, (at, kind, tokens)): (u64, (u64, usize, u32))| {
        let pages = BEGINNINGS[kind];
        let mut ids: Vec<u64> = (0..pages).map(|page| 1000 * kind as u64 + page).collect();
        ids.push(100_000 + n);
        let row = json!({
            "timestamp": at, "input_length": pages * PAGE + OWN, "output_length": tokens,
            "block_size": PAGE, "hash_ids": ids,
        });
        format!("{row}\n")
    };
    (0..).zip(asks).map(line).collect()
}

/// The simulated cluster, with what else happens there.
fn scenario(folder: &Path, happens: &str) -> sim::Scenario {
    let (trace_file, config) = (folder.join("trace.jsonl"), folder.join("config.toml"));
    std::fs::write(&trace_file, trace()).unwrap();
    std::fs::write(&config, "").unwrap();
    let text = format!(
        "config = {config:?}\n[cost.affine]\nstep-overhead = \"{STEP}\"\n[workload]\ntrace = {trace_file:?}\n[cluster]\n\
         workers = {}\npage-tokens = {PAGE}\npages = 4096\nmax-context = 8192\n{happens}",
        WORKERS.len()
    );
    let path = folder.join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    sim::Scenario::load(&path).unwrap()
}

/// A request of the live cluster.
struct Asked {
    id: String,
    events: Vec<String>,
    /// What is to come of its stream, and where it is.
    running: Option<(Raw, usize)>,
}

/// The live cluster and its requests.
struct Live {
    cluster: Routed,
    asked: Vec<Asked>,
}

impl Live {
    fn start() -> Self {
        let keys = [("ENGINE__FAKE__STEP_OVERHEAD", STEP), ("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "60s")];
        Self { cluster: Routed::of(&["c1", "g1", "w1", "w2", "w3"], &keys), asked: Vec::new() }
    }

    /// Waits until the controller knows all that has happened.
    fn settle(&self) {
        let here =
            |worker| self.asked.iter().filter(|a| matches!(a.running, Some((_, w)) if w == worker)).count();
        let busy: Vec<(&str, u64)> = (0..).zip(WORKERS).map(|(w, name)| (name, here(w) as u64)).collect();
        self.cluster.settle_with(&busy);
    }

    fn ask(&mut self, prompt: &[u32], tokens: u32) {
        self.settle();
        let body =
            with(&completion("", tokens), json!({"prompt": prompt, "ignore_eos": true, "stream": true}));
        let mut raw = Raw::post(&self.cluster["g1"].base, COMPLETIONS, &body);
        let (status, head) = raw.head();
        assert_eq!(status, 200, "{head:?}");
        let worker = head.iter().find_map(|line| line.strip_prefix("x-served-by: ")).expect("x-served-by");
        let at = number(worker);
        let (events, running) = match tokens {
            // Some steps have told the controller which pages are there.
            LONG => (raw.read_events(8), Some((raw, at))),
            _ => (raw.remaining(), None),
        };
        let first: Value = serde_json::from_str(&events[0]).unwrap();
        let id = first["id"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
        self.asked.push(Asked { id, events, running });
    }

    /// Moves a stream. Gives back where it was.
    fn migrate(&mut self, request: usize, to: Option<usize>) -> usize {
        self.settle();
        let client = self.cluster["g1"].client();
        let asked = &mut self.asked[request];
        let path = format!("/v1/sessions/{}/migrate", asked.id);
        let answer = match to {
            Some(to) => client.post(&path, &json!({"to": WORKERS[to]})),
            None => client.send("POST", &path, &[], Vec::new()),
        };
        assert_eq!(answer.status, 200, "request {request}: {}", answer.text());
        let reached = number(answer.json()["to"].as_str().unwrap());
        let (raw, from) = asked.running.take().expect("it runs");
        // It goes on there.
        asked.running = Some((raw, reached));
        assert_eq!(number(answer.json()["from"].as_str().unwrap()), from, "{}", answer.text());
        from
    }

    fn drain(&self, worker: usize) {
        let name = WORKERS[worker];
        self.cluster[name].signal("TERM");
        wait_for("the controller to know that a worker drains", || {
            let rows = self.cluster.rows();
            let row = rows.iter().find(|row| name_of(row) == name)?;
            (row["draining"] == true).then_some(())
        });
    }

    fn left(&mut self, worker: usize) {
        let status = self.cluster.take(WORKERS[worker]).wait();
        assert!(status.success(), "{status}");
        let there = |cluster: &Routed| cluster.workers().contains(&WORKERS[worker].to_owned());
        wait_for("the controller to see it gone", || (!there(&self.cluster)).then_some(()));
    }

    fn end(&mut self) {
        for asked in &mut self.asked {
            if let Some((raw, _)) = asked.running.take() {
                asked.events.extend(raw.remaining());
            }
        }
    }

    /// The placements of a request in turn, and its answer.
    fn course(&self, request: usize) -> (Vec<Placed>, String) {
        let Asked { id, events, .. } = &self.asked[request];
        let (done, events) = events.split_last().expect("a stream has lines");
        assert_eq!(done, "[DONE]", "{events:?}");
        let events: Vec<Value> = events.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found = self.cluster["g1"].client().get(&format!("/v1/requests/{id}")).unwrap().json();
        assert_eq!(found["outcome"], "success", "{found}");
        let placed = found["placements"].as_array().unwrap().iter().map(live).collect();
        (placed, joined(&events)["choices"][0]["text"].as_str().unwrap().to_owned())
    }
}

#[test]
fn moved_streams_and_a_worker_that_leaves_take_the_same_course_in_the_simulator_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let mut clients = Clients::new(&scenario(folder.path(), "")).unwrap();
    let mut live = Live::start();
    let (mut happens, mut moves) = (String::new(), 0);
    for (at, act) in times() {
        match act {
            Act::Ask(_, tokens) => live.ask(&clients.next().unwrap().expect("a request").spec.prompt, tokens),
            Act::Move(request, to) => {
                let from = live.migrate(request, to);
                let to = to.map(|to| format!("to = \"w{to}\"\n")).unwrap_or_default();
                writeln!(happens, "[[move]]\nat = \"{at}ms\"\nfrom = \"w{from}\"\n{to}").unwrap();
                moves += 1;
            }
            Act::Drain(worker) => {
                live.drain(worker);
                writeln!(happens, "[[fault]]\nkind = \"drain\"\nat = \"{at}ms\"\nworker = {worker}").unwrap();
            }
            Act::Left(worker) => live.left(worker),
            Act::End => live.end(),
        }
    }
    let run = sim::simulate(&scenario(folder.path(), &happens)).unwrap();
    assert_eq!((run.report.finished, run.report.retries), (live.asked.len() as u64, 0), "{:?}", run.report);
    let mut all = 0;
    for request in 0..live.asked.len() {
        let (placed, answer) = live.course(request);
        all += placed.len() as u64;
        let id = RequestId::new(GATEWAY, request as u64 + 1);
        let there: Vec<Placed> = run.placements[&id].iter().map(simulated).collect();
        assert_eq!(placed, there, "request {request}");
        let told: Vec<u8> = run.answers[&id][0].iter().map(|token| *token as u8).collect();
        assert_eq!(answer, String::from_utf8(told).unwrap(), "request {request}");
    }
    assert_eq!(all, run.report.requests + moves, "each place that a stream had is one of its placements");
    assert_eq!(run.report.moves.outcomes, [("moved", moves)].into());
    let moved = live.cluster["g1"].figure_where(MIGRATIONS, "outcome=\"moved\"");
    assert_eq!((moved, live.cluster["g1"].figure(MIGRATIONS)), (moves as f64, moves as f64));
    let stayed: Vec<String> = run.roles.keys().map(|worker| worker.node.to_string()).collect();
    assert_eq!(stayed, ["w00000", "w00002"]);
}
