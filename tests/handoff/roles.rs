use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::cluster::streams::Stream;
use crate::harness::http::{Client, Response};

const SWITCHES: &str = "actor_node_role_switches_total";
const DECISIONS: &str = "actor_node_policy_decisions_total";

fn asked_for(node: &Node, name: &str, body: &Value) -> Response {
    node.client().post(&format!("/v1/workers/{name}/role"), body)
}

/// Asks `through` for another role of the worker `name`; gives what the worker is and is about to be.
fn set_role(pd: &Pd, through: &str, name: &str, role: &str) -> (Value, Value) {
    let answer = asked_for(&pd[through], name, &json!({"role": role}));
    assert_eq!(answer.status, 202, "{}", answer.text());
    let answer = answer.json();
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with(name)), "{answer}");
    (answer["role"].clone(), answer["switching_to"].clone())
}

/// The controller's row of a worker.
fn row(pd: &Pd, name: &str) -> Value {
    let rows = pd["c1"].client().get("/v1/workers").unwrap().json();
    let mine = |row: &&Value| row["id"].as_str().is_some_and(|id| id.starts_with(name));
    rows["data"].as_array().unwrap().iter().find(mine).cloned().unwrap_or_default()
}

fn until_role(pd: &Pd, name: &str, role: &str) {
    wait_for(&format!("{name} to be a {role} worker"), || {
        let row = row(pd, name);
        (row["role"] == role && row["switching_to"].is_null()).then_some(())
    });
}

/// Requests that keep coming until they are told to stop, and their answers compared.
struct Traffic {
    stop: Arc<AtomicBool>,
    clients: Vec<std::thread::JoinHandle<usize>>,
}

