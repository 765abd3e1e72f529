use std::thread::JoinHandle;

use super::*;
use crate::cluster::streams::{Kind, LEAST_LOADED, Stream, joined, kinds};
use crate::harness::http::{Client, Response};

const MIGRATIONS: &str = "actor_node_migrations_total";
const MOVED: &str = "outcome=\"moved\"";
/// A token takes 10 ms, so that there is time for what happens in the middle of a stream.
const PACE: (&str, &str) = ("ENGINE__FAKE__STEP_OVERHEAD", "10ms");

/// A node that stands still is waited for longer than any test.
const PATIENT: (&str, &str) = ("CLUSTER__SUSPECT_AFTER", "5m");

fn pair(keys: &[(&str, &str)]) -> Pd {
    Pd::of(&["u1", "u2"], &[&[PACE, LEAST_LOADED], keys].concat())
}

/// Opens a stream, with the number of its request: the second one drawn after that of a request before, for each request
/// over HTTP draws one for itself.
fn open(pd: &Pd, path: &str, body: &Value) -> (String, Stream) {
    let before = pd["g1"].client().ok(COMPLETIONS, &asked(&prompt(9999, 1), 1));
    let before = before["id"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
    let stream = Stream::open(&pd["g1"].base, path, body);
    let id = format!("{:032x}", u128::from_str_radix(&before, 16).unwrap() + 2);
    (id, stream)
}

/// Where a stream does not run.
fn other(worker: &str) -> &'static str {
    if worker.starts_with("u1") { "u2" } else { "u1" }
}

fn ask(client: &Client, id: &str, to: Option<&str>) -> Response {
    let path = format!("/v1/sessions/{id}/migrate");
    match to {
        Some(to) => client.post(&path, &json!({"to": to})),
        None => client.send("POST", &path, &[], Vec::new()),
    }
}

/// Moves a stream as soon as its worker generates for it.
fn migrate(pd: &Pd, id: &str, to: Option<&str>) -> Response {
    let client = pd["g1"].client();
    wait_for("a token", || {
        let answer = ask(&client, id, to);
        let early = answer.status == 409 && answer.json()["error"]["code"] == "not_running";
        let runs = || client.get(&format!("/v1/requests/{id}")).unwrap().json()["outcome"] == "running";
        (!early || !runs()).then_some(answer)
    })
}

/// As [`migrate`], while others go on.
fn migrate_meanwhile(pd: &Pd, id: &str, to: &str) -> JoinHandle<Response> {
    let (client, id, to) = (pd["g1"].client(), id.to_owned(), to.to_owned());
    std::thread::spawn(move || ask(&client, &id, Some(&to)))
}

