//! Conversations that their clients name.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{COMPLETIONS, Routed, Served, ask, ask_with, completion, counts, text, with};
use crate::harness::http::{Client, Raw, join};
use crate::harness::wait_for;

/// A conversation under way.
struct Talk {
    id: String,
    prompt: String,
}

impl Talk {
    fn new(id: &str) -> Self {
        Self { id: id.to_owned(), prompt: text(id, 120) }
    }

    /// One turn; the next prompt begins with this one and its answer.
    fn turn(&mut self, client: &Client) -> Served {
        let served =
            ask_with(client, COMPLETIONS, &[("x-session-id", &self.id)], &completion(&self.prompt, 8));
        self.prompt += served.body["choices"][0]["text"].as_str().expect("text");
        self.prompt += " and so on; ";
        served
    }
}

/// Every turn on one worker; when that is lost, on another one.
#[test]
fn a_conversation_stays_on_its_worker_and_moves_when_that_is_lost() {
    let mut cluster = Routed::of(&["c1", "g1", "w1", "w2", "w3"], &[("ENGINE__FAKE__STEP_OVERHEAD", "5ms")]);
    let client = cluster["g1"].client();
    let mut talks: Vec<Talk> = (0..9).map(|i| Talk::new(&format!("talk {i}"))).collect();
    let homes: Vec<String> = talks
        .iter_mut()
        .map(|talk| {
            let served = talk.turn(&client);
            assert_eq!(served.action("session-affinity"), "hash");
            served.worker
        })
        .collect();
    let spread = counts(&homes, &["w1", "w2", "w3"]);
    assert!(spread.iter().all(|n| (1..=5).contains(n)), "strangers are spread: {spread:?}");
    for _ in 0..3 {
        for (talk, home) in talks.iter_mut().zip(&homes) {
            let served = talk.turn(&client);
            assert_eq!((&served.worker, served.action("session-affinity")), (home, "bound"), "{}", talk.id);
            assert!(served.cached() > 100, "{}", served.body["usage"]);
        }
    }

    // Lost in the middle of a turn: the turn ends elsewhere, and the conversation with it.
    let lost = homes[0].clone();
    let life = cluster.incarnation(&lost);
    let body = with(&completion(&talks[0].prompt, 800), json!({"stream": true}));
    let mut raw = Raw::post_with(&cluster["g1"].base, COMPLETIONS, &body, &[("x-session-id", "talk 0")]);
    let (status, head) = raw.head();
    assert_eq!(status, 200, "{head:?}");
    assert!(head.contains(&format!("x-served-by: {lost}")), "{head:?}");
    let mut lines = raw.read_events(3);
    let killed = std::time::Instant::now();
    cluster[&lost].kill();
    lines.extend(raw.remaining());
    assert_eq!(lines.pop().as_deref(), Some("[DONE]"));
    let events: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(join(&events).choices[0].finish, "length");
    cluster.until_lost(&["c1", "g1"], &lost, life, killed);

    let mut moved = BTreeMap::new();
    for round in 0..3 {
        for (talk, home) in talks.iter_mut().zip(&homes) {
            let served = talk.turn(&client);
            let action = served.action("session-affinity");
            if *home != lost {
                assert_eq!((&served.worker, action), (home, "bound"));
                continue;
            }
            // The turn that was resumed has moved the first one already.
            let expected = if round == 0 && talk.id != "talk 0" { "rebind" } else { "bound" };
            assert_eq!(action, expected, "{} in round {round}", talk.id);
            let home = moved.entry(talk.id.clone()).or_insert_with(|| served.worker.clone());
            assert_eq!((&served.worker, served.worker != lost), (&*home, true));
        }
    }
}

