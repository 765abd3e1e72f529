//! The simulator has the same prompts computed elsewhere as live workers.

use std::fmt::Write as _;

use super::*;
use crate::cluster::streams::REQUESTS;

/// What keeps the worker busy for as long as it takes the others to come: its tokens take more than six seconds.
const WORK: usize = 3200;

/// The prompts that come while that is computed, one after the other, and whether they leave: all of them but the short
/// ones, for whoever computes them has nothing else to do and is done with all of them sooner.
const THEN: [(usize, bool); 6] =
    [(320, true), (40, false), (200, true), (63, false), (64, true), (100, true)];

/// One log of requests through live workers, and through the simulator with the same configuration.
#[test]
fn the_same_prompts_leave_in_the_simulator_as_live() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("requests.jsonl");
    let keys = [ON, ("LOG__RECORD", log.to_str().unwrap())];
    let cluster = cluster(&["p1"], &[], &keys);
    let answers: Vec<JoinHandle<Value>> = [(WORK, false)]
        .iter()
        .chain(&THEN)
        .enumerate()
        .map(|(n, (tokens, _))| {
            let answer = ask(&cluster, &[asked(30 + n, *tokens)]).remove(0);
            // Each is where it stays before the next one comes, so that they come in this order.
            wait_for("the request at its worker", || {
                let names = [RUNNING, WAITING];
                let here: f64 = names.iter().map(|name| cluster["u1"].figure(name)).sum();
                let ended = cluster["g1"].figure(REQUESTS);
                (here + cluster["u1"].figure(OUTSTANDING) + ended > n as f64).then_some(())
            });
            answer
        })
        .collect();
    answers.into_iter().for_each(|answer| drop(answer.join().unwrap()));
    cluster["g1"].wait_for_figure(REQUESTS, 1.0 + THEN.len() as f64);
    let leave = || THEN.iter().filter(|(_, leaves)| *leaves).map(|(tokens, _)| *tokens as u64);
    let live = [cluster["u1"].figure(PREFILLED_TOKENS), cluster["p1"].figure(PREFILLED_TOKENS)];
    assert_eq!(count(&cluster, "computed"), leave().count() as f64, "{}", cluster["u1"].log());
    assert_eq!(live[1], leave().sum::<u64>() as f64);

    let lines = || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() == 1 + THEN.len());
    wait_for("all requests in the log", lines);
    let production = folder.path().join("config.toml");
    let configured = "[policy.disaggregate]\nmode = \"off\"\naccept-within = \"60s\"\n[runtime]\n\
                      max-batch-tokens = 64\nmax-running = 64\nworker-policy = \"offload\"\n\
                      [worker-policy.offload]\nmin-suffix = 64\n";
    std::fs::write(&production, configured).unwrap();
    let mut scenario = String::new();
    write!(
        scenario,
        "config = {production:?}\n[cost.affine]\nprefill-per-token = \"2ms\"\n[workload]\ntrace = {log:?}\n[cluster]\n\
         page-tokens = 16\npages = 4096\nmax-context = 8192\n[[node]]\n[[node]]\nrole = \"prefill\"\n"
    )
    .unwrap();
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let run = sim::simulate(&sim::Scenario::load(&path).unwrap()).unwrap();
    assert_eq!(run.report.finished, 1 + THEN.len() as u64, "{:?}", run.report);
    let simulated: Vec<f64> = run.prefilled.values().map(|tokens| *tokens as f64).collect();
    assert_eq!(simulated, live, "{:?}", run.report.offloads);
    assert_eq!(run.report.offloads.outcomes, [("computed", leave().count() as u64)].into());
    assert_eq!(run.report.offloads.tokens as f64, cluster["u1"].figure(TOKENS));
    nothing_is_left(&cluster, &["c1", "g1", "u1", "p1"]);
}
