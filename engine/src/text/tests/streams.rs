//! Detokenizer and stop matcher against their naive forms.

use super::*;

fn streamed(model: &TextModel, prompt: &[u32], ids: &[u32]) -> Vec<String> {
    let mut detokenizer = model.detokenizer(prompt);
    let mut deltas: Vec<String> = ids
        .iter()
        .map(|id| {
            let mut delta = String::new();
            detokenizer.push(*id, &mut delta);
            delta
        })
        .collect();
    let mut last = String::new();
    detokenizer.finish(&mut last);
    deltas.push(last);
    deltas
}

#[test]
fn characters_over_several_tokens_come_whole() {
    let model = smollm();
    let text = "ď 你好 👩‍🚀 𓂀";
    let ids = model.encode(text, AllowSpecial::No, false).unwrap();
    assert!(ids.len() > text.chars().count(), "the text should take several tokens a character");
    // Four interleaved streams.
    let mut streams: Vec<_> = (0..4).map(|_| (model.detokenizer(&[]), String::new())).collect();
    for id in &ids {
        for (detokenizer, out) in &mut streams {
            detokenizer.push(*id, out);
            assert!(!out.contains(char::REPLACEMENT_CHARACTER));
        }
    }
    for (mut detokenizer, mut out) in streams {
        detokenizer.finish(&mut out);
        assert_eq!(out, text);
    }
}

#[test]
fn a_prompt_that_ends_inside_a_character_is_not_shown() {
    let model = smollm();
    let emoji = model.encode("🙃", AllowSpecial::No, false).unwrap();
    assert!(emoji.len() >= 2);
    let mut prompt = model.encode("Hello ", AllowSpecial::No, false).unwrap();
    prompt.push(emoji[0]);
    // The rest of the character joins what the prompt began.
    assert_eq!(streamed(model, &prompt, &emoji[1..]).concat(), "🙃");
    // Other text drops it, without a sign of breakage that the model did not cause.
    let world = model.encode(" world", AllowSpecial::No, false).unwrap();
    assert_eq!(streamed(model, &prompt, &world).concat(), " world");
    assert_eq!(streamed(model, &prompt, &[]).concat(), "");
    assert_eq!(streamed(model, &prompt, &[2]).concat(), "");
    // Broken by the model itself.
    assert_eq!(streamed(model, &world, &emoji[..1]).concat(), "\u{FFFD}");
}

proptest! {
    #[test]
    fn deltas_are_the_full_decode(ids in prop::collection::vec(0_u32..49_160, 0..60), cut in any::<prop::sample::Index>()) {
        let model = smollm();
        prop_assert_eq!(streamed(model, &[], &ids).concat(), model.decode(&ids, true));
        // A stream that goes on elsewhere.
        let cut = cut.index(ids.len() + 1);
        let mut text = String::new();
        let mut first = model.detokenizer(&[]);
        ids[..cut].iter().for_each(|id| first.push(*id, &mut text));
        let mut second = model.resume_detokenizer(&[], &ids[..cut]);
        ids[cut..].iter().for_each(|id| second.push(*id, &mut text));
        second.finish(&mut text);
        prop_assert_eq!(text, model.decode(&ids, true));
    }

    #[test]
    fn random_text_survives(text in "\\PC{0,60}") {
        let model = smollm();
        let ids = model.encode(&text, AllowSpecial::No, true).unwrap();
        prop_assert!(ids.iter().all(|id| !model.is_special(*id)));
        prop_assert_eq!(&model.decode(&ids, true), &text);
        prop_assert_eq!(streamed(model, &[], &ids).concat(), text);
    }

    #[test]
    fn stops_are_found_as_a_naive_search_finds_them(
        text in "[abé]{0,40}",
        stops in prop::collection::vec("[abé]{0,4}", 0..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let expected = naive(&text, &stops);
        let mut at: Vec<usize> = cuts.iter().map(|cut| text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(cut.index(text.chars().count() + 1)).unwrap()).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let mut matcher = StopMatcher::new(Arc::new(StopSet::new(&stops)));
        let (mut out, mut found) = (String::new(), None);
        for pair in at.windows(2) {
            let fed = &text[pair[0]..pair[1]];
            found = matcher.push(fed, &mut out);
            if found.is_none() {
                // Exactly what may still become a stop is withheld.
                let held = &text[out.len()..pair[1]];
                let longest = text[..pair[1]].char_indices().map(|(at, _)| &text[at..pair[1]])
                    .find(|end| stops.iter().any(|stop| stop.starts_with(end) && stop.len() > end.len())).unwrap_or("");
                prop_assert_eq!(held, longest);
            }
        }
        matcher.finish(&mut out);
        prop_assert_eq!((out, found.map(|found| stops[found.index].clone())), expected);
    }
}

/// The stop that is complete first, the longest of those; and the text before it.
fn naive(text: &str, stops: &[String]) -> (String, Option<String>) {
    for (at, char) in text.char_indices() {
        let end = at + char.len_utf8();
        let longest = stops
            .iter()
            .filter(|stop| !stop.is_empty() && text[..end].ends_with(*stop))
            .max_by_key(|stop| stop.len());
        if let Some(stop) = longest {
            return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn withheld_text_is_neither_lost_nor_doubled() {
    let run = |stops: &[&str], pieces: &[&str]| {
        let mut matcher = StopMatcher::new(Arc::new(StopSet::new(stops)));
        let mut out = String::new();
        let found = pieces.iter().find_map(|piece| matcher.push(piece, &mut out));
        matcher.finish(&mut out);
        (out, found.map(|found| found.index))
    };
    // A prefix matches, then fails.
    assert_eq!(run(&["ABCX"], &["..A", "B", "C", "D.."]), ("..ABCD..".to_owned(), None));
    // Two overlapping candidates.
    assert_eq!(run(&["\n", "AB?"], &["..A", "BC", "D.."]), ("..ABCD..".to_owned(), None));
    // Withheld text is the last before the end, whatever the end is.
    assert_eq!(run(&["ABCX"], &["..", "AB", "C"]), ("..ABC".to_owned(), None));
    assert_eq!(run(&["b", "abc"], &["xa", "bc"]), ("xa".to_owned(), Some(0)));
    assert_eq!(run(&["c", "abc"], &["xa", "b", "c!"]), ("x".to_owned(), Some(1)));
    assert_eq!(run(&[], &["x"]), ("x".to_owned(), None));
    // After a match nothing more comes.
    let mut matcher = StopMatcher::new(Arc::new(StopSet::new(&["stop"])));
    let mut out = String::new();
    assert_eq!(matcher.push("a stop b", &mut out), Some(StopMatch { index: 0 }));
    assert_eq!(matcher.push("more", &mut out), Some(StopMatch { index: 0 }));
    matcher.finish(&mut out);
    assert_eq!(out, "a ");
}