impl Traffic {
    fn on(base: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..4)
            .map(|n| {
                let (stop, base) = (stop.clone(), base.to_owned());
                std::thread::spawn(move || {
                    let client = Client::new(&base);
                    let body = asked(&prompt(100 + n, 20 + 40 * n), 12);
                    let expected = answer_of(reference(), &body);
                    let mut answered = 0;
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(client.ok(COMPLETIONS, &body)["choices"], expected["choices"]);
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        Self { stop, clients }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            assert!(client.join().unwrap() > 0);
        }
    }
}

/// Under load, without a request that fails; asked of a gateway, a controller and the worker itself.
#[test]
fn a_unified_worker_becomes_a_prefill_worker_and_comes_back() {
    let pd = Pd::of(&["u1", "u2"], &[("ENGINE__FAKE__STEP_OVERHEAD", "2ms")]);
    let traffic = Traffic::on(&pd["g1"].base);
    set_role(&pd, "g1", "u2", "prefill");
    until_role(&pd, "u2", "prefill");
    let before = pd.committed("u1");
    for salt in 0..3 {
        let body = asked(&prompt(salt, 100), 4);
        assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
    }
    assert!(pd.committed("u1") >= before + 3.0, "its prompts are computed by u2");
    // The view of every node has it.
    wait_for("the gateway's view", || {
        let seen = pd.row("g1", "u2")?;
        (seen["worker"]["role"] == "prefill").then_some(())
    });
    set_role(&pd, "u2", "u2", "unified");
    until_role(&pd, "u2", "unified");
    // Its pages and its engine are what they were.
    wait_for("u2 to generate", || {
        let body = asked(&prompt(200, 20), 2);
        let mut streams: Vec<Stream> =
            (0..2).map(|_| Stream::open(&pd["g1"].base, COMPLETIONS, &body)).collect();
        let there = streams.iter().any(|stream| stream.worker.starts_with("u2"));
        streams.drain(..).for_each(|stream| _ = stream.answer());
        there.then_some(())
    });
    set_role(&pd, "c1", "u1", "decode");
    until_role(&pd, "u1", "decode");
    traffic.end();
    assert_eq!(pd["u2"].figure_where(SWITCHES, "cause=\"admin\""), 2.0);
    assert_eq!(pd["u2"].figure_where(SWITCHES, "role=\"prefill\""), 1.0);
    assert_eq!(pd["g1"].figure_where(REQUESTS, "outcome=\"success\""), pd["g1"].figure(REQUESTS));
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// What it has ends there; meanwhile another call replaces the first, and the present role calls it back.
#[test]
fn a_worker_finishes_what_it_has_before_its_role_changes() {
    let pd = Pd::of(&["u1", "u2"], &[("ENGINE__FAKE__STEP_OVERHEAD", "40ms")]);
    // None that begins like another: that would go where the other went.
    let mut streams: Vec<(Value, Stream)> = Vec::new();
    while streams.last().is_none_or(|(_, stream)| stream.worker != "u2") {
        assert!(streams.len() < 12, "u2 gets no request");
        let body = asked(&prompt(streams.len(), 20), 300);
        let stream = Stream::open(&pd["g1"].base, COMPLETIONS, &body);
        streams.push((body, stream));
    }
    let on_its_way = (json!("unified"), json!("prefill"));
    assert_eq!(set_role(&pd, "c1", "u2", "prefill"), on_its_way);
    wait_for("the controller to hear", || (row(&pd, "u2")["switching_to"] == "prefill").then_some(()));
    // Its figures come a moment later than its tokens.
    wait_for("u2 to count its own prompt", || (pd.prefilled("u2") >= 20.0).then_some(()));
    let before = pd.prefilled("u2");
    for salt in 20..23 {
        let short = asked(&prompt(salt, 20), 2);
        assert_eq!(answer_of(&pd["g1"], &short), answer_of(reference(), &short));
    }
    assert_eq!(pd.prefilled("u2"), before, "it is given nothing new");
    // It is not draining: it is ready, and so is everybody.
    assert_eq!(pd.readiness("u2").0, 200);
    assert_eq!(row(&pd, "u2")["draining"], false);
    assert_eq!(set_role(&pd, "g1", "u2", "prefill"), on_its_way, "twice is once");
    assert_eq!(set_role(&pd, "g1", "u2", "decode"), (json!("unified"), json!("decode")));
    assert_eq!(set_role(&pd, "g1", "u2", "unified"), (json!("unified"), Value::Null), "called back");
    assert_eq!(pd["u2"].figure(SWITCHES), 0.0);
    assert_eq!(set_role(&pd, "u2", "u2", "prefill"), on_its_way);
    for (body, stream) in streams {
        assert_eq!(
            stream.answer()["choices"][0]["text"],
            answer_of(reference(), &body)["choices"][0]["text"]
        );
    }
    until_role(&pd, "u2", "prefill");
    assert_eq!(pd["u2"].figure(SWITCHES), 1.0);
    // The gateway hears of it a moment later than the controller.
    let is_prefill = || set_role(&pd, "g1", "u2", "prefill") == (json!("prefill"), Value::Null);
    wait_for("g1 to know the new role", || is_prefill().then_some(()));
    pd.assert_idle(&["c1", "g1", "u1", "u2"]);
}

/// The only worker of a model changes: requests wait for it.
#[test]
fn requests_wait_for_the_only_worker() {
    let pd = Pd::of(&["u1"], &[("ENGINE__FAKE__STEP_OVERHEAD", "20ms")]);
    let base = pd["g1"].base.clone();
    let stream = Stream::open(&base, COMPLETIONS, &asked(&prompt(1, 20), 400));
    assert_eq!(set_role(&pd, "g1", "u1", "decode"), (json!("unified"), json!("decode")));
    let body = asked(&prompt(2, 40), 4);
    assert_eq!(answer_of(&pd["g1"], &body), answer_of(reference(), &body));
    stream.answer();
    until_role(&pd, "u1", "decode");
    assert_eq!(pd["g1"].figure_where(REQUESTS, "outcome=\"success\""), 2.0);
    pd.assert_idle(&["c1", "g1", "u1"]);
}

/// Ratios that are passed at once, a short time to hold, and one switch.
const REBALANCE: [(&str, &str); 6] = [
    ("POLICY__DISAGGREGATE__REBALANCE", "true"),
    ("POLICY__DISAGGREGATE__REBALANCE_HIGH", "0.5"),
    ("POLICY__DISAGGREGATE__REBALANCE_AFTER", "100ms"),
    ("POLICY__DISAGGREGATE__REBALANCE_PAUSE", "1h"),
    ("POLICY__DISAGGREGATE__REBALANCE_LEAST_TOKENS", "16"),
    ("CLUSTER__ROLE_SWITCH", "true"),
];

/// A flood of long prompts at one prefill worker makes another of a unified one.
#[test]
fn the_policy_switches_a_worker_where_prompts_pile_up() {
    let pace = [("ENGINE__FAKE__PREFILL_PER_TOKEN", "5ms")];
    let pd = Pd::of(&["p1", "u1", "u2"], &[&REBALANCE[..], &pace].concat());
    let flood: Vec<_> = (0..12)
        .map(|salt| {
            let (base, body) = (pd["g1"].base.clone(), asked(&prompt(salt, 5 * CHUNK), 4));
            std::thread::spawn(move || (body.clone(), Client::new(&base).ok(COMPLETIONS, &body)))
        })
        .collect();
    let roles = || ["p1", "u1", "u2"].map(|name| row(&pd, name)["role"].clone());
    wait_for("a second prefill worker", || {
        (roles().iter().filter(|role| **role == "prefill").count() == 2).then_some(())
    });
    for client in flood {
        let (body, answer) = client.join().unwrap();
        assert_eq!(answer["choices"], answer_of(reference(), &body)["choices"]);
    }
    assert_eq!(roles()[0], "prefill");
    let by_policy = |name: &str| pd[name].figure_where(SWITCHES, "cause=\"policy\"");
    assert_eq!(by_policy("u1") + by_policy("u2"), 1.0, "and then there is a pause");
    assert_eq!(pd["c1"].figure_where(DECISIONS, "action=\"switch_role\""), 1.0);
    pd.assert_idle(&["c1", "g1", "p1", "u1", "u2"]);
}

/// In shadow it is said and not done.
#[test]
fn in_shadow_no_role_changes() {
    let keys = [("POLICY__DISAGGREGATE__MODE", "shadow"), ("ENGINE__FAKE__STEP_OVERHEAD", "20ms")];
    // Nothing is sent to prefill workers in shadow, so it is the other side that lacks one.
    let low = [("POLICY__DISAGGREGATE__REBALANCE_LOW", "0.4")];
    let pd = Pd::of(&["p1", "p2", "u1"], &[&REBALANCE[..], &keys, &low].concat());
    let traffic = Traffic::on(&pd["g1"].base);
    wait_for("the policy to say what it would do", || {
        (pd["c1"].figure_where(DECISIONS, "action=\"would_switch_role\"") == 1.0).then_some(())
    });
    traffic.end();
    for (name, role) in [("p1", "prefill"), ("p2", "prefill"), ("u1", "unified")] {
        let row = row(&pd, name);
        assert_eq!((&row["role"], &row["switching_to"]), (&json!(role), &Value::Null));
        assert_eq!(pd[name].figure(SWITCHES), 0.0);
    }
    assert_eq!(pd["c1"].figure_where(DECISIONS, "action=\"switch_role\""), 0.0);
}

#[test]
fn wrong_roles_and_names_are_refused() {
    let pd = Pd::of(&["u1"], &[]);
    for through in ["g1", "c1", "u1"] {
        for body in [
            json!({"role": "boss"}),
            json!({"role": "<b>"}),
            json!({"role": 1}),
            json!({}),
            json!([]),
            json!("prefill"),
            json!({"role": "prefill", "now": true}),
            json!({"role": "p".repeat(2000)}),
        ] {
            let answer = asked_for(&pd[through], "u1", &body);
            assert_eq!(answer.status, 400, "{body}: {}", answer.text());
            assert!(answer.json()["error"]["message"].as_str().is_some(), "{}", answer.text());
            assert!(!answer.text().contains('<'));
        }
        for name in ["u9", "g1", "c1", "u1%23", "%ff"] {
            let answer = asked_for(&pd[through], name, &json!({"role": "prefill"}));
            let wanted = if name == "%ff" { 400 } else { 404 };
            assert_eq!(answer.status, wanted, "{name}: {}", answer.text());
        }
        let path = "/v1/workers/u1/role";
        let plain = pd[through].client().send("POST", path, &[], br#"{"role":"prefill"}"#.to_vec());
        assert_eq!(plain.status, 415, "{}", plain.text());
        assert_eq!(pd[through].client().get(path).unwrap().status, 405);
    }
    assert_eq!(row(&pd, "u1")["role"], "unified");
    // A node alone has nobody to exchange pages with.
    let alone = asked_for(reference(), "node", &json!({"role": "prefill"}));
    assert_eq!(alone.status, 400, "{}", alone.text());
    assert!(alone.text().contains("KV pages"), "{}", alone.text());
}
