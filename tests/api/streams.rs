//! Streams: their chunks, their ends, what is held back for stop strings.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, both, chat, completion, ending_node, ending_prompt, node, with};
use crate::harness::http::{join, only, text_of};

#[test]
fn a_stream_has_openai_s_shape() {
    let client = node().client();
    let response = client.post(CHAT, &with(&chat("hi", 5), json!({"stream": true})));
    assert!(response.header("content-type").unwrap().starts_with("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    let events = crate::harness::http::events(&response.text());
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk"));
    let roles = events.iter().filter(|e| e["choices"][0]["delta"].get("role").is_some()).count();
    assert_eq!(roles, 1);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    for event in client.stream(COMPLETIONS, &completion("hi", 5)) {
        assert_eq!(event["object"], "text_completion");
        assert_eq!(event["choices"][0]["index"], 0);
    }
    let three = client.stream(CHAT, &with(&chat("hi", 5), json!({"n": 3, "temperature": 1})));
    let roles: Vec<_> = three.iter().filter(|e| e["choices"][0]["delta"].get("role").is_some()).collect();
    assert_eq!(roles.len(), 3, "one a choice");
}

/// B04: totals come when asked for, once, after the choices and before the end.
#[test]
fn b04_usage_chunk() {
    let client = node().client();
    for (path, request) in [(CHAT, chat("hi", 6)), (COMPLETIONS, completion("hi", 6))] {
        let usage = client.ok(path, &request)["usage"].clone();
        for options in
            [Value::Null, json!({}), json!({"include_usage": false}), json!({"include_usage": null})]
        {
            let events = client.stream(path, &with(&request, json!({"stream_options": options})));
            assert!(
                events.iter().all(|e| e["usage"].is_null() && e["choices"].as_array().unwrap().len() == 1)
            );
        }
        let events = client.stream(path, &with(&request, json!({"stream_options": {"include_usage": true}})));
        let (last, others) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][key], usage[key]);
        }
        assert!(
            others.iter().all(|e| e.as_object().unwrap().get("usage") == Some(&Value::Null)),
            "null, not absent"
        );
        assert_eq!(others.last().unwrap()["choices"][0]["finish_reason"], "length");
        for options in [json!({}), json!({"include_usage": true})] {
            let error = client.post(path, &with(&request, json!({"stream_options": options}))).error(400);
            assert_eq!(error["param"], "stream_options");
        }
    }
}

/// B05: one end a choice, `stop` for the end token and `length` when the limit comes first.
#[test]
fn b05_finish_reasons() {
    let client = ending_node().client();
    let (prompt, text, tokens) = ending_prompt(3);
    let finish = |limit: u32| {
        let events = client.stream(COMPLETIONS, &completion(prompt.as_str(), limit));
        let reasons: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["finish_reason"]).collect();
        let (last, others) = reasons.split_last().unwrap();
        assert!(others.iter().all(|r| r.is_null()), "{reasons:?}");
        let (_, got) = both(&client, COMPLETIONS, &completion(prompt.as_str(), limit));
        assert_eq!(got[0].finish, last.as_str().unwrap());
        (got[0].finish.clone(), got[0].text.clone())
    };
    assert_eq!(finish(256), ("stop".to_owned(), text.clone()));
    assert_eq!(finish(tokens), ("stop".to_owned(), text.clone()));
    assert_eq!(finish(tokens - 1), ("length".to_owned(), text.clone()));
    assert_eq!(finish(tokens - 2), ("length".to_owned(), text[..text.len() - 1].to_owned()));
    let longer = with(&completion(prompt.as_str(), 64), json!({"ignore_eos": true}));
    let longer = client.ok(COMPLETIONS, &longer);
    assert_eq!(
        (only(&longer).finish.as_str(), &longer["usage"]["completion_tokens"]),
        ("length", &json!(64))
    );
}

