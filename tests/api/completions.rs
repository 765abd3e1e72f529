//! Completions: prompts in their forms, echo, token limits, log-probabilities.

use serde_json::{Value, json};

use super::{COMPLETIONS, WINDOW, both, completion, node, with, without};
use crate::harness::http::{choices, only};
use crate::harness::node::{Node, PAGES_USED};

const PROMPT: &str = "Blue whales eat krill";

/// B12: every combination of limit, echo and log-probabilities, for one prompt and for three.
#[test]
fn b12_echo_and_zero_tokens() {
    let client = node().client();
    let answers = [PROMPT, "Snow is cold", "x"]
        .map(|prompt| (prompt, only(&client.ok(COMPLETIONS, &completion(prompt, 16))).text));
    let request = without(&completion(PROMPT, 16), "max_tokens");
    for (limit, tokens) in
        [(Some(json!(0)), 0), (Some(Value::Null), 16), (None, 16), (Some(json!(1)), 1), (Some(json!(5)), 5)]
    {
        for echo in [false, true] {
            for logprobs in [None, Some(0), Some(1)] {
                for several in [false, true] {
                    let mut request = with(&request, json!({"echo": echo, "logprobs": logprobs}));
                    if let Some(limit) = &limit {
                        request["max_tokens"] = limit.clone();
                    }
                    let asked = if several { &answers[..] } else { &answers[..1] };
                    if several {
                        request["prompt"] = asked.iter().map(|(prompt, _)| *prompt).collect();
                    }
                    let (whole, got) = both(&client, COMPLETIONS, &request);
                    assert_eq!(got.len(), asked.len());
                    for (i, (prompt, text)) in asked.iter().enumerate() {
                        let shown = if echo { *prompt } else { "" };
                        assert_eq!(got[i].text, format!("{shown}{}", &text[..tokens]), "{request}");
                        assert_eq!(got[i].finish, "length");
                        let choice = &whole["choices"][i];
                        match logprobs {
                            None => assert!(choice["logprobs"].is_null()),
                            Some(top) => check(choice, top, if echo { prompt.len() } else { 0 }, tokens),
                        }
                    }
                    assert_eq!(whole["usage"]["completion_tokens"], tokens * asked.len());
                }
            }
        }
    }
    for wrong in [json!(-1), json!(1.5), json!("5"), json!([5]), json!(true)] {
        let error = client.post(COMPLETIONS, &with(&request, json!({"max_tokens": wrong}))).error(400);
        assert_eq!(error["param"], "max_tokens");
    }
    let again = only(&client.ok(COMPLETIONS, &completion(PROMPT, 16)));
    assert_eq!(again.text, answers[0].1, "the worker is alive and unchanged");
}

/// The four lists of `logprobs`: as long as one another, with offsets that fit the text.
fn check(choice: &Value, top: usize, prompt: usize, output: usize) {
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap_or_else(|| panic!("{name} in {logprobs}"));
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), prompt + output, "{name} in {logprobs}");
    }
    let text = choice["text"].as_str().unwrap();
    let tokens: Vec<&str> = list("tokens").iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), text);
    for (i, offset) in list("text_offset").iter().enumerate() {
        assert_eq!(offset.as_u64().unwrap() as usize, tokens[..i].concat().chars().count(), "{logprobs}");
    }
    for i in 0..prompt + output {
        let (own, others) = (&list("token_logprobs")[i], &list("top_logprobs")[i]);
        if i == 0 && prompt > 0 {
            assert!(own.is_null() && others.is_null(), "nothing precedes the first token: {logprobs}");
            continue;
        }
        assert!(own.as_f64().unwrap() <= 0.0);
        let others = others.as_object().unwrap();
        assert!((top..=top + 1).contains(&others.len()), "{others:?}");
        assert_eq!(others[tokens[i]], *own, "the token itself is listed");
    }
}

/// B13: log-probabilities whole and streamed are the same lists.
#[test]
fn b13_completion_logprobs_are_never_silently_null() {
    let client = node().client();
    for echo in [false, true] {
        let request = with(&completion(PROMPT, 4), json!({"logprobs": 2, "echo": echo}));
        let whole = client.ok(COMPLETIONS, &request);
        check(&whole["choices"][0], 2, if echo { PROMPT.len() } else { 0 }, 4);
        let mut joined = json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
        for event in client.stream(COMPLETIONS, &request) {
            for (name, list) in joined.as_object_mut().unwrap() {
                let more = event["choices"][0]["logprobs"][name].as_array().unwrap();
                list.as_array_mut().unwrap().extend(more.iter().cloned());
            }
        }
        assert_eq!(joined, whole["choices"][0]["logprobs"], "echo {echo}");
    }
}

/// B14: whatever the sampling filters out, the body is JSON that a strict parser reads.
#[test]
fn b14_no_infinity_reaches_json() {
    let client = node().client();
    let bias: serde_json::Map<String, Value> =
        (97..123).map(|id: u32| (id.to_string(), json!(-100))).collect();
    for fields in
        [json!({"top_k": 1}), json!({"logit_bias": bias}), json!({"top_p": 1e-6}), json!({"min_p": 1})]
    {
        let request = with(&completion(PROMPT, 8), json!({"logprobs": 5, "temperature": 1}));
        let response = client.post(COMPLETIONS, &with(&request, fields));
        assert_eq!(response.status, 200, "{}", response.text());
        for name in ["Infinity", "NaN", "inf", "nan"] {
            assert!(!response.text().contains(&format!(":{name}")), "{}", response.text());
        }
        for value in response.json()["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap() {
            assert!((-9999.0..=0.0).contains(&value.as_f64().unwrap()));
        }
    }
}

