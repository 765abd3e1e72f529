use super::*;

/// Requests go to the workers in turn, whatever those hold.
const IN_TURN: [(&str, &str); 3] = [
    ("CLUSTER__CLUSTER_POLICIES", "disaggregate,replicate"),
    ("CONTROLLER__CHOICE", "round-robin"),
    ("POLICY__REPLICATE__MIN_TOKENS", "32"),
];

/// The stage of the policy in an answer that asks for stages.
fn stage(answer: &Value) -> &Value {
    let stages = answer["stages"][0]["stages"].as_array().expect("stages");
    stages.iter().find(|stage| stage["policy"] == "replicate").expect("a stage")
}

/// What is asked, with the stages.
fn answered(pd: &Pd, request: &Value) -> Value {
    pd["g1"].client().ok(COMPLETIONS, &with(request, json!({"include_stages": true})))
}

/// Waits until the controller has heard of so many pages, those of all workers together.
fn until_pages(pd: &Pd, pages: usize) {
    wait_for("the directory to be up to date", || {
        let rows = pd["c1"].client().get("/v1/directory").ok()?.json()["workers"].as_array()?.clone();
        let known: u64 = rows.iter().filter_map(|row| row["pages"].as_u64()).sum();
        (known == pages as u64).then_some(())
    });
}

/// What a worker holds is fetched by the one that it goes to next, and the answer is what one node gives.
#[test]
fn what_another_worker_holds_is_fetched_and_not_computed() {
    let pd = Pd::of(&["u1", "u2"], &IN_TURN);
    let alone = Node::ready(&FAKE);
    let first = asked(&prompt(1, 200), 1);
    let cold = answered(&pd, &first);
    assert_eq!(stage(&cold)["action"], "cold", "{cold}");
    until_pages(&pd, 12);
    let (holds, asks) = if pd.prefilled("u1") > 0.0 { ("u1", "u2") } else { ("u2", "u1") };
    let more = asked(&[prompt(1, 200), prompt(2, 77)].concat(), 9);
    let warm = answered(&pd, &more);
    let of = stage(&warm);
    assert_eq!((&of["action"], &of["numbers"]["fetch-tokens"]), (&json!("fetch"), &json!(192.0)), "{of}");
    assert_eq!(warm["choices"], alone.client().ok(COMPLETIONS, &more)["choices"]);
    assert_eq!((pd.prefilled(holds), pd.prefilled(asks)), (200.0, 277.0 - 192.0));
    assert_eq!((pd.committed(asks), cached_of(&warm)), (1.0, 192), "{}", pd[asks].log());
    // Now it is the first one's turn, which lacks five pages of that; then both have all of it.
    until_pages(&pd, 12 + 17);
    assert_eq!(stage(&answered(&pd, &more))["numbers"]["fetch-tokens"], 80.0);
    until_pages(&pd, 17 + 17);
    assert_eq!((pd.prefilled(holds), pd.committed(holds)), (205.0, 2.0), "given, and got");
    assert_eq!(stage(&answered(&pd, &more))["action"], "own");
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// A prefill worker has what the decode worker holds of a conversation, which it has never seen.
#[test]
fn a_prefill_worker_fetches_from_the_worker_that_generates() {
    let mut pd = Pd::of(&["d1"], &IN_TURN);
    let alone = Node::ready(&FAKE);
    // Nobody else can compute it yet.
    drop(answered(&pd, &asked(&prompt(1, 200), 1)));
    until_pages(&pd, 12);
    pd.worker("p1", &FAKE);
    pd.until_known(&["d1", "p1"]);
    let more = asked(&[prompt(1, 200), prompt(2, 130)].concat(), 9);
    let answer = answered(&pd, &more);
    let of = stage(&answer);
    assert_eq!(of["action"], "fetch", "{of}");
    assert_eq!(answer["choices"], alone.client().ok(COMPLETIONS, &more)["choices"]);
    assert_eq!((pd.prefilled("d1"), pd.prefilled("p1")), (200.0, 330.0 - 192.0), "{}", pd["p1"].log());
    assert_eq!((pd.committed("p1"), pd.committed("d1")), (2.0, 2.0), "the start, and the prompt");
    assert_eq!(cached_of(&answer), 192);
    pd.assert_idle(&["c1", "g1", "p1", "d1"]);
}

/// The worker that holds a prompt is gone, frozen or without it: the prompt is computed where it goes, and nothing waits for
/// longer than a transfer may take.
#[test]
fn a_holder_that_does_not_answer_costs_its_time_limit_and_no_more() {
    let keys = [&IN_TURN[..], &[("POLICY__DISAGGREGATE__ACCEPT_WITHIN", "500ms")]].concat();
    let mut pd = Pd::of(&["u1", "u2"], &keys);
    let alone = Node::ready(&FAKE);
    drop(answered(&pd, &asked(&prompt(1, 200), 1)));
    until_pages(&pd, 12);
    let (holds, asks) = if pd.prefilled("u1") > 0.0 { ("u1", "u2") } else { ("u2", "u1") };
    pd[holds].signal("STOP");
    let more = asked(&[prompt(1, 200), prompt(2, 77)].concat(), 9);
    let answer = answered(&pd, &more);
    assert_eq!(answer["choices"], alone.client().ok(COMPLETIONS, &more)["choices"]);
    assert_eq!((pd.prefilled(asks), cached_of(&answer)), (277.0, 0));
    pd[holds].signal("CONT");
    pd.until_whole();
    let _ = pd.take(holds);
    let again = asked(&[prompt(1, 200), prompt(3, 77)].concat(), 9);
    assert_eq!(answered(&pd, &again)["choices"], alone.client().ok(COMPLETIONS, &again)["choices"]);
    pd.assert_idle(&["c1", "g1", asks]);
}

/// The real model goes on from pages that another worker computed as if they were its own.
#[test]
fn the_real_model_goes_on_from_what_another_worker_holds() {
    crate::harness::model::default_file();
    let engine = ["--kv-pages", "200", "--max-context", "1024", "--threads", "1"];
    let keys = [&IN_TURN[..], &[("CONTROLLER__OPINION_DEADLINE", "60s")]].concat();
    let pd = Pd::with_engine(&["u1", "u2"], &engine, &keys);
    let alone = Node::ready(&engine);
    let words = |salt: u32, len: u32| -> Vec<u32> {
        (0..len).map(|i| 300 + (i * 37 + salt * 101 + i * i % 17) % 20_000).collect()
    };
    let mut pages = 0;
    for (salt, len) in [47, 128, 300].into_iter().enumerate() {
        let salt = salt as u32;
        drop(answered(&pd, &asked(&words(salt, len), 1)));
        pages += len as usize / PAGE;
        until_pages(&pd, pages);
        let more = asked(&[words(salt, len), words(salt + 50, 31)].concat(), 12);
        let answer = answered(&pd, &more);
        assert_eq!(stage(&answer)["action"], "fetch", "{answer}");
        assert_eq!(answer["choices"], alone.client().ok(COMPLETIONS, &more)["choices"], "{len} tokens");
        assert_eq!(cached_of(&answer), u64::from(len) / 16 * 16);
        pages += (len as usize + 31 + 11) / PAGE;
        until_pages(&pd, pages);
    }
    assert_eq!((pd.committed("u1"), pd.committed("u2")), (3.0, 3.0), "at both ends");
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}