/// B03: text that might become a stop string is held back, and comes out when it does not.
#[test]
fn b03_held_text_is_neither_lost_nor_repeated() {
    let client = node().client();
    let request = completion("The oracle speaks", 60);
    let oracle = only(&client.ok(COMPLETIONS, &request)).text;
    let run = |stop: Value| both(&client, COMPLETIONS, &with(&request, json!({"stop": stop}))).1.remove(0);
    for at in [0, 1, 17, 30, 55] {
        let prefix = &oracle[at..at + 3];
        for stop in [
            json!([format!("{prefix}#")]),
            json!(["\n", format!("{}?", &prefix[..2])]),
            json!([format!("{prefix}#"), format!("{}#", &prefix[1..])]),
        ] {
            let got = run(stop.clone());
            assert_eq!((got.text.as_str(), got.finish.as_str()), (oracle.as_str(), "length"), "{stop}");
        }
    }
    let tail = &oracle[oracle.len() - 4..];
    assert_eq!(run(json!(format!("{tail}#"))).text, oracle, "held at the limit");

    let (prompt, text, _) = ending_prompt(5);
    let client = ending_node().client();
    let stop = json!([format!("{}#", &text[text.len() - 3..])]);
    let request = with(&completion(prompt.as_str(), 64), json!({"stop": stop}));
    let (_, got) = both(&client, COMPLETIONS, &request);
    assert_eq!(
        (got[0].text.as_str(), got[0].finish.as_str()),
        (text.as_str(), "stop"),
        "held at the end token"
    );
}

/// A stop string ends the choice before it, at the first place where any of them is.
#[test]
fn stop_strings_cut_at_the_first_match() {
    let client = node().client();
    for (path, request) in [(COMPLETIONS, completion("Speak", 60)), (CHAT, chat("Speak", 60))] {
        let oracle = only(&client.ok(path, &request)).text;
        for (from, to) in [(0, 1), (5, 6), (9, 12), (20, 28), (57, 60)] {
            let stop = &oracle[from..to];
            let (whole, got) = both(&client, path, &with(&request, json!({"stop": [stop, "#"]})));
            let cut = oracle.find(stop).unwrap();
            assert_eq!((got[0].text.as_str(), got[0].finish.as_str()), (&oracle[..cut], "stop"), "{stop:?}");
            let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
            assert_eq!(tokens as usize, cut + stop.len(), "tokens up to the end of the stop string");
        }
        let plain = both(&client, path, &with(&request, json!({"stop": oracle[10..12]}))).1;
        assert_eq!(
            plain[0].text,
            oracle[..oracle.find(&oracle[10..12]).unwrap()],
            "one string in place of a list"
        );
        let two = with(&request, json!({"stop": [oracle[30..34], oracle[12..15]]}));
        let first = oracle.find(&oracle[12..15]).unwrap().min(oracle.find(&oracle[30..34]).unwrap());
        assert_eq!(both(&client, path, &two).1[0].text, oracle[..first]);
        let none = both(&client, path, &with(&request, json!({"stop": ["", "#"]}))).1;
        assert_eq!(none[0].text, oracle, "an empty stop string stops nothing");
    }
}

/// B06 and B08: characters arrive whole, and a prompt that ends inside one shows nothing of itself.
#[test]
fn b06_b08_characters_are_whole() {
    let client = node().client();
    // Every answer is one character of several bytes, drawn byte by byte.
    for character in ['ď', '你', '🚀', '𓂀'] {
        let bytes = character.to_string().into_bytes();
        let prompt: Vec<u8> = "Hello ".bytes().chain(bytes[..1].iter().copied()).collect();
        let mut ids = prompt.clone();
        for byte in &bytes[1..] {
            let forced = with(&completion(json!(ids), 1), json!({"logit_bias": {byte.to_string(): 100}}));
            let events = client.stream(COMPLETIONS, &forced);
            let text = text_of(&events, 0);
            assert!(!text.contains("Hello"), "the prompt leaks: {text:?}");
            ids.push(*byte);
        }
        let events = client.stream(COMPLETIONS, &completion(json!(prompt), 8));
        let text = text_of(&events, 0);
        assert!(!text.contains("Hello") && text.trim_start_matches('\u{fffd}').len() >= 7, "{text:?}");
    }
    // Eight times the second byte of `ď`, after its first: the character once, then bytes that are none.
    let prompt: Vec<u8> = "Hello \u{10f}".bytes().take(7).collect();
    let forced = with(&completion(json!(prompt), 2), json!({"logit_bias": {"143": 100}, "echo": true}));
    let echoed = join(&client.stream(COMPLETIONS, &forced)).choices[0].text.clone();
    assert!(echoed.starts_with("Hello "), "with echo the prompt comes first: {echoed:?}");
    let (_, whole) = both(&client, COMPLETIONS, &forced);
    assert_eq!(whole[0].text, echoed);
}
