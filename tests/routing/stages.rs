//! What a client is told about the placement of its request when it asks, and what everybody may look up.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Routed, completion, stage, text, with};
use crate::harness::wait_for;

/// The stages of a stream: a chunk of their own, before that of the totals and after all others.
fn streamed(events: &[Value]) -> Value {
    let at = events.iter().position(|e| e.get("stages").is_some()).expect("a chunk of stages");
    assert_eq!(at, events.len() - 2, "{events:?}");
    assert_eq!(events[at]["choices"], json!([]));
    assert!(events[at + 1]["usage"].is_object(), "{events:?}");
    events[at]["stages"].clone()
}

/// One placement a prompt, with all that belongs into it.
fn assert_stages(stages: &Value, prompts: usize) {
    let placements = stages.as_array().unwrap_or_else(|| panic!("a list, not {stages}"));
    assert_eq!(placements.len(), prompts, "{stages:#}");
    for placement in placements {
        assert_eq!(placement["attempt"], 0);
        assert!(placement["worker"].as_str().unwrap().starts_with('w'), "{placement}");
        let of: Vec<&Value> = placement["stages"].as_array().unwrap().iter().map(|s| &s["policy"]).collect();
        let all = ["cache-aware", "session-affinity", "pd_disaggregation", "replicate", "placement"];
        assert_eq!(of, all, "in the order of the list");
        for policy in all {
            let stage = stage(placement, policy);
            assert_eq!(stage["mode"], "prod");
            assert!(stage["action"].is_string() && stage["duration_us"].is_u64(), "{stage}");
            assert!(!stage["why"].as_str().unwrap().is_empty(), "{stage}");
            assert!(stage["numbers"].is_object(), "{stage}");
        }
    }
    let mut requests: Vec<&Value> = placements.iter().map(|p| &p["request"]).collect();
    requests.dedup();
    assert_eq!(requests.len(), prompts, "each prompt is a request of its own");
}

#[test]
fn stages_come_with_every_kind_of_answer_that_asks_for_them() {
    let cluster = Routed::of(&["c1", "g1", "w1", "w2"], &[]);
    let client = cluster["g1"].client();
    let messages = json!([{"role": "user", "content": "Where do you run?"}]);
    let chat = json!({"model": "default", "messages": messages, "max_tokens": 4});
    let both = json!([text("one", 50), text("two", 60)]);
    let requests = [
        (CHAT, chat.clone(), 1),
        (CHAT, with(&chat, json!({"n": 3})), 1),
        (COMPLETIONS, completion("Where do you run?", 4), 1),
        (COMPLETIONS, with(&completion("", 4), json!({"prompt": both, "n": 2})), 2),
    ];
    for (path, plain, prompts) in &requests {
        let asks = with(plain, json!({"include_stages": true}));
        let answer = client.ok(path, &asks);
        assert_stages(&answer["stages"], *prompts);
        let totals = json!({"stream_options": {"include_usage": true}});
        assert_stages(&streamed(&client.stream(path, &with(&asks, totals.clone()))), *prompts);
        let without_usage = client.stream(path, &asks);
        assert!(without_usage.last().unwrap()["stages"].is_array(), "{without_usage:?}");

        // Not asked for: not there.
        for quiet in [plain.clone(), with(plain, json!({"include_stages": false}))] {
            let answer = client.ok(path, &quiet);
            assert!(answer.get("stages").is_none(), "{answer}");
            let events = client.stream(path, &with(&quiet, totals.clone()));
            assert!(events.iter().all(|e| e.get("stages").is_none()), "{events:?}");
            let whole = client.get(&format!("/v1/requests/{}", answer["id"].as_str().unwrap())).unwrap();
            assert_eq!(whole.status, 200, "{}", whole.text());
        }
        // Who looks it up later is told the same.
        for placement in answer["stages"].as_array().unwrap() {
            let id = placement["request"].as_str().unwrap();
            let found = client.get(&format!("/v1/requests/{id}")).unwrap().json();
            assert_eq!(found["placements"], json!([placement]));
            assert_eq!(found["outcome"], "success", "{found}");
        }
    }
    let wrong = client.post(COMPLETIONS, &with(&completion("x", 1), json!({"include_stages": "yes"})));
    assert_eq!(wrong.error(400)["param"], "include_stages");
}

#[test]
fn requests_that_nobody_knows_are_not_found() {
    let cluster = Routed::of(&["c1", "g1", "w1"], &[]);
    let client = cluster["g1"].client();
    let known = client.ok(COMPLETIONS, &completion("known", 1))["id"].as_str().unwrap().to_owned();
    assert_eq!(client.get(&format!("/v1/requests/{known}")).unwrap().status, 200);
    let number = known.trim_start_matches("cmpl-");
    let last = if number.ends_with('0') { '1' } else { '0' };
    let other = format!("cmpl-{}{last}", &number[..number.len() - 1]);
    for id in ["nobody", "cmpl-", "cmpl-xyz", "%20", "-", other.as_str()] {
        client.get(&format!("/v1/requests/{id}")).unwrap().error(404);
    }
    for path in ["/v1/policies", "/v1/workers", "/v1/directory"] {
        assert_eq!(cluster["c1"].client().get(path).unwrap().status, 200, "{path}");
    }
    let policies = cluster["c1"].client().get("/v1/policies").unwrap().json();
    for (policy, name) in
        policies["data"].as_array().unwrap().iter().zip(["cache-aware", "session-affinity", "disaggregate"])
    {
        assert_eq!((&policy["name"], &policy["mode"]), (&json!(name), &json!("prod")));
        assert_eq!((&policy["asked"], &policy["late"], &policy["failed"]), (&json!(1), &json!(0), &json!(0)));
    }
}

/// Without a controller the gateway's own choice is a stage like any other; it asks no policies, and says where they are.
#[test]
fn the_choice_without_a_controller_is_told_too() {
    let mut cluster = Routed::of(&["c1", "g1", "w1", "w2"], &[]);
    let client = cluster["g1"].client();
    let (life, killed) = (cluster.incarnation("c1"), std::time::Instant::now());
    cluster["c1"].kill();
    cluster.until_lost(&["g1"], "c1", life, killed);
    let served = super::ask(&client, &completion("nobody leads", 2));
    let stages = served.body["stages"][0]["stages"].as_array().expect("stages");
    assert_eq!(stages.len(), 1, "{stages:?}");
    assert!(["least-loaded", "only-free-worker"].contains(&served.action("placement")), "{stages:?}");
    assert_eq!(cluster["g1"].figure("actor_node_stand_in_placements_total"), 1.0);
    let policies = client.get("/v1/policies").unwrap().json();
    assert_eq!(policies["data"], json!([]), "{policies}");
    cluster["c1"].restart();
    cluster.until_whole();
    wait_for("c1 to be asked again", || {
        let served = super::ask(&client, &completion("somebody leads", 2));
        (served.body["stages"][0]["stages"].as_array()?.len() == 5).then_some(())
    });
}
