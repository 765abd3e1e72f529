//! Streams, event by event.

use serde_json::{Value, json};

use super::fixture::{Answer, Script, Seen, bytes, eventually, rig};

/// The text of one choice of a stream.
fn text(events: &[Value], index: u64) -> String {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().cloned().unwrap_or_default());
    choices
        .filter(|c| c["index"] == index)
        .map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()).unwrap_or_default().to_owned())
        .collect()
}

/// The end reasons of one choice: there has to be exactly one.
fn finishes(events: &[Value], index: u64) -> Vec<String> {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().cloned().unwrap_or_default());
    choices
        .filter(|c| c["index"] == index)
        .filter_map(|c| c["finish_reason"].as_str().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn a_chat_stream_says_the_role_once_and_ends_once() {
    let rig = rig().await;
    let answer = rig.chat(json!({"stream": true})).await;
    assert_eq!((answer.status, answer.header("x-served-by")), (200, Some("w1")));
    let events = answer.events();
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk" && e["id"] == events[0]["id"]));
    let roles = events.iter().filter(|e| e["choices"][0]["delta"]["role"] == "assistant").count();
    assert_eq!((roles, &events[0]["choices"][0]["delta"]["role"]), (1, &json!("assistant")));
    assert_eq!(text(&events, 0), "Hi");
    assert_eq!(finishes(&events, 0), ["stop"]);
    let last = events.last().unwrap();
    assert_eq!(
        last["choices"][0],
        json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})
    );
}

#[tokio::test]
async fn usage_comes_only_when_asked_for() {
    let rig = rig().await;
    for options in [json!(null), json!({}), json!({"include_usage": false})] {
        let events = rig.chat(json!({"stream": true, "stream_options": options})).await.events();
        assert!(events.iter().all(|e| e.get("usage").is_none() && e["choices"] != json!([])));
    }
    let whole = rig.chat(json!({})).await.json();
    for path in ["chat", "completion"] {
        let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events =
            if path == "chat" { rig.chat(fields).await } else { rig.complete(fields).await }.events();
        let (last, others) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert!(others.iter().all(|e| e.get("usage") == Some(&Value::Null)));
        if path == "chat" {
            assert_eq!(last["usage"], whole["usage"], "the same as in a whole answer");
        }
    }
}

#[tokio::test]
async fn characters_are_never_cut() {
    let rig = rig().await;
    rig.world.play(Script::Say(|_| bytes("ď 你好 👩‍🚀 𓂀")));
    for n in [1, 4] {
        let events = rig.chat(json!({"stream": true, "n": n})).await.events();
        for index in 0..n {
            assert_eq!(text(&events, index), "ď 你好 👩‍🚀 𓂀");
        }
    }
    assert_eq!(rig.chat(json!({})).await.json()["choices"][0]["message"]["content"], "ď 你好 👩‍🚀 𓂀");
}

#[tokio::test]
async fn stop_strings_lose_and_repeat_nothing() {
    let rig = rig().await;
    rig.world.play(Script::Say(|_| bytes("one ABCD two AB")));
    for (stop, max, expected, reason) in [
        (json!(["ABCX"]), 100, "one ABCD two AB", "stop"),
        (json!(["\n", "AB?"]), 100, "one ABCD two AB", "stop"),
        (json!("AB?"), 6, "one AB", "length"),
        (json!(["two"]), 100, "one ABCD ", "stop"),
        (json!(["D two", "CD"]), 100, "one AB", "stop"),
        (json!("one"), 100, "", "stop"),
    ] {
        let fields = json!({"stop": stop, "max_tokens": max});
        let body = rig.chat(fields.clone()).await.json();
        assert_eq!(body["choices"][0]["message"]["content"], expected, "{stop}");
        assert_eq!(body["choices"][0]["finish_reason"], reason, "{stop}");
        let mut fields = fields;
        fields["stream"] = json!(true);
        let events = rig.chat(fields).await.events();
        assert_eq!(
            (text(&events, 0).as_str(), finishes(&events, 0)),
            (expected, vec![reason.to_owned()]),
            "{stop}"
        );
    }
}

#[tokio::test]
async fn a_stop_string_ends_one_choice_and_the_worker_hears_of_it() {
    let rig = rig().await;
    rig.world.play(Script::Say(|choice| bytes(["left!right", "other", "third one"][choice as usize])));
    for stream in [true, false] {
        let answer = rig.chat(json!({"n": 3, "stop": "!", "stream": stream})).await;
        let said: Vec<(String, Vec<String>)> = if stream {
            let events = answer.events();
            (0..3).map(|i| (text(&events, i), finishes(&events, i))).collect()
        } else {
            let body = answer.json();
            let choice = |i: usize| body["choices"][i].clone();
            let words = |v: &Value| v.as_str().unwrap().to_owned();
            (0..3)
                .map(|i| (words(&choice(i)["message"]["content"]), vec![words(&choice(i)["finish_reason"])]))
                .collect()
        };
        let stop = || vec!["stop".to_owned()];
        assert_eq!(
            said,
            [("left".to_owned(), stop()), ("other".to_owned(), stop()), ("third one".to_owned(), stop())]
        );
    }
    eventually(|| rig.world.count(|s| *s == Seen::ChoiceCancelled(0)) == 2).await;
    assert_eq!(rig.world.count(|s| matches!(s, Seen::Cancelled)), 0);
    eventually(|| rig.world.count(|s| *s == Seen::Released) == 2).await;
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_have_the_same_logprobs() {
    let rig = rig().await;
    rig.world.play(Script::Say(|_| bytes("aé AB")));
    for (echo, stop) in
        [(false, json!(null)), (true, json!(null)), (true, json!("é")), (false, json!(["ABX", "é A"]))]
    {
        let fields = json!({"logprobs": 1, "echo": echo, "stop": stop, "prompt": ["pq", [114]]});
        let whole = rig.complete(fields.clone()).await.json();
        let mut fields = fields;
        fields["stream"] = json!(true);
        let events = rig.complete(fields).await.events();
        for index in 0..2 {
            let choice = &whole["choices"][index];
            assert_eq!(choice["text"], text(&events, index as u64));
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let chunks = events.iter().filter(|e| e["choices"][0]["index"] == index);
                let joined: Vec<Value> = chunks
                    .flat_map(|e| e["choices"][0]["logprobs"][name].as_array().cloned().unwrap_or_default())
                    .collect();
                assert_eq!(choice["logprobs"][name], Value::Array(joined), "{name} of {choice}");
            }
        }
    }
}

#[tokio::test]
async fn the_end_is_a_stop_or_a_length() {
    let rig = rig().await;
    // "Hi" is two tokens and an end token.
    for (max, reason) in [(2, "length"), (3, "stop"), (4, "stop")] {
        let events = rig.chat(json!({"stream": true, "max_tokens": max})).await.events();
        assert_eq!(
            (text(&events, 0).as_str(), finishes(&events, 0)),
            ("Hi", vec![reason.to_owned()]),
            "{max}"
        );
    }
}

#[tokio::test]
async fn a_prompt_that_ends_inside_a_character_is_not_shown() {
    let rig = rig().await;
    rig.world.play(Script::Say(|_| [vec![0x9f, 0x9a, 0x80], bytes("ok")].concat()));
    let prompt = [bytes("Hello "), vec![0xf0]].concat();
    let answer: Answer = rig.complete(json!({"prompt": prompt, "stream": true})).await;
    let said = text(&answer.events(), 0);
    assert!(said.ends_with("ok") && !said.contains("Hello"), "{said:?}");
}
