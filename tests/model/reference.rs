//! Against the reference: tokens, logits as far as log-probabilities show them, greedy continuations; and the API's ways
//! to the same answer against one another.

use serde_json::{Value, json};

use super::{
    CHAT, COMPLETIONS, alternatives, chat, completion, detokenize, node, reference, tokenize, top_agreement,
    with,
};
use crate::harness::http::{choices, join, only, text_of};
use crate::harness::node::Node;

/// The reference's margin from which on the order of two tokens is certain.
const MARGIN: f64 = 0.05;

#[test]
fn tokens_are_the_reference_s() {
    let node = node();
    for case in &reference().tokenize {
        let ids = tokenize(node, &case.text);
        assert_eq!(ids, case.ids_special, "{:?}", case.text);
        assert_eq!(detokenize(node, &ids), case.text);
    }
    for case in &reference().texts {
        let ids = tokenize(node, &case.text);
        assert_eq!(ids, case.ids, "{:?}", case.text);
        assert_eq!(detokenize(node, &ids), case.text);
        assert_eq!(case.special, case.text.contains("<|im_start|>"));
    }
}

/// B102: in a message the same texts are ordinary text, control tokens or not.
#[test]
fn b102_messages_are_ordinary_text() {
    let node = node();
    let template = |text: &str| -> Vec<u32> {
        let answer = node.client().ok("/v1/tokenize", &json!({"messages": chat(text, 1)["messages"]}));
        serde_json::from_value(answer["tokens"].clone()).unwrap()
    };
    let around = template("Hello");
    let at = around.iter().position(|id| *id == 19556).expect("the message's token");
    // Texts that begin or end with white space could merge with the template's own.
    for case in
        reference().tokenize.iter().filter(|case| !case.text.is_empty() && case.text.trim() == case.text)
    {
        let expected = [&around[..at], &case.ids, &around[at + 1..]].concat();
        assert_eq!(template(&case.text), expected, "{:?}", case.text);
    }
}

/// B102: long runs of the same, and code, come back as they were.
#[test]
fn b102_long_and_strange_texts_come_back() {
    let node = node();
    let code =
        "fn f<T>(x: &'a [T]) -> Option<&'a T> { x.iter().find(|y| y.0 == 0x1F && *y != b\"\\n\") }\r\n\t\t";
    for text in [" ".repeat(1_000_000), "a".repeat(300_000), code.repeat(3000), "👩\u{200d}🚀".repeat(20_000)]
    {
        let ids = tokenize(node, &text);
        assert!(!ids.is_empty() && ids.len() < text.len(), "{} ids", ids.len());
        assert!(detokenize(node, &ids) == text, "{} bytes", text.len());
    }
}

/// The rendered template is what other implementations render, and a chat is the completion of it.
#[test]
fn a_chat_is_the_completion_of_its_rendered_text() {
    let node = node();
    let rendered = reference().texts.iter().find(|text| text.special).unwrap();
    let question = "What is the capital of France?";
    let tokens = node.client().ok("/v1/tokenize", &json!({"messages": chat(question, 1)["messages"]}));
    assert_eq!(tokens["tokens"], json!(rendered.ids), "the system message is the template's own");

    let client = node.client();
    let whole = client.ok(CHAT, &chat(question, 32));
    let expected = choices(&whole);
    assert_eq!(expected[0].text, "The capital of France is Paris.");
    assert_eq!(expected[0].finish, "stop");
    assert_eq!(whole["usage"]["prompt_tokens"], rendered.ids.len());
    assert_eq!(join(&client.stream(CHAT, &chat(question, 32))).choices, expected);
    assert_eq!(choices(&client.ok(COMPLETIONS, &completion(rendered.text.as_str(), 32))), expected);
    assert_eq!(choices(&client.ok(COMPLETIONS, &completion(json!(rendered.ids), 32))), expected);
    assert_eq!(join(&client.stream(COMPLETIONS, &completion(json!(rendered.ids), 32))).choices, expected);
}

/// The greedy continuations, as far as the model's own margin between first and second is certain.
#[test]
fn greedy_continuations_are_the_reference_s() {
    for dtype in ["f16", "f32"] {
        let own;
        let node = if dtype == "f16" {
            node()
        } else {
            own = Node::ready(&["--kv-pages", "64", "--kv-dtype", dtype]);
            &own
        };
        let mut compared = 0;
        for case in &reference().greedy {
            let count = u32::try_from(case.ids.len()).unwrap();
            // Past end tokens, as the reference went.
            let request =
                with(&completion(case.prompt.as_str(), count), json!({"logprobs": 2, "ignore_eos": true}));
            let answer = node.client().ok(COMPLETIONS, &request);
            let logprobs = &answer["choices"][0]["logprobs"];
            let tokens: Vec<&str> =
                logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            assert_eq!(tokens.len(), case.ids.len());
            for (i, id) in case.ids.iter().enumerate() {
                if tokens[i] != detokenize(node, &[*id]) {
                    let margin = margin(&logprobs["top_logprobs"][i]);
                    assert!(
                        margin <= MARGIN + 0.02,
                        "{}: token {i} differs at a margin of {margin}",
                        case.prompt
                    );
                    break;
                }
                compared += 1;
            }
        }
        assert!(compared >= 36, "only {compared} of 72 tokens could be compared");
    }
}

/// Difference of the two largest of a token's alternatives.
fn margin(top: &Value) -> f64 {
    let mut values: Vec<f64> = top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values[0] - values[1]
}

