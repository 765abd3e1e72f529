use super::*;
use crate::cluster::streams::Stream;

/// A prompt of 320 tokens takes a second and a half, a token 5 ms.
const PACE: [(&str, &str); 2] =
    [("ENGINE__FAKE__PREFILL_PER_TOKEN", "5ms"), ("ENGINE__FAKE__STEP_OVERHEAD", "5ms")];

/// Limits at which a worker that says nothing is given up.
const IMPATIENT: [(&str, &str); 3] = [
    ("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "1s"),
    ("POLICY__DISAGGREGATE__PROGRESS_WITHIN", "1s"),
    ("POLICY__DISAGGREGATE__LEASE", "2s"),
];

fn until_sending(pd: &Pd) {
    wait_for("pages on their way", || (pd["d1"].figure(RECEIVING) > 0.0).then_some(()));
}

/// Loses `p1` while it computes, in some way, with streams running on `d1`.
fn prefill_is_lost(workers: &[&str], lose: impl FnOnce(&mut Pd)) {
    let mut pd = Pd::of(workers, &[&PACE[..], &IMPATIENT].concat());
    let base = pd["g1"].base.clone();
    let short: Vec<_> = (0..3).map(|salt| asked(&prompt(salt, 20), 200)).collect();
    let running: Vec<Stream> = short.iter().map(|body| Stream::open(&base, COMPLETIONS, body)).collect();
    let long: Vec<_> = (10..13).map(|salt| asked(&prompt(salt, 5 * CHUNK), 8)).collect();
    let waiting: Vec<_> = long
        .iter()
        .map(|body| {
            let (base, body) = (base.clone(), body.clone());
            std::thread::spawn(move || crate::harness::http::Client::new(&base).ok(COMPLETIONS, &body))
        })
        .collect();
    until_sending(&pd);
    lose(&mut pd);
    for (body, stream) in short.iter().zip(running) {
        let text = stream.answer()["choices"][0]["text"].clone();
        assert_eq!(text, answer_of(reference(), body)["choices"][0]["text"], "a stream was disturbed");
    }
    for (body, answer) in long.iter().zip(waiting) {
        let answer = answer.join().unwrap();
        assert_eq!(answer["choices"], answer_of(reference(), body)["choices"]);
    }
    assert_eq!(pd["g1"].figure_where(REQUESTS, "outcome=\"success\""), 6.0);
    assert!(pd["d1"].is_alive());
    assert!(pd["d1"].figure(FALLBACKS) >= 1.0, "{}", pd["d1"].log());
}

/// B44.
#[test]
fn b44_a_prefill_worker_is_killed() {
    prefill_is_lost(&["p1", "d1"], |pd| pd["p1"].kill());
}

/// B44: another one is there.
#[test]
fn b44_one_of_two_prefill_workers_is_killed() {
    prefill_is_lost(&["p1", "p2", "d1"], |pd| {
        let busiest = if pd["p1"].figure("vllm:num_requests_running") > 0.0 { "p1" } else { "p2" };
        pd[busiest].kill();
    });
}

/// B47: it says nothing more, and its connections stay.
#[test]
fn b47_a_prefill_worker_freezes() {
    prefill_is_lost(&["p1", "d1"], |pd| pd["p1"].pause());
}

/// B47: both ends give up at once; what the frozen one does when it is back changes nothing.
#[test]
fn b47_both_ends_give_up() {
    let mut pd = Pd::of(&["p1", "d1"], &[&PACE[..], &IMPATIENT].concat());
    let base = pd["g1"].base.clone();
    for salt in 0..3 {
        let body = asked(&prompt(salt, 5 * CHUNK), 8);
        let raw = crate::harness::http::Raw::post(&base, COMPLETIONS, &with(&body, json!({"stream": true})));
        until_sending(&pd);
        pd["p1"].pause();
        drop(raw);
        pd["d1"].wait_for_figure(RECEIVING, 0.0);
        pd["p1"].resume();
        pd.until_whole();
        pd.until_known(&["p1", "d1"]);
    }
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// B60, B61: the worker that generates is killed: the stream goes on elsewhere, token for token.
#[test]
fn a_decode_worker_is_killed_in_a_stream() {
    let mut pd = Pd::of(&["p1", "d1", "d2"], &[("ENGINE__FAKE__STEP_OVERHEAD", "5ms")]);
    let base = pd["g1"].base.clone();
    let body = asked(&prompt(5, 3 * CHUNK), 60);
    let mut stream = Stream::open(&base, COMPLETIONS, &body);
    stream.read(10);
    let worker = stream.worker.split('#').next().unwrap().to_owned();
    pd[worker.as_str()].kill();
    let text = stream.answer()["choices"][0]["text"].clone();
    assert_eq!(text, answer_of(reference(), &body)["choices"][0]["text"]);
    let left = if worker == "d1" { "d2" } else { "d1" };
    pd.assert_idle(&["c1", "g1", "p1", left]);
}

/// B54: either end restarts at its address; the first request after it is ready works, and is handed off.
#[test]
fn b54_restarts_leave_no_stale_state() {
    let mut pd = Pd::of(&["p1", "d1"], &[]);
    let mut salt = 0;
    let mut works = |pd: &Pd| {
        salt += 1;
        let body = asked(&prompt(salt, 2 * CHUNK), 4);
        let before = pd.committed("d1");
        assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
        assert_eq!(pd.committed("d1"), before + 1.0, "handed off\n{}", pd["d1"].log());
    };
    works(&pd);
    for round in 0..4 {
        let name = if round % 2 == 0 { "d1" } else { "p1" };
        pd[name].kill();
        pd[name].restart();
        pd.until_whole();
        pd.until_known(&["p1", "d1"]);
        works(&pd);
    }
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// B45: what a prefill worker turns away is computed elsewhere at once, not after a time limit.
#[test]
fn b45_a_refusal_is_passed_on_at_once() {
    let mut cluster = Cluster::new(&[&SMALL[..], &[("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "1h")]].concat());
    cluster.controller("c1");
    cluster.gateway("g1");
    let p1 = ["--engine", "fake", "--worker-role", "prefill"];
    // Its pages hold less than the prompt.
    cluster.node("p1", "worker", &p1, &[("ENGINE__KV_PAGES", "6")]);
    cluster.node("d1", "worker", &["--engine", "fake", "--worker-role", "decode"], &[]);
    cluster.until_whole();
    let pd = Pd(cluster);
    pd.until_known(&["p1", "d1"]);
    let body = asked(&prompt(9, 3 * CHUNK), 6);
    // The client gives up sooner than that limit passes.
    assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}
