use serde_json::json;

use super::*;

const KEEP: Keep = Keep { entries: 4, prompts: 3 };

fn parse(text: &str) -> Result<Body, ApiError> {
    Body::parse(text.as_bytes(), KEEP)
}

fn prompt(value: &serde_json::Value) -> Prompt {
    let body = parse(&json!({ "prompt": value }).to_string()).unwrap();
    body.prompt.unwrap()
}

#[test]
fn scalars_keep_their_kind() {
    let body =
        parse(r#"{"a":null,"b":true,"c":-3,"d":1.5,"e":"x","f":18446744073709551615,"g":2.0}"#).unwrap();
    let expected = [
        ("a", Scalar::Null),
        ("b", Scalar::Bool(true)),
        ("c", Scalar::Int(-3)),
        ("d", Scalar::Float(1.5)),
        ("e", Scalar::Text("x".into())),
        ("f", Scalar::Float(18_446_744_073_709_551_615.0)),
        ("g", Scalar::Float(2.0)),
    ];
    for (name, scalar) in expected {
        assert_eq!(body.fields[name], Field::Scalar(scalar), "{name}");
    }
}

#[test]
fn lists_and_objects_are_bounded_and_counted() {
    let mut body =
        parse(r#"{"list":[1,2,3,4,5,[6]],"object":{"a":1,"b":[],"c":{},"d":4,"e":5},"none":null}"#).unwrap();
    let Some(Field::List { items, count }) = body.take("list") else { panic!() };
    assert_eq!((items.len(), count), (4, 6));
    let Some(Field::Object { entries, count }) = body.take("object") else { panic!() };
    assert_eq!((entries.len(), count), (4, 5));
    assert_eq!(entries[1], ("b".into(), Scalar::Nested));
    assert_eq!(body.take("none"), None, "null is absent");
    assert_eq!(body.take("list"), None, "taken once");
}

#[test]
fn a_field_that_comes_twice_is_an_error() {
    for text in [r#"{"n":1,"n":1}"#, r#"{"prompt":"a","prompt":"a"}"#, r#"{"messages":[],"messages":[]}"#] {
        assert!(parse(text).unwrap_err().message.contains("twice"), "{text}");
    }
    let many: Vec<String> = (0..300).map(|i| format!("\"f{i}\":{i}")).collect();
    assert!(parse(&format!("{{{}}}", many.join(","))).unwrap_err().message.contains("256"));
}

#[test]
fn what_is_not_an_object_is_said_with_its_place_and_without_its_content() {
    for text in
        ["", " \n", "[]", "7", "{\"a\":secret}", "{\"a\":1} secret", "{\"a\":1e999}", "{\"secret\":", "nul"]
    {
        let error = parse(text).unwrap_err();
        assert!(!error.message.contains("secret"), "{error}");
        assert_eq!(error.status.as_u16(), 400);
    }
    let error = Body::parse(b"{\"a\":\"\xff\"}", KEEP).unwrap_err();
    assert!(error.message.contains("UTF-8"), "{error}");
    let deep = format!("{{\"a\":{}", "[".repeat(200_000));
    assert!(parse(&deep).is_err());
    let deep = format!("{{\"messages\":{}", "[".repeat(200_000));
    assert!(parse(&deep).is_err());
}

#[test]
fn prompts_are_read_in_all_their_forms() {
    let text = |t: &str| PromptItem::Text(t.into());
    let tokens = |t: &[u32]| PromptItem::Tokens(t.to_vec());
    for (value, items, count) in [
        (json!("a"), vec![text("a")], 1),
        (json!([1, 2, 3, 4, 5]), vec![tokens(&[1, 2, 3, 4, 5])], 1),
        (json!(["a", "b"]), vec![text("a"), text("b")], 2),
        (json!([[1], "b", []]), vec![tokens(&[1]), text("b"), tokens(&[])], 3),
        (json!(["a", "b", "c", "d", "e"]), vec![text("a"), text("b"), text("c")], 5),
        (json!([]), vec![], 0),
    ] {
        assert_eq!(prompt(&value), Prompt::Items { items, count }, "{value}");
    }
    for value in [
        json!(null),
        json!(1),
        json!({}),
        json!([-1]),
        json!([1, "a"]),
        json!(["a", 1]),
        json!([[1], 1]),
        json!([[1.5]]),
        json!([[[1]]]),
        json!([4_294_967_296_u64]),
        json!([true]),
    ] {
        assert!(matches!(prompt(&value), Prompt::Bad(_)), "{value}");
    }
}