/// Log-probabilities of a prompt against the reference's logits: the same top token (with f16 KV at 99 of 100 positions),
/// and between the largest logits the reference's differences.
#[test]
fn prompt_logprobs_follow_the_reference() {
    let f32_node = Node::ready(&["--kv-pages", "64", "--kv-dtype", "f32"]);
    for (node, tolerance) in [(node(), 0.25), (&f32_node, 0.02)] {
        let alternatives = alternatives(node, 5);
        let (agree, compared) = top_agreement(node, &alternatives);
        assert!(agree * 100 >= compared * 99, "{agree} of {compared} top tokens agree");
        let mut differences = 0;
        for (got, expected) in &alternatives {
            let value = |id: u32| {
                got.iter().find(|(name, _)| *name == detokenize(node, &[id])).map(|(_, value)| *value)
            };
            if let (Some(first), Some(second)) = (value(expected[0].0), value(expected[1].0)) {
                let (difference, wanted) = (first - second, expected[0].1 - expected[1].1);
                assert!((difference - wanted).abs() < tolerance, "{difference} instead of {wanted}");
                differences += 1;
            }
        }
        assert!(differences > 300, "{differences}");
    }
}

/// B06: what the model says in many scripts arrives whole, streamed to eight clients at once.
#[test]
fn b06_many_scripts_arrive_whole() {
    let client = node().client();
    let request = chat("Repeat exactly: 👩\u{200d}🚀𓂀ďábel 你好世界", 24);
    let whole = only(&client.ok(CHAT, &request)).text;
    // Each byte token is forced through the sampler: any bytes in any order, cut anywhere.
    let bytes = "你好👩\u{200d}🚀 𓂀ď".to_owned();
    let ids = tokenize(node(), &bytes);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (client, request, whole) = (client.clone(), &request, &whole);
            scope.spawn(move || assert_eq!(text_of(&client.stream(CHAT, request), 0), *whole));
        }
    });
    for cut in 1..ids.len() {
        let request =
            with(&completion(json!(ids[..cut]), 1), json!({"logit_bias": {ids[cut].to_string(): 100}}));
        let echoed = with(&request, json!({"echo": true}));
        let text = only(&client.ok(COMPLETIONS, &echoed)).text;
        // The last character may lack its end.
        let whole = text.strip_suffix('\u{fffd}').unwrap_or(&text);
        assert!(bytes.starts_with(whole), "{text:?} after {cut} tokens");
        assert_eq!(text_of(&client.stream(COMPLETIONS, &echoed), 0), text);
        // B08: without echo nothing of the prompt comes out, not even where it ends inside a character.
        let events = client.stream(COMPLETIONS, &request);
        assert!(text_of(&events, 0).chars().count() <= 2, "{events:?}");
    }
}

/// The sampler's settings reach the model: a bias forces, a ban forbids, penalties and truncation change the answer.
#[test]
fn sampling_settings_matter() {
    let client = node().client();
    let text =
        |fields: Value| only(&client.ok(COMPLETIONS, &with(&completion("The cat and the", 16), fields))).text;
    let greedy = text(json!({}));
    assert_eq!(text(json!({"top_k": 1, "temperature": 1})), greedy);
    assert_eq!(text(json!({"top_p": 1e-6, "temperature": 1})), greedy);
    assert_eq!(text(json!({"min_p": 1, "temperature": 1})), greedy);
    assert_eq!(text(json!({"temperature": 1e-6})), greedy);
    let hot = text(json!({"temperature": 1.5}));
    assert_ne!(hot, greedy);
    assert_eq!(text(json!({"temperature": 1.5})), hot, "a seed names an answer");
    let paris = tokenize(node(), " Paris")[0];
    let forced = text(json!({"logit_bias": {paris.to_string(): 100}}));
    assert_eq!(forced, " Paris".repeat(16));
    let first = tokenize(node(), &greedy)[0];
    let banned = text(json!({"logit_bias": {first.to_string(): -100}}));
    assert_ne!(tokenize(node(), &banned)[0], first);
    let longer =
        |fields: Value| only(&client.ok(COMPLETIONS, &with(&completion("The cat and the", 24), fields))).text;
    for penalty in ["presence_penalty", "frequency_penalty", "repetition_penalty"] {
        assert_ne!(longer(json!({penalty: 2})), longer(json!({})), "{penalty}");
    }
}

/// B14 with real logits: what the sampler filters out does not make log-probabilities infinite.
#[test]
fn b14_log_probabilities_are_finite() {
    let client = node().client();
    let bans: serde_json::Map<String, Value> = (0..50).map(|id: u32| (id.to_string(), json!(-100))).collect();
    for fields in [json!({"top_k": 1}), json!({"logit_bias": bans}), json!({"top_p": 1e-6})] {
        let request = with(&completion("One, two,", 8), json!({"logprobs": 5, "temperature": 1}));
        let answer = client.ok(COMPLETIONS, &with(&request, fields));
        let logprobs = &answer["choices"][0]["logprobs"];
        for value in logprobs["token_logprobs"].as_array().unwrap() {
            assert!((-9999.0..=0.0).contains(&value.as_f64().unwrap()), "{logprobs}");
        }
    }
}

/// B17: SmolLM2 adds no begin token, so that an empty prompt is refused and the engine goes on.
#[test]
fn b17_empty_prompts() {
    let client = node().client();
    for prompt in [json!(""), json!([]), json!(["", "x"])] {
        assert_eq!(client.post(COMPLETIONS, &completion(prompt, 2)).error(400)["param"], "prompt");
        client.ok(COMPLETIONS, &completion("x", 2));
    }
}