/// B17: a prompt without tokens is refused, and the node goes on.
#[test]
fn b17_empty_prompts_are_refused() {
    let client = node().client();
    for prompt in [json!(""), json!([]), json!([[]]), json!(["", "x"]), json!(["x", ""]), json!([[120], []])]
    {
        for stream in [false, true] {
            let request = with(&completion(prompt.clone(), 4), json!({"stream": stream}));
            assert_eq!(client.post(COMPLETIONS, &request).error(400)["param"], "prompt", "{prompt}");
        }
        client.ok(COMPLETIONS, &completion("x", 4));
    }
    let error = client.post(COMPLETIONS, &without(&completion("x", 4), "prompt")).error(400);
    assert_eq!(error["param"], "prompt");
    both(&client, COMPLETIONS, &completion("\u{0}", 4));
}

/// A prompt is the same as text and as tokens, alone and in a list.
#[test]
fn prompts_come_in_four_forms() {
    let client = node().client();
    let ids = |text: &str| json!(text.bytes().collect::<Vec<u8>>());
    let text = |prompt: Value| choices(&client.ok(COMPLETIONS, &completion(prompt, 12)));
    let (first, second) = (text(json!(PROMPT)), text(json!("Snow is cold")));
    assert_eq!(text(ids(PROMPT)), first);
    assert_eq!(text(json!([PROMPT])), first);
    assert_eq!(text(json!([ids(PROMPT)])), first);
    let both_of_them = [first, second].concat();
    assert_eq!(text(json!([PROMPT, "Snow is cold"])), both_of_them);
    assert_eq!(text(json!([ids(PROMPT), ids("Snow is cold")])), both_of_them);
    let control = json!([256, 117, 257]);
    assert_ne!(text(control), text(ids("u")), "tokens may be control tokens");
}

/// B23: choices of several prompts are numbered through, and shared prompt pages are freed once.
#[test]
fn b23_choices_of_several_prompts() {
    let node = Node::fake(&[]);
    let client = node.client();
    let prompts = [PROMPT, "Snow is cold and ice is colder"];
    let request = with(&completion(json!(prompts), 40), json!({"n": 3, "temperature": 1}));
    let (whole, got) = both(&client, COMPLETIONS, &request);
    assert_eq!(got.len(), 6);
    let prompt_tokens: usize = prompts.iter().map(|p| p.len()).sum();
    assert_eq!(whole["usage"]["prompt_tokens"], prompt_tokens);
    assert_eq!(whole["usage"]["completion_tokens"], 240);
    for (i, prompt) in prompts.iter().enumerate() {
        // Prompts of one request draw from seeds of their own.
        let request = with(&completion(*prompt, 40), json!({"n": 3, "temperature": 1, "seed": 7 + i}));
        assert_eq!(choices(&client.ok(COMPLETIONS, &request)), got[i * 3..i * 3 + 3], "{prompt}");
    }
    node.wait_for_figure(PAGES_USED, 0.0);
    node.assert_idle();
}

/// B10: the window holds prompt and answer; what cannot fit is refused before anything is sent, with both numbers.
#[test]
fn b10_over_long_prompts() {
    let node = Node::fake(&["--max-context", "512"]);
    let client = node.client();
    let prompt = |tokens: usize| "p".repeat(tokens);
    for tokens in [513, 512, 5000] {
        for stream in [false, true] {
            let request = with(&completion(prompt(tokens), 4), json!({"stream": stream}));
            let error = client.post(COMPLETIONS, &request).error(400);
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("context_length_exceeded"), &json!("prompt"))
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&tokens.to_string()) && message.contains("512"), "{message}");
        }
        let chat = with(&super::chat(&prompt(tokens), 4), json!({"stream": true}));
        let error = client.post(super::CHAT, &chat).error(400);
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("context_length_exceeded"), &json!("messages"))
        );
    }
    let (cut, got) = both(&client, COMPLETIONS, &completion(prompt(500), 100));
    assert_eq!(
        (got[0].finish.as_str(), &cut["usage"]["completion_tokens"]),
        ("length", &json!(12)),
        "cut at the window"
    );
    for (tokens, left) in [(500, 12), (511, 1)] {
        let (whole, got) = both(&client, COMPLETIONS, &without(&completion(prompt(tokens), 4), "max_tokens"));
        assert_eq!(got[0].finish, "length");
        assert_eq!(whole["usage"]["completion_tokens"], left);
    }
    let fits = client.ok(COMPLETIONS, &completion(prompt(500), 12));
    assert_eq!(fits["usage"]["total_tokens"], 512);
    let (whole, got) = both(&client, super::CHAT, &without(&super::chat("go on", 1), "max_tokens"));
    assert_eq!(got[0].finish, "length");
    assert_eq!(
        whole["usage"]["total_tokens"], 512,
        "a chat without a limit goes on to the end of the window"
    );
    node.assert_idle();
}

/// Pages in place of the model bound the window when there are few.
#[test]
fn b10_few_pages_bound_the_window_too() {
    let node = Node::fake(&["--kv-pages", "4"]);
    let client = node.client();
    let error = client.post(COMPLETIONS, &completion("p".repeat(64), 4)).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    let whole = client.ok(COMPLETIONS, &completion("p".repeat(40), 24));
    assert_eq!(whole["usage"]["total_tokens"], 64);
    node.assert_idle();
}

/// A prompt as long as the window allows, in one body.
#[test]
fn the_longest_prompt_is_served() {
    let client = node().client();
    let text = "z".repeat(WINDOW - 1);
    let (whole, _) = both(&client, COMPLETIONS, &completion(text, 1));
    assert_eq!(whole["usage"]["total_tokens"], WINDOW);
}
