use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::*;
use crate::gateway::openai::body::Keep;

fn read(fields: &Value) -> Result<Common, ApiError> {
    let mut object = json!({"model": "m"});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut body = Body::parse(object.to_string().as_bytes(), Keep { entries: 2000, prompts: 4 })?;
    let common = common(&mut body, &HeaderMap::new(), &GatewayConfig::default(), 99)?;
    finish(body)?;
    Ok(common)
}

#[test]
fn defaults_are_openais() {
    let common = read(&json!({})).unwrap();
    let sampling = Sampling { temperature: 1.0, seed: 99, ..Sampling::default() };
    assert_eq!(common.sampling, sampling);
    assert_eq!((common.n, common.stream, common.include_usage, common.ignore_end), (1, false, false, false));
}

#[test]
fn values_reach_the_sampler() {
    let common = read(&json!({
        "temperature": 0.5, "top_p": 1e-6, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2,
        "presence_penalty": -1, "frequency_penalty": 2, "seed": -1, "logit_bias": {"7": -100, "3": 1.5},
        "ignore_eos": true, "n": 3, "stop": ["a", "", "b"],
    }))
    .unwrap();
    let sampling = Sampling {
        temperature: 0.5,
        top_p: 1e-6,
        top_k: 40,
        min_p: 0.1,
        repetition_penalty: 1.2,
        presence_penalty: -1.0,
        frequency_penalty: 2.0,
        logit_bias: vec![(3, 1.5), (7, -100.0)],
        seed: u64::MAX,
        logprobs: None,
    };
    assert_eq!(common.sampling, sampling);
    assert_eq!((common.n, common.ignore_end), (3, true));
    assert_eq!(common.stop, ["a", "b"], "an empty string stops nothing");
    assert_eq!(read(&json!({"top_k": -1})).unwrap().sampling.top_k, 0);
}

#[test]
fn what_is_out_of_range_is_named_with_its_range() {
    for (field, value, words) in [
        ("temperature", json!(2.1), "0 to 2"),
        ("top_p", json!(0), "more than 0"),
        ("top_k", json!(-2), "-1"),
        ("n", json!(17), "gateway.max-n"),
        ("stop", json!(vec!["x"; 17]), "gateway.max-stop"),
        ("stop", json!("x".repeat(2000)), "bytes"),
        ("logit_bias", json!({"1": 1, "01": 2}), "twice"),
        ("logit_bias", json!({"-1": 1}), "token id"),
        ("service_tier", json!("flex"), "service_tier"),
        ("store", json!(true), "store"),
        ("min_tokens", json!(3), "min_tokens"),
        ("stream_options", json!({}), "stream: true"),
    ] {
        let error = read(&json!({ field: value })).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)), "{error}");
        assert!(error.message.contains(words), "{error}");
    }
}

/// What sglang-router 0.3.2 adds to completions and chats on their way.
#[test]
fn switches_of_other_servers_pass_where_they_ask_for_what_we_do() {
    let added = json!({
        "no_stop_trim": false, "skip_special_tokens": true, "return_hidden_states": false,
        "separate_reasoning": true, "stream_reasoning": true, "ignore_eos": false,
    });
    assert!(!read(&added).unwrap().ignore_end);
    for (field, value, word) in [
        ("no_stop_trim", json!(true), "only false"),
        ("skip_special_tokens", json!(false), "only true"),
        ("return_hidden_states", json!(true), "only false"),
        ("return_hidden_states", json!(1), "true or false"),
        ("separate_reasoning", json!("yes"), "true or false"),
    ] {
        let error = read(&json!({field: value})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field), "{}", error.message);
        assert!(error.message.contains(word), "{}", error.message);
    }
}

#[test]
fn stream_options_are_checked() {
    let read = |options: Value| read(&json!({"stream": true, "stream_options": options}));
    assert!(read(json!({"include_usage": true})).unwrap().include_usage);
    for options in [json!({}), json!({"include_usage": false}), json!({"include_usage": null}), json!(null)] {
        assert!(!read(options).unwrap().include_usage);
    }
    for options in
        [json!({"include_usage": 1}), json!({"include_obfuscation": true}), json!({"x": 1}), json!([])]
    {
        assert_eq!(read(options).unwrap_err().param.as_deref(), Some("stream_options"));
    }
}

#[test]
fn hints_are_bounded_and_typed() {
    let many: serde_json::Map<String, Value> = (0..33).map(|i| (format!("p{i}"), json!(i))).collect();
    for (props, param) in [
        (Value::Object(many), "props"),
        (json!({"a": []}), "props"),
        (json!({"a": null}), "props"),
        (json!({"": 1}), "props"),
        (json!({"a": "x".repeat(300)}), "props"),
        (json!({"priority": 1.5}), "props.priority"),
        (json!({"deadline-ms": -1}), "props.deadline-ms"),
        (json!({"keep-ms": "long"}), "props.keep-ms"),
        (json!({"slo-ttft-ms": 1.5}), "props.slo-ttft-ms"),
        (json!({"session-final": 1}), "props.session-final"),
    ] {
        let error = read(&json!({ "props": props })).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
    }
    let props = read(&json!({"props": {"priority": 1}, "priority": 2})).unwrap().props;
    assert_eq!(props["priority"], Prop::Int(2));
    assert_eq!(from_header(" 1.5 "), Prop::Float(1.5));
    assert_eq!(from_header("true"), Prop::Bool(true));
    assert_eq!(from_header("inf"), Prop::Text("inf".into()));
    assert_eq!(from_header("800ms"), Prop::Duration(Span::from_millis(800)));
    let props = json!({"keep-ms": "1m", "deadline-ms": "1500us", "wait": "2s", "size": "2 x"});
    let props = read(&json!({ "props": props })).unwrap().props;
    assert_eq!(props["keep-ms"], Prop::Int(60_000));
    assert_eq!(props["deadline-ms"], Prop::Int(2), "rounded up");
    assert_eq!(props["wait"], Prop::Duration(Span::from_secs(2)));
    assert_eq!(props["size"], Prop::Text("2 x".into()));
}