/// B39: whatever stands where a session's name should be, the request is served.
#[test]
fn b39_requests_without_a_usable_session_go_by_load() {
    let cluster = Routed::of(&["c1", "g1", "w1", "w2"], &[]);
    let client = cluster["g1"].client();
    let body = |i: usize| completion(&text(&format!("body {i}"), 40), 2);
    let odd: [&[(&str, &str)]; 4] =
        [&[], &[("x-session-id", "")], &[("x-session-id", "  ")], &[("x-session-id", "gespräch")]];
    for (i, headers) in odd.iter().enumerate() {
        let served = ask_with(&client, COMPLETIONS, headers, &body(i));
        assert_eq!(served.action("session-affinity"), "no-session", "{headers:?}");
    }
    // Of two names the first counts.
    let two = [("x-session-id", "first"), ("x-session-id", "second")];
    let served = ask_with(&client, COMPLETIONS, &two, &body(10));
    assert_eq!(served.action("session-affinity"), "hash");
    let bound = |served: &Served| (served.worker.clone(), served.action("session-affinity").to_owned());
    let again = ask_with(&client, COMPLETIONS, &[("x-session-id", "first")], &body(11));
    assert_eq!(bound(&again), (served.worker, "bound".to_owned()));

    // A long name is a name; two that begin alike are two. One beyond the limit of all headers is refused as such.
    let long = "s".repeat(8 << 10);
    let other = format!("{long}t");
    let by_long = |name: &str, i: usize| {
        ask_with(&client, COMPLETIONS, &[("x-session-id", name)], &body(i))
            .action("session-affinity")
            .to_owned()
    };
    let said = [by_long(&long, 20), by_long(&other, 21), by_long(&long, 22), by_long(&other, 23)];
    assert_eq!(said, ["hash", "hash", "bound", "bound"]);
    let headers = [("content-type", "application/json"), ("x-session-id", &*"s".repeat(64 << 10))];
    client.send("POST", COMPLETIONS, &headers, body(24).to_string().into_bytes()).error(431);

    // All the names that clients use are one name.
    let by_user = ask(&client, &with(&body(12), json!({"user": "somebody"})));
    assert_eq!(by_user.action("session-affinity"), "hash");
    let expected = (by_user.worker, "bound".to_owned());
    for header in ["x-session-id", "x-dynamo-session-id", "x-smg-routing-key"] {
        assert_eq!(bound(&ask_with(&client, COMPLETIONS, &[(header, "somebody")], &body(13))), expected);
    }
    let fields = json!({"session_id": "somebody", "user": "another"});
    assert_eq!(bound(&ask(&client, &with(&body(14), fields))), expected);
}

/// B40: a worker that has no room is bound to nobody, however often a conversation tries.
#[test]
fn b40_a_full_worker_gets_no_session() {
    let slow = ("ENGINE__FAKE__STEP_OVERHEAD", "20ms");
    let mut cluster = Routed::of(&["c1", "g1"], &[slow]);
    cluster.node(
        "w1",
        "worker",
        &["--engine", "fake"],
        &[("RUNTIME__MAX_RUNNING", "1"), ("RUNTIME__MAX_WAITING", "1")],
    );
    cluster.until_whole();
    let base = cluster["g1"].base.clone();
    let full: Vec<Raw> = (0..2)
        .map(|i| {
            let long = completion(&text(&format!("long {i}"), 30), 2000);
            Raw::post(&base, COMPLETIONS, &with(&long, json!({"stream": true})))
        })
        .collect();
    wait_for("w1 to be full", || (cluster.rows()[0]["booked"] == 2).then_some(()));
    cluster.worker("w2");
    cluster.until_whole();
    let client = cluster["g1"].client();
    let mut talks: Vec<Talk> = (0..8).map(|i| Talk::new(&format!("new {i}"))).collect();
    for turn in 0..3 {
        for talk in &mut talks {
            let served = talk.turn(&client);
            assert_eq!(served.worker, "w2");
            assert_eq!(served.action("session-affinity"), if turn == 0 { "hash" } else { "bound" });
        }
    }
    drop(full);
    cluster.until_idle(&["w1", "w2"]);
    cluster.settle();
    // Now there is room, and nobody has a binding from before.
    for talk in &mut talks {
        let served = talk.turn(&client);
        assert_eq!((served.worker.as_str(), served.action("session-affinity")), ("w2", "bound"));
    }
}

/// The bindings are the controller's, and its successor has none; but it knows who holds which pages, and a conversation
/// of any length goes on where those are.
#[test]
fn conversations_stay_where_their_pages_are_when_the_controller_is_lost() {
    let mut cluster = Routed::of(&["c1", "c2", "g1", "w1", "w2", "w3"], &[]);
    let client = cluster["g1"].client();
    let mut talks: Vec<Talk> = (0..6).map(|i| Talk::new(&format!("long talk {i}"))).collect();
    talks.iter_mut().for_each(|talk| talk.prompt += &text(&talk.id, 400));
    let homes: Vec<String> = talks.iter_mut().map(|talk| talk.turn(&client).worker).collect();
    cluster.settle();
    let (life, killed) = (cluster.incarnation("c1"), std::time::Instant::now());
    cluster["c1"].kill();
    cluster.until_lost(&["c2", "g1"], "c1", life, killed);
    cluster.until_whole();
    wait_for("g1 to follow c2", || (cluster.view("g1")["leader"] == "c2").then_some(()));
    cluster.settle_at("c2", &[]);
    for turn in 0..2 {
        for (talk, home) in talks.iter_mut().zip(&homes) {
            let served = talk.turn(&client);
            assert_eq!((&served.worker, served.action("session-affinity")), (home, ["hash", "bound"][turn]));
            assert!(served.cached() > 400, "{}", served.body["usage"]);
            cluster.settle_at("c2", &[]);
        }
    }
}
