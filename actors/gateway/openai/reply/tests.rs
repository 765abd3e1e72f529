use super::*;
use crate::gateway::tests::fixture::{BEGIN, bytes, descriptor};

fn model() -> TextModel {
    TextModel::from_descriptor(descriptor(true)).unwrap()
}

fn view(echo: &str, tokens: &[Token]) -> PromptView {
    PromptView { echo: echo.into(), tokens: tokens.into() }
}

#[test]
fn offsets_count_characters_and_skip_what_the_tokenizer_added() {
    let text = model();
    assert_eq!(offsets(&text, &view("abc", &bytes("abc"))), [0, 1, 2]);
    // Two bytes a character: both tokens belong to the second one.
    assert_eq!(offsets(&text, &view("aéb", &bytes("aéb"))), [0, 1, 2, 2]);
    assert_eq!(offsets(&text, &view("ab", &[vec![BEGIN], bytes("ab")].concat())), [0, 0, 1]);
    assert_eq!(offsets(&text, &view("ab", &bytes(" ab"))), [0, 0, 1]);
    assert_eq!(offsets(&text, &view("", &[])), [0_usize; 0]);
}

#[test]
fn the_first_token_of_a_prompt_has_no_logprob() {
    let scores = vec![Logprobs { own: f32::NEG_INFINITY, top: vec![(98, -0.25)] }];
    let mut legacy = LegacyLogprobs::default();
    legacy.push_prompt(&model(), &view("ab", &bytes("ab")), &scores);
    let output =
        ScoredToken { token: 0xc3, logprobs: Logprobs { own: -1.0, top: vec![(97, -0.5)] }, offset: 0 };
    legacy.push_output(&model(), 2, &[output]);
    assert_eq!(
        legacy.into_json(),
        json!({
            "tokens": ["a", "b", "bytes:\\xc3"],
            "token_logprobs": [null, -9999.0, -1.0],
            "top_logprobs": [null, {"b": -0.25}, {"a": -0.5, "bytes:\\xc3": -1.0}],
            "text_offset": [0, 1, 2],
        })
    );
}
