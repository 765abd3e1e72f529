//! Chat: roles, content in its forms, the end of the prompt, log-probabilities.

use serde_json::{Value, json};

use super::{CHAT, both, chat, node, with};
use crate::harness::http::{Client, only};

fn messages(client: &Client, messages: Value) -> (u64, String) {
    let answer = client.ok(CHAT, &with(&chat("", 24), json!({"messages": messages})));
    (answer["usage"]["prompt_tokens"].as_u64().unwrap(), only(&answer).text)
}

fn refused(client: &Client, messages: Value, words: &[&str]) {
    for stream in [false, true] {
        let request = with(&chat("", 4), json!({"messages": messages, "stream": stream}));
        let error = client.post(CHAT, &request).error(400);
        assert_eq!(error["param"], "messages", "{messages}");
        let text = error["message"].as_str().unwrap();
        assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
    }
}

#[test]
fn an_answer_has_openai_s_shape() {
    let client = node().client();
    let answer = client.ok(CHAT, &chat("Tell me a tale", 12));
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"), "{answer}");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "length");
    assert!(choice["logprobs"].is_null());
    assert_eq!(choice["message"]["content"].as_str().unwrap().len(), 12);
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(usage["total_tokens"], sum);
    let other = client.ok(CHAT, &chat("Tell me a tale.", 12));
    assert_ne!(only(&answer).text, only(&other).text, "the answer depends on the prompt");
}

#[test]
fn both_names_of_the_token_limit_work() {
    let client = node().client();
    let request = super::without(&chat("hi", 1), "max_tokens");
    let count =
        |fields: Value| client.ok(CHAT, &with(&request, fields))["usage"]["completion_tokens"].clone();
    assert_eq!(count(json!({"max_tokens": 5})), 5);
    assert_eq!(count(json!({"max_completion_tokens": 6})), 6);
    assert_eq!(count(json!({"max_completion_tokens": 6, "max_tokens": 6})), 6);
    let error =
        client.post(CHAT, &with(&request, json!({"max_completion_tokens": 6, "max_tokens": 5}))).error(400);
    assert_eq!(error["param"], "max_tokens");
}

/// B15: text in parts is the same text; other parts are refused by name.
#[test]
fn b15_content_parts_are_joined() {
    let client = node().client();
    let part = |text: &str| json!({"type": "text", "text": text});
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let whole = messages(&client, user(json!("tell me a tale")));
    assert_eq!(messages(&client, user(json!([part("tell me "), part("a tale")]))), whole);
    let five = ["te", "ll", " me", "", " a tale"].map(part);
    assert_eq!(messages(&client, user(json!(five))), whole);

    let last = |content: Value| json!([{"role": "user", "content": "tell me a tale"}, {"role": "assistant", "content": content}]);
    let prefilled = messages(&client, last(json!("Once")));
    assert_ne!(prefilled, whole);
    assert_eq!(messages(&client, last(json!([part("Once")]))), prefilled);
    assert_eq!(messages(&client, last(json!([part("On"), part("ce")]))), prefilled);

    let empty = messages(&client, user(json!("")));
    assert_eq!(messages(&client, user(json!([]))), empty);
    let image = json!({"type": "image_url", "image_url": {"url": "data:,x"}});
    refused(&client, user(json!([part("look"), image])), &["messages[0].content[1]", "image_url"]);
    refused(&client, user(json!([{"type": "input_audio"}])), &["messages[0].content[0]", "input_audio"]);
    refused(&client, user(json!([{"text": "x"}])), &["messages[0].content[0]", "type"]);
    refused(&client, user(json!([part("x"), "y"])), &["messages[0].content[1]"]);
    refused(&client, user(Value::Null), &["messages[0].content"]);
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
    refused(&client, calls, &["messages[0].tool_calls"]);
}

/// B16: every list of messages is answered or refused with a reason.
#[test]
fn b16_message_lists_are_answered_or_refused() {
    let client = node().client();
    refused(&client, json!([]), &["messages"]);
    refused(&client, json!([{"role": "wizard", "content": "x"}]), &["messages[0].role", "wizard"]);
    let tool =
        json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "tool_call_id": "1"}]);
    refused(&client, tool, &["messages[1].role", "tool"]);
    let system = messages(&client, json!([{"role": "system", "content": "Be brief"}]));
    assert_eq!(messages(&client, json!([{"role": "developer", "content": "Be brief"}])), system);
    messages(&client, json!([{"role": "assistant", "content": "I am"}]));
    messages(&client, json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]));
    let many: Vec<Value> = (0..2000).map(|_| json!({"role": "user", "content": "word"})).collect();
    let error = client.post(CHAT, &with(&chat("", 4), json!({"messages": many}))).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
}

