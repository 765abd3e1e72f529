//! Against logits computed in 64 bits by other code, from the same file.

use std::path::Path;

use engine::Engine;
use engine::paged::PagedEngine;
use engine::store::default_model_for_tests;

use crate::common::{gguf, gguf_f32, load, slice, table};

#[derive(serde::Deserialize)]
struct Reference {
    texts: Vec<Text>,
    greedy: Vec<Greedy>,
}

#[derive(serde::Deserialize)]
struct Text {
    text: String,
    special: bool,
    ids: Vec<u32>,
    /// The likeliest five tokens after each position, with their logits.
    top5: Vec<Vec<(u32, f64)>>,
}

#[derive(serde::Deserialize)]
struct Greedy {
    prompt: String,
    ids: Vec<u32>,
}

impl Reference {
    fn read() -> Self {
        let path = Path::new("../tests/fixtures/smollm2_reference.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Token ids of the prompt of a greedy continuation: those of the text that starts with it.
    fn prompt_ids(&self, prompt: &str) -> Vec<u32> {
        if let Some(text) = self.texts.iter().find(|text| text.text == prompt) {
            return text.ids.clone();
        }
        // The plain prompts are the beginnings of texts, and each of their words is one token.
        let text = self.texts.iter().find(|text| !text.special && text.text.starts_with(prompt)).unwrap();
        text.ids[..prompt.split(' ').count()].to_vec()
    }
}

/// Logits after every position of a text.
fn logits(engine: &mut PagedEngine, ids: &[u32]) -> Vec<Vec<f32>> {
    let pages = engine.kv().layout.pages_for(ids.len() as u32);
    engine.logits(&[slice(1, ids, 0, table(0, pages))]).unwrap()
}

/// The likeliest token, and how far the second is behind.
fn best(row: &[f32]) -> (u32, f32) {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    (order[0], row[order[0] as usize] - row[order[1] as usize])
}

#[test]
fn logits_with_f32_pages_are_those_of_the_reference() {
    let reference = Reference::read();
    let mut engine = load(&gguf_f32(&default_model_for_tests()));
    let (mut positions, mut worst) = (0, 0.0_f64);
    for text in &reference.texts {
        let rows = logits(&mut engine, &text.ids);
        assert_eq!(rows.len(), text.top5.len());
        for (row, top) in rows.iter().zip(&text.top5) {
            positions += 1;
            for (token, logit) in top {
                worst = worst.max((f64::from(row[*token as usize]) - logit).abs());
            }
        }
    }
    println!("largest difference of {positions} positions: {worst:.5}");
    assert_eq!(positions, 339);
    assert!(worst < 0.01, "a logit differs by {worst}");
}

#[test]
fn favourites_with_f16_pages_are_those_of_the_reference() {
    let reference = Reference::read();
    let mut engine = load(&gguf(&default_model_for_tests()));
    let (mut positions, mut same) = (0, 0);
    for text in &reference.texts {
        for (row, top) in logits(&mut engine, &text.ids).iter().zip(&text.top5) {
            positions += 1;
            same += usize::from(best(row).0 == top[0].0);
        }
    }
    println!("same favourite at {same} of {positions} positions");
    assert!(same * 100 >= positions * 99, "only {same} of {positions}");
}

#[test]
fn greedy_continuations_are_those_of_the_reference() {
    let reference = Reference::read();
    let mut engine = load(&gguf_f32(&default_model_for_tests()));
    for greedy in &reference.greedy {
        let prompt = reference.prompt_ids(&greedy.prompt);
        let pages = engine.kv().layout.pages_for((prompt.len() + greedy.ids.len()) as u32);
        let mut row = logits(&mut engine, &prompt).pop().unwrap();
        let mut compared = 0;
        for (index, expected) in greedy.ids.iter().enumerate() {
            let (token, margin) = best(&row);
            // Our logits are within 0.01 of the reference's, so its margin is over 0.05 where ours is over 0.07. Once
            // it was not, the two may go on differently.
            if margin <= 0.07 {
                break;
            }
            assert_eq!(token, *expected, "{:?}, token {index}", greedy.prompt);
            compared += 1;
            let position = (prompt.len() + index) as u32;
            row = engine.logits(&[slice(1, &[token], position, table(0, pages))]).unwrap().remove(0);
        }
        println!("{compared} of {} tokens compared after {:?}", greedy.ids.len(), greedy.prompt);
        assert!(compared >= 4, "too close a call for a test: {:?}", greedy.prompt);
    }
}
