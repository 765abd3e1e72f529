//! The tokens of prompts, of which a trace says only where they are alike.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

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

    /// The prompt of a row: the tokens of its blocks, then its own.
    pub(super) fn prompt(&self, row: &Row, seed: u64) -> Arc<[Token]> {
        /// Sets blocks apart from other streams of random numbers.
        const BLOCKS: u64 = 0x626c_6f63_6b73;
        let input = row.input as usize;
        // Written where it stays: it may be long.
        let mut prompt: Arc<[Token]> = std::iter::repeat_n(0, input).collect();
        let mut left = Arc::get_mut(&mut prompt).map_or(&mut [][..], |tokens| tokens);
        for block in &row.blocks {
            let (size, known) = (left.len().min(row.block_tokens as usize), self.blocks.get(block));
            let size = known.map_or(size, |known| known.len().min(size));
            let (tokens, rest) = left.split_at_mut(size);
            match known {
                Some(known) => tokens.copy_from_slice(&known[..size]),
                None => text(rng::bits(BLOCKS, 0, *block), tokens),
            }
            left = rest;
        }
        text(rng::bits(seed, 1, row.line), left);
        prompt
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

/// Fills with random bytes.
fn text(stream: u64, tokens: &mut [Token]) {
    let (words, rest) = tokens.as_chunks_mut();
    let mut word = stream;
    let mut bytes = || {
        word = word.wrapping_add(1);
        rng::mix64(word).to_le_bytes().map(Token::from)
    };
    words.iter_mut().for_each(|tokens| *tokens = bytes());
    if !rest.is_empty() {
        rest.copy_from_slice(&bytes()[..rest.len()]);
    }
}
