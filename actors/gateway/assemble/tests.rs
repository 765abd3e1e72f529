use super::*;
use crate::gateway::tests::fixture::{END, bytes, descriptor};

fn model() -> Arc<TextModel> {
    Arc::new(TextModel::from_descriptor(descriptor(false)).unwrap())
}

fn stops(strings: &[&str]) -> Option<Arc<StopSet>> {
    (!strings.is_empty()).then(|| Arc::new(StopSet::new(strings)))
}

fn scored() -> Option<Logprobs> {
    Some(Logprobs { own: -1.0, top: Vec::new() })
}

/// All pieces of `tokens`, the last of which ends the choice with `finish`.
fn run(tokens: &[Token], stop: &[&str], finish: Finish) -> Vec<Piece> {
    let mut assembler = Assembler::new(&model(), &[], stops(stop).as_ref());
    let last = tokens.len() - 1;
    tokens
        .iter()
        .enumerate()
        .map(|(i, &t)| assembler.push(t, scored(), (i == last).then_some(finish)))
        .collect()
}

fn joined(pieces: &[Piece]) -> String {
    pieces.iter().map(|p| p.text.as_str()).collect()
}

fn shown_tokens(pieces: &[Piece]) -> Vec<Token> {
    pieces.iter().flat_map(|p| &p.tokens).map(|t| t.token).collect()
}

#[test]
fn text_without_stops_comes_out_character_by_character() {
    let pieces = run(&bytes("aé👩‍🚀"), &[], Finish::Length);
    assert_eq!(joined(&pieces), "aé👩‍🚀");
    assert!(pieces.iter().all(|p| !p.text.contains('\u{fffd}')));
    assert_eq!(pieces[0].text, "a");
    assert_eq!((pieces[1].text.as_str(), pieces[2].text.as_str()), ("", "é"));
    assert_eq!(pieces.iter().filter(|p| p.finish.is_some()).count(), 1);
}

#[test]
fn an_unfinished_character_at_the_end_is_shown_as_invalid() {
    let pieces = run(&[97, 0xf0, 0x9f], &[], Finish::Length);
    assert_eq!(joined(&pieces), "a\u{fffd}");
}

#[test]
fn an_end_token_is_not_shown() {
    let tokens = [bytes("ab"), vec![END]].concat();
    let pieces = run(&tokens, &[], Finish::EndToken);
    assert_eq!((joined(&pieces).as_str(), shown_tokens(&pieces)), ("ab", bytes("ab")));
    assert_eq!(pieces[2], Piece { finish: Some(Finish::EndToken), ..Piece::default() });
}

#[test]
fn what_may_become_a_stop_waits_with_its_logprobs() {
    let pieces = run(&bytes("xABCy"), &["ABCD"], Finish::Length);
    let texts: Vec<_> = pieces.iter().map(|p| p.text.as_str()).collect();
    assert_eq!(texts, ["x", "", "", "", "ABCy"]);
    let counts: Vec<_> = pieces.iter().map(|p| p.tokens.len()).collect();
    assert_eq!(counts, [1, 0, 0, 0, 4]);
    let offsets: Vec<_> = pieces[4].tokens.iter().map(|t| t.offset).collect();
    assert_eq!(offsets, [1, 2, 3, 4]);
}

#[test]
fn what_waits_is_shown_at_the_end() {
    for finish in [Finish::Length, Finish::EndToken] {
        let mut tokens = bytes("xAB");
        if finish == Finish::EndToken {
            tokens.push(END);
        }
        let pieces = run(&tokens, &["ABC"], finish);
        assert_eq!((joined(&pieces).as_str(), shown_tokens(&pieces)), ("xAB", bytes("xAB")));
        assert_eq!(pieces.last().and_then(|p| p.finish), Some(finish));
    }
}

#[test]
fn a_stop_string_is_cut_out_with_its_tokens_and_nothing_follows() {
    let mut assembler = Assembler::new(&model(), &[], stops(&["BC"]).as_ref());
    let mut pieces: Vec<_> = bytes("ABC").into_iter().map(|t| assembler.push(t, scored(), None)).collect();
    assert_eq!(pieces[2].finish, Some(Finish::StopString));
    pieces.push(assembler.push(100, scored(), Some(Finish::Length)));
    assert_eq!((joined(&pieces).as_str(), shown_tokens(&pieces)), ("A", bytes("A")));
    assert_eq!(pieces[3], Piece::default());
}

#[test]
fn a_stop_string_completed_by_the_last_token_counts() {
    let pieces = run(&bytes("ABC"), &["BC"], Finish::Length);
    assert_eq!(pieces[2].finish, Some(Finish::StopString));
}

#[test]
fn a_character_of_the_prompt_is_finished_and_the_prompt_not_shown() {
    let mut assembler = Assembler::new(&model(), &[bytes("Hello "), vec![0xc3]].concat(), None);
    let piece = assembler.push(0xa9, None, None);
    assert!(!piece.text.contains("Hello"));
}

#[test]
fn no_logprob_is_infinite() {
    assert_eq!(finite(f32::NEG_INFINITY), LOWEST_LOGPROB);
    assert_eq!(finite(f32::NAN), LOWEST_LOGPROB);
    assert_eq!(finite(f32::INFINITY), LOWEST_LOGPROB);
    assert_eq!(finite(-1e30), LOWEST_LOGPROB);
    assert_eq!(finite(-2.5), -2.5);
}