/// B102: what a user writes never becomes a control token.
#[test]
fn b102_user_text_has_no_control_tokens() {
    let client = node().client();
    let prompt_tokens =
        |text: &str| client.ok(CHAT, &chat(text, 1))["usage"]["prompt_tokens"].as_u64().unwrap();
    let base = prompt_tokens("");
    for text in ["<|im_end|>", "<|im_start|>system", "a<|endoftext|>b"] {
        assert_eq!(prompt_tokens(text), base + text.len() as u64, "{text}");
        let tokens = client.ok("/v1/tokenize", &json!({"messages": [{"role": "user", "content": text}]}));
        let control =
            tokens["tokens"].as_array().unwrap().iter().filter(|t| t.as_u64().unwrap() > 255).count();
        assert_eq!(control, 3, "those of the template: {tokens}");
    }
}

/// A prompt ends where it is asked to: with an opened turn, inside the last message, or after it.
#[test]
fn the_end_of_the_prompt_can_be_chosen() {
    let client = node().client();
    let list = json!([{"role": "user", "content": "tell"}, {"role": "assistant", "content": "Once"}]);
    let run = |fields: Value| {
        let request = with(&with(&chat("", 16), json!({"messages": list})), fields);
        only(&client.ok(CHAT, &request)).text
    };
    let continued = run(json!({"continue_final_message": true, "add_generation_prompt": false}));
    assert_eq!(run(json!({})), continued, "an answer that has begun is continued");
    assert_ne!(run(json!({"add_generation_prompt": true})), continued);
    let both = json!({"continue_final_message": true, "add_generation_prompt": true});
    let error = client.post(CHAT, &with(&with(&chat("", 1), json!({"messages": list})), both)).error(400);
    assert_eq!(error["param"], "continue_final_message");
}

/// B13: log-probabilities of a chat, whole and streamed.
#[test]
fn b13_chat_logprobs_are_complete() {
    let client = node().client();
    let request = with(&chat("Count", 10), json!({"logprobs": true, "top_logprobs": 2}));
    let whole = client.ok(CHAT, &request);
    let text = only(&whole).text;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 10);
    check(&content, &text, 2);
    let mut streamed = Vec::new();
    for event in client.stream(CHAT, &request) {
        let choice = &event["choices"][0];
        let has_text = choice["delta"]["content"].as_str().is_some_and(|text| !text.is_empty());
        let tokens = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        assert_eq!(has_text, !tokens.is_empty(), "a token's log-probability comes with its text: {event}");
        streamed.extend(tokens);
    }
    assert_eq!(streamed, content);

    let none = client.ok(CHAT, &with(&request, json!({"top_logprobs": null})));
    check(none["choices"][0]["logprobs"]["content"].as_array().unwrap(), &text, 0);
    let zero = client.ok(CHAT, &with(&request, json!({"top_logprobs": 0})));
    check(zero["choices"][0]["logprobs"]["content"].as_array().unwrap(), &text, 0);
    let off = client.ok(CHAT, &with(&request, json!({"logprobs": false, "top_logprobs": null})));
    assert!(off["choices"][0]["logprobs"].is_null());
    for fields in [json!({"logprobs": null}), json!({"logprobs": false})] {
        let error = client.post(CHAT, &with(&request, fields)).error(400);
        assert_eq!(error["param"], "top_logprobs");
    }
}

fn check(content: &[Value], text: &str, top: usize) {
    let mut bytes = Vec::new();
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let own: Vec<u8> =
            token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(token["token"].as_str().unwrap().as_bytes(), own);
        bytes.extend(own);
        let list = token["top_logprobs"].as_array().unwrap();
        assert_eq!(list.len(), top);
        let values: Vec<f64> = list.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "likeliest first: {values:?}");
    }
    assert_eq!(bytes, text.as_bytes());
}

/// B23: choices end for themselves and are counted once each, the prompt once.
#[test]
fn b23_choices_are_independent() {
    let client = node().client();
    let request = with(&chat("Three tales", 20), json!({"n": 3, "temperature": 1}));
    let (whole, plain) = both(&client, CHAT, &request);
    assert_eq!(plain.len(), 3);
    assert!(
        plain[0].text != plain[1].text && plain[1].text != plain[2].text && plain[0].text != plain[2].text
    );
    assert!(plain.iter().all(|c| c.finish == "length" && c.text.len() == 20), "{plain:?}");
    let one = client.ok(CHAT, &with(&request, json!({"n": 1})));
    assert_eq!(whole["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(whole["usage"]["completion_tokens"], 60);

    let stop = plain[1].text[6..10].to_owned();
    let (stopped, choices) = both(&client, CHAT, &with(&request, json!({"stop": [stop]})));
    let mut shown = 0;
    for (before, after) in plain.iter().zip(&choices) {
        let cut = before.text.find(&stop);
        assert_eq!(after.text, before.text[..cut.unwrap_or(20)]);
        assert_eq!(after.finish, if cut.is_some() { "stop" } else { "length" });
        shown += cut.map_or(20, |at| at + stop.len()) as u64;
    }
    assert_eq!(stopped["usage"]["completion_tokens"], shown, "each choice's tokens up to its end");
}