/// B60, B61, B62: streams of every kind move after some tokens, back where that is their end, and say what one node says.
fn every_kind_moves(tokens: usize) {
    let pd = pair(&[]);
    let kinds = kinds(&reference().client(), 300);
    let mut streams: Vec<(&Kind, Stream)> = Vec::new();
    let mut moved = 0.0;
    for kind in &kinds {
        let (id, mut stream) = open(&pd, kind.path, &kind.body);
        if streams.is_empty() {
            stream.read(tokens);
        }
        // At once, beside those that have moved before: on a slow machine too a stream lasts that long.
        let to = other(&stream.worker);
        let answer = migrate(&pd, &id, Some(to));
        let from = stream.worker.clone();
        streams.push((kind, stream));
        // A stop string may have ended it.
        if answer.status == 409 && kind.name == "stop" {
            continue;
        }
        assert_eq!(answer.status, 200, "{}: {}", kind.name, answer.text());
        let answer = answer.json();
        assert!(answer["to"].as_str().unwrap().starts_with(to), "{answer}");
        assert!(answer["from"].as_str().unwrap().starts_with(&from), "{answer}");
        moved += 1.0;
    }
    assert_eq!(pd["g1"].figure_where(MIGRATIONS, MOVED), moved);
    for (kind, stream) in streams {
        assert_eq!(stream.answer(), kind.answer, "{}", kind.name);
    }
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

#[test]
fn b61_every_kind_moves_after_its_first_token() {
    every_kind_moves(1);
}

#[test]
fn b61_every_kind_moves_before_a_page_is_full() {
    every_kind_moves(15);
}

#[test]
fn b61_every_kind_moves_when_a_page_is_full() {
    every_kind_moves(16);
}

#[test]
fn b61_every_kind_moves_after_some_pages() {
    every_kind_moves(33);
}

/// All positions around a page's boundary: there and back again, and no more than a page is computed anew each time, nor
/// more than a token by the worker that is in the middle of the stream.
#[test]
fn a_stream_moves_there_and_back_and_nothing_is_computed_twice() {
    let pd = pair(&[]);
    for (salt, len) in [5 * CHUNK - 1, 5 * CHUNK, 5 * CHUNK + 1, 5 * CHUNK + 9].into_iter().enumerate() {
        let drawn =
            json!({"temperature": 1, "seed": salt, "logprobs": 2, "stream_options": {"include_usage": true}});
        let body = with(&asked(&prompt(salt + 500, len), 500), drawn);
        let expected = joined(&reference().client().stream(COMPLETIONS, &body));
        let (id, mut stream) = open(&pd, COMPLETIONS, &body);
        let (from, to) = (other(other(&stream.worker)), other(&stream.worker));
        stream.read(14 + salt);
        for (step, to) in [(1, to), (2, from), (3, to)] {
            let source = other(to);
            let (before, source_before) = (pd.prefilled(to), pd.prefilled(source));
            let answer = migrate(&pd, &id, Some(to));
            assert_eq!(answer.status, 200, "{}", answer.text());
            stream.read(14 + salt + step * 25);
            let computed = pd.prefilled(to) - before;
            assert!(computed <= PAGE as f64, "{computed} tokens were computed at {to}");
            let computed = pd.prefilled(source) - source_before;
            assert!(computed <= 1.0, "{computed} tokens were computed at {source}, beside the stream");
        }
        assert_eq!(stream.answer(), expected);
    }
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// What cannot be moved is refused, says why, and runs on.
#[test]
fn what_cannot_be_moved_is_refused() {
    let pd = pair(&[]);
    let client = pd["g1"].client();
    let body = asked(&prompt(1, 40), 600);
    let expected = answer_of(reference(), &body);
    assert_eq!(ask(&client, "nobody", None).error(404)["code"], "request_not_found");
    assert_eq!(ask(&client, &"1".repeat(32), Some("u1")).error(404)["code"], "request_not_found");
    let (id, mut stream) = open(&pd, COMPLETIONS, &body);
    stream.read(2);
    assert_eq!(ask(&client, &id, Some("u9")).error(400)["code"], "unknown_worker");
    let path = format!("/v1/sessions/{id}/migrate");
    for wrong in [json!({"to": 1}), json!({"into": "u1"}), json!([])] {
        client.post(&path, &wrong).error(400);
    }
    assert_eq!(ask(&client, &id, Some(&stream.worker)).error(409)["code"], "already_there");
    assert_eq!(stream.answer()["choices"][0]["text"], expected["choices"][0]["text"]);
    let over = wait_for("the end", || {
        let answer = ask(&client, &id, Some("u1"));
        (answer.json()["error"]["code"] == "not_running").then_some(answer)
    });
    over.error(409);
    assert_eq!(pd["g1"].figure_where(MIGRATIONS, MOVED), 0.0);
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// Without a target the controller names one; where there is none the stream stays.
#[test]
fn the_controller_names_a_target() {
    let mut pd = pair(&[]);
    let body = asked(&prompt(2, 100), 500);
    let expected = answer_of(reference(), &body)["choices"][0]["text"].clone();
    let (id, mut stream) = open(&pd, COMPLETIONS, &body);
    stream.read(3);
    let to = other(&stream.worker);
    let answer = migrate(&pd, &id, None);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.json()["to"].as_str().unwrap().starts_with(to));
    assert_eq!(stream.answer()["choices"][0]["text"], expected);
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
    pd.take("u2").kill();
    pd.until_known(&["u1"]);
    let (id, mut stream) = open(&pd, COMPLETIONS, &body);
    stream.read(3);
    assert_eq!(migrate(&pd, &id, None).error(503)["code"], "migration_failed");
    assert_eq!(stream.answer()["choices"][0]["text"], expected);
    pd.assert_idle(&["c1", "g1", "u1"]);
}

/// Who does not want to wait is answered at once, or after as long as he says, and looks the outcome up.
#[test]
fn the_outcome_of_a_migration_can_be_looked_up() {
    let mut pd = pair(&[PATIENT]);
    let body = asked(&prompt(8, 10 * PAGE), 500);
    let expected = answer_of(reference(), &body)["choices"][0]["text"].clone();
    let (id, mut stream) = open(&pd, COMPLETIONS, &body);
    let (from, to) = (other(other(&stream.worker)), other(&stream.worker));
    stream.read(5);
    let client = pd["g1"].client();
    let path = format!("/v1/sessions/{id}/migrate");
    for wrong in [json!("soon"), json!(5), json!("11m")] {
        client.post(&path, &json!({"to": to, "timeout": wrong})).error(400);
    }
    let last = || client.get(&format!("/v1/requests/{id}")).unwrap().json()["migrations"].clone();
    assert_eq!(last(), json!([]));
    // The source does not answer: this takes as long as the test wants.
    pd[from].pause();
    let answer = client.post(&path, &json!({"to": to, "timeout": "0s"}));
    assert_eq!((answer.status, &answer.json()["state"]), (202, &json!("moving")), "{}", answer.text());
    assert!(answer.json()["to"].as_str().unwrap().starts_with(to), "{}", answer.text());
    assert_eq!(ask(&client, &id, Some(to)).error(409)["code"], "already_moving");
    assert_eq!((&last()[0]["state"], &last()[0]["from"]), (&json!("moving"), &Value::Null), "{}", last());
    pd[from].resume();
    let moved = wait_for("its end", || Some(last()[0].clone()).filter(|row| row["state"] != "moving"));
    assert_eq!(moved["state"], "moved", "{moved}");
    assert!(moved["from"].as_str().unwrap().starts_with(from), "{moved}");
    assert!(moved["to"].as_str().unwrap().starts_with(to), "{moved}");
    assert_eq!(last().as_array().unwrap().len(), 1);
    assert_eq!(stream.answer()["choices"][0]["text"], expected);
    pd.until_whole();
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// A worker that drains takes nothing, and says so before anything has changed; what runs there can be moved away, and then
/// it is gone.
#[test]
fn b61_a_worker_that_drains_gives_and_does_not_take() {
    // The switch takes less than the tokens of a page: the source ends with it, and who lacks more has to compute it.
    let mut pd = pair(&[("ENGINE__FAKE__STEP_OVERHEAD", "60ms")]);
    let opened = |salt| {
        let body = asked(&prompt(salt, 10 * PAGE), 300);
        let expected = answer_of(reference(), &body)["choices"][0]["text"].clone();
        let (id, stream) = open(&pd, COMPLETIONS, &body);
        (id, stream, expected)
    };
    let mut streams = [opened(3), opened(6)];
    streams.sort_by(|a, b| a.1.worker.cmp(&b.1.worker));
    let [(leaves, mut there, first), (stays, mut here, second)] = streams;
    assert_eq!((there.worker.as_str(), here.worker.as_str()), ("u1", "u2"));
    there.read(3);
    here.read(3);
    let mut drained = pd.take("u1");
    drained.signal("TERM");
    wait_for("u1 to drain", || {
        let rows = pd["c1"].client().get("/v1/workers").ok()?.json();
        let drains = |row: &Value| row["draining"] == true && row["id"].as_str().unwrap().starts_with("u1");
        rows["data"].as_array()?.iter().any(drains).then_some(())
    });
    assert_eq!(migrate(&pd, &stays, Some("u1")).error(503)["code"], "migration_failed");
    assert_eq!(pd["g1"].figure_where(MIGRATIONS, "outcome=\"stayed\""), 1.0);
    let before = pd.prefilled("u2");
    assert_eq!(migrate(&pd, &leaves, Some("u2")).status, 200);
    drained.wait();
    for (stream, expected) in [(there, first), (here, second)] {
        assert_eq!(stream.answer()["choices"][0]["text"], expected);
    }
    assert!(pd.prefilled("u2") - before <= PAGE as f64);
    pd.assert_idle(&["c1", "g1", "u2"]);
}

/// A target that is full says so, and the stream stays.
#[test]
fn a_full_target_leaves_the_stream_where_it_is() {
    let pd = pair(&[("RUNTIME__MAX_RUNNING", "1"), ("RUNTIME__MAX_WAITING", "1")]);
    let bodies: Vec<Value> = (0..4).map(|salt| asked(&prompt(salt + 700, 40), 500)).collect();
    let expected: Vec<Value> =
        bodies.iter().map(|body| answer_of(reference(), body)["choices"][0]["text"].clone()).collect();
    // Two for each: one runs, one waits.
    let (id, mut first) = open(&pd, COMPLETIONS, &bodies[0]);
    first.read(3);
    let rest = bodies[1..].iter().map(|body| Stream::open(&pd["g1"].base, COMPLETIONS, body));
    let rest: Vec<Stream> = rest.collect();
    let to = other(&first.worker);
    wait_for("the other one to be full", || (pd[to].figure("vllm:num_requests_waiting") > 0.0).then_some(()));
    assert_eq!(migrate(&pd, &id, Some(to)).error(503)["code"], "migration_failed");
    assert_eq!(pd["g1"].figure_where(MIGRATIONS, "outcome=\"stayed\""), 1.0);
    for (stream, expected) in std::iter::once(first).chain(rest).zip(expected) {
        assert_eq!(stream.answer()["choices"][0]["text"], expected);
    }
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// What happens to whom while the target asks a source that does not answer.
fn in_the_middle(disturb: impl FnOnce(&mut Pd, &str, &str)) {
    let mut pd = pair(&[PATIENT]);
    let body = asked(&prompt(4, 10 * PAGE), 500);
    let expected = answer_of(reference(), &body)["choices"][0]["text"].clone();
    let (id, mut stream) = open(&pd, COMPLETIONS, &body);
    let (from, to) = (other(other(&stream.worker)), other(&stream.worker));
    stream.read(5);
    pd[from].pause();
    let answer = migrate_meanwhile(&pd, &id, to);
    wait_for("the target to ask", || (pd[to].figure(RECEIVING) > 0.0).then_some(()));
    disturb(&mut pd, from, to);
    let error = answer.join().unwrap().error(503);
    assert_eq!(error["code"], "migration_failed");
    assert_eq!(stream.answer()["choices"][0]["text"], expected);
    let mut left = vec!["c1", "g1"];
    for name in [from, to] {
        if pd[name].is_alive() {
            left.push(name);
        }
    }
    pd.assert_idle(&left);
    assert_eq!(pd["g1"].figure_where(REQUESTS, "outcome=\"worker_lost\""), 0.0);
}

#[test]
fn b60_the_source_is_killed_while_pages_are_fetched() {
    in_the_middle(|pd, from, _| pd[from].kill());
}

#[test]
fn the_target_is_killed_while_it_fetches() {
    in_the_middle(|pd, from, to| {
        pd[to].kill();
        pd[from].resume();
    });
}

/// B47: the client leaves in the middle: neither end keeps anything.
#[test]
fn b47_a_client_leaves_while_pages_are_fetched() {
    let mut pd = pair(&[PATIENT]);
    let (id, mut stream) = open(&pd, COMPLETIONS, &asked(&prompt(5, 10 * PAGE), 500));
    let (from, to) = (other(other(&stream.worker)), other(&stream.worker));
    stream.read(5);
    pd[from].pause();
    let answer = migrate_meanwhile(&pd, &id, to);
    wait_for("the target to ask", || (pd[to].figure(RECEIVING) > 0.0).then_some(()));
    drop(stream);
    pd[to].wait_for_figure(RECEIVING, 0.0);
    assert_eq!(answer.join().unwrap().error(409)["code"], "not_running");
    pd[from].resume();
    pd.until_whole();
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// The real model: a stream moves around a page's boundary, greedy and drawn, and goes on as at one node.
#[test]
fn the_real_model_moves_in_the_middle_of_a_stream() {
    crate::harness::model::default_file();
    let engine = ["--kv-pages", "200", "--max-context", "1024", "--threads", "1"];
    let pd = Pd::with_engine(&["u1", "u2"], &engine, &[LEAST_LOADED]);
    let alone = Node::ready(&engine);
    let mut moved = 0.0;
    for (salt, after) in [1, 15, 16, 17].into_iter().enumerate() {
        let words: Vec<usize> = (0..48).map(|i| 300 + (i * 37 + salt * 101) % 20_000).collect();
        let base = with(&completion("", 100), json!({"prompt": words, "ignore_eos": true, "logprobs": 1}));
        let body = if salt % 2 == 0 { base } else { with(&base, json!({"temperature": 0.9, "seed": 5})) };
        let expected = joined(&alone.client().stream(COMPLETIONS, &body));
        let (id, mut stream) = open(&pd, COMPLETIONS, &body);
        stream.read(after);
        let to = other(&stream.worker);
        let before = pd.prefilled(to);
        let answer = migrate(&pd, &id, Some(to));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(stream.answer(), expected, "moved after {after} tokens");
        assert!(pd.prefilled(to) - before <= PAGE as f64);
        moved += 1.0;
    }
    assert_eq!(pd["g1"].figure_where(MIGRATIONS, MOVED), moved);
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}
