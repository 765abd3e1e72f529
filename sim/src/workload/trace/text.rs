//! The tokens of prompts, of which a trace says only where they are alike.

use std::collections::{BTreeMap, VecDeque};

use policies::cost::fake::{FakeModel, hash, roll};
use policies::request::{Sampling, Token};
use policies::rng;

use super::row::Row;

/// Blocks of answers that are remembered; the oldest go first, as they do in the caches.
const REMEMBERED: usize = 1 << 20;

/// Blocks of answers, as the simulated model gives them, by their numbers.
///
/// The log tells of an answer which blocks it filled, so that those of a later prompt that goes on from it are known for
/// the same. Their tokens here are those that the simulated workers draw, and so that prompt finds in their caches what it
/// found live. What is drawn is a function of the prompt, and is known as soon as that is.
#[derive(Debug)]
pub(super) struct Answers {
    model: FakeModel,
    temperature: f32,
    blocks: BTreeMap<u64, Box<[Token]>>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

impl Answers {
    /// Of a model that draws at this temperature; none yet.
    pub(super) const fn new(model: FakeModel, temperature: f32) -> Self {
        Self { model, temperature, blocks: BTreeMap::new(), order: VecDeque::new() }
    }

    /// Writes the prompt of a row: the tokens of its blocks, then its own.
    pub(super) fn prompt(&self, row: &Row, seed: u64, tokens: &mut Vec<Token>) {
        /// Sets blocks apart from other streams of random numbers.
        const BLOCKS: u64 = 0x626c_6f63_6b73;
        let input = row.input as usize;
        tokens.clear();
        tokens.reserve(input + 8);
        for block in &row.blocks {
            let end = (tokens.len() + row.block_tokens as usize).min(input);
            match self.blocks.get(block) {
                Some(known) => tokens.extend(known.iter().take(end - tokens.len())),
                None => text(rng::bits(BLOCKS, 0, *block), end, tokens),
            }
        }
        text(rng::bits(seed, 1, row.line), input, tokens);
    }

    /// Remembers what the request `number` with this row and prompt is answered, where the log says which blocks that
    /// fills.
    pub(super) fn remember(&mut self, row: &Row, number: u64, prompt: &[Token]) {
        if row.answered.is_empty() {
            return;
        }
        let size = row.block_tokens as usize;
        let full = prompt.len() / size * size;
        let until = full + row.answered.len() * size;
        let sampling = Sampling { temperature: self.temperature, seed: number, ..Sampling::default() };
        let mut tokens = prompt[full..].to_vec();
        let mut state = hash(prompt);
        for position in prompt.len()..until {
            let token = self.model.draw(state, &sampling, 0, position as u32);
            state = roll(state, token);
            tokens.push(token);
        }
        for (number, block) in row.answered.iter().zip(tokens.chunks_exact(size)) {
            if self.blocks.insert(*number, block.into()).is_none() {
                self.order.push_back(*number);
            }
        }
        while self.order.len() > REMEMBERED {
            self.order.pop_front().map(|oldest| self.blocks.remove(&oldest));
        }
    }
}

/// Adds random bytes up to a length.
fn text(stream: u64, end: usize, tokens: &mut Vec<Token>) {
    let mut word = 0;
    while tokens.len() < end {
        word += 1;
        let bytes = rng::mix64(stream.wrapping_add(word)).to_le_bytes();
        tokens.extend_from_slice(&bytes.map(Token::from));
    }
    tokens.truncate(end);
}
