//! A model of tokens without a neural network: what the fake engine and the simulator compute.
//!
//! The "KV" of a token is a hash of all tokens up to it, kept in the slot of its page and read back through the block
//! table when the next token is computed. A wrong page, a missed copy, a prefix that is not one: any of them changes the
//! hash, and with it every token from there on. The drawn token depends on the hash (and on the seed, the choice and the
//! position where the temperature is above 0), so two runs agree exactly when their KV does.

use config::ids::PageId;

use crate::request::{Logprobs, Sampling, Token};
use crate::rng;
use crate::step::{Draw, Drawn, PromptLogprobs, Slice, StepOutcome, StepPlan};
use crate::time::Span;

/// Symbols that answers are made of, each as often as it is drawn: about one space in six, letters by their frequency
/// in English. The token of a symbol is its byte.
const SYMBOLS: &[u8; 64] = b"           eeeeeetttttaaaaooooiiiinnnnsssshhrrrdddlluucmfywgpbvk";

/// Distinct symbols, the order of the likeliest tokens in log-probabilities.
const DISTINCT: &[u8] = b" etaoinshrdlucmfywgpbvk";

/// Hash before the first token.
const EMPTY: u64 = 0x6163_746f_726e_6f64;

/// Content of a slot that nothing was written to.
const UNWRITTEN: u64 = 0;

/// Hash of a sequence that goes on with `token`. Never the content of an unwritten slot.
#[must_use]
pub const fn roll(hash: u64, token: Token) -> u64 {
    // Knuth's MMIX multiplier. Each token waits for the one before, and a prompt has thousands: what is drawn is mixed
    // once more, so that one multiplication a token does here.
    (hash ^ token as u64).wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(29) | 1
}

/// Hash of a whole sequence.
#[must_use]
pub fn hash(tokens: &[Token]) -> u64 {
    tokens.iter().fold(EMPTY, |hash, &token| roll(hash, token))
}

/// What the fake model draws besides letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeModel {
    /// The end token, and after how many tokens it comes on average; none: it never comes.
    pub end: Option<(Token, u32)>,
}

impl FakeModel {
    /// The token drawn after a sequence with hash `hash`, for `choice` at `position`.
    #[must_use]
    pub fn draw(&self, hash: u64, sampling: &Sampling, choice: u32, position: u32) -> Token {
        if let Some((token, _)) = sampling.logit_bias.iter().find(|(_, bias)| *bias >= 100.0) {
            return *token;
        }
        let bits = match sampling.temperature > 0.0 {
            true => rng::bits(hash ^ rng::mix64(sampling.seed), u64::from(choice), u64::from(position)),
            false => rng::mix64(hash),
        };
        let banned =
            |token: Token| sampling.logit_bias.iter().any(|(t, bias)| *t == token && *bias <= -100.0);
        if let Some((token, mean)) = self.end
            && !banned(token)
            && (bits >> 32).is_multiple_of(u64::from(mean.max(1)))
        {
            return token;
        }
        let first = (bits % SYMBOLS.len() as u64) as usize;
        let mut symbols = (first..first + SYMBOLS.len()).map(|i| Token::from(SYMBOLS[i % SYMBOLS.len()]));
        symbols.find(|&t| !banned(t)).unwrap_or_else(|| Token::from(SYMBOLS[first]))
    }

    /// Log-probabilities of `token` after a sequence with hash `hash`, and of `top` likeliest: `token` itself with
    /// 0.4 to 0.9, the others with half of what is left each.
    #[must_use]
    pub fn logprobs(&self, hash: u64, token: Token, top: u8) -> Logprobs {
        let own = 0.4 + 0.5 * rng::unit(hash, 1, 0);
        let mut left = 1.0 - own;
        let others = DISTINCT.iter().map(|&b| Token::from(b)).filter(|&t| t != token);
        let mut list = vec![(token, own as f32)];
        for other in others.take(usize::from(top)) {
            left /= 2.0;
            list.push((other, left as f32));
        }
        list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        list.truncate(usize::from(top));
        let top = list.into_iter().map(|(t, p)| (t, p.ln())).collect();
        Logprobs { own: (own as f32).ln(), top }
    }

    /// What a sequence answers to `prompt` when nothing goes wrong: `max` tokens at most, up to the end token, which is
    /// the last one if it comes.
    #[must_use]
    pub fn answer(&self, prompt: &[Token], sampling: &Sampling, choice: u32, max: u32) -> Vec<Token> {
        let mut state = hash(prompt);
        let mut out = Vec::new();
        for index in 0..max {
            let token = self.draw(state, sampling, choice, prompt.len() as u32 + index);
            out.push(token);
            if self.end.is_some_and(|(end, _)| end == token) {
                break;
            }
            state = roll(state, token);
        }
        out
    }
}

// Apart from what runs with each token, whose code is to stay in the cache.

#[cold]
#[inline(never)]
fn no_page(position: u32) -> String {
    format!("no page for position {position}")
}

#[cold]
#[inline(never)]
fn no_such_page(page: PageId) -> String {
    format!("page {page} does not exist")
}

#[cold]
#[inline(never)]
fn unwritten(position: u32) -> String {
    format!("position {position} was never written")
}

/// The pages of a fake engine: one hash a slot.
#[derive(Clone, Debug)]
pub struct FakePages {
    model: FakeModel,
    page_tokens: u32,
    slots: Vec<u64>,
}

impl FakePages {
    /// `pages` pages of `page_tokens` tokens, nothing written.
    #[must_use]
    pub fn new(model: FakeModel, pages: u32, page_tokens: u32) -> Self {
        let page_tokens = page_tokens.max(1);
        Self { model, page_tokens, slots: vec![UNWRITTEN; pages as usize * page_tokens as usize] }
    }

    /// The slots of a page; none when there is no such page.
    #[must_use]
    pub fn page(&self, page: usize) -> Option<&[u64]> {
        let size = self.page_tokens as usize;
        self.slots.get(page.checked_mul(size)?..)?.get(..size)
    }

    /// As [`FakePages::page`], to write.
    pub fn page_mut(&mut self, page: usize) -> Option<&mut [u64]> {
        let size = self.page_tokens as usize;
        self.slots.get_mut(page.checked_mul(size)?..)?.get_mut(..size)
    }

    /// Runs a step. A slice that reads a slot never written, or has no page for a token, fails alone. `took` is left at
    /// zero for the caller.
    ///
    /// # Errors
    /// A copy from or to a page that does not exist.
    pub fn step(&mut self, plan: &StepPlan) -> Result<StepOutcome, String> {
        let mut outcome = StepOutcome::default();
        self.step_into(plan, &mut outcome)?;
        Ok(outcome)
    }

    /// As [`FakePages::step`], into an outcome that there is already, for its memory.
    ///
    /// # Errors
    /// As [`FakePages::step`].
    pub fn step_into(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), String> {
        outcome.drawn.clear();
        outcome.prompt_logprobs.clear();
        outcome.failed.clear();
        (outcome.step, outcome.took) = (plan.step, Span::ZERO);
        for copy in &plan.copies {
            let missing = || format!("copy of page {} to {}: no such page", copy.from, copy.to);
            let content = self.page(copy.from.index()).ok_or_else(missing)?.to_vec();
            self.page_mut(copy.to.index()).ok_or_else(missing)?.copy_from_slice(&content);
        }
        outcome.drawn.reserve(plan.slices.iter().map(|slice| slice.draws.len()).sum());
        let mut hashes = Vec::new();
        for slice in &plan.slices {
            match self.slice(slice, &mut hashes) {
                Ok(last) => self.report(slice, last, &hashes, outcome),
                Err(reason) => outcome.failed.push((slice.seq, reason)),
            }
        }
        Ok(())
    }

    /// Computes and stores the hashes of a slice, and gives the last one. `hashes` has all of them where the slice reports
    /// log-probabilities.
    fn slice(&mut self, slice: &Slice, hashes: &mut Vec<u64>) -> Result<u64, String> {
        hashes.clear();
        let (mut state, mut position) = (EMPTY, slice.start);
        let mut left = &slice.tokens[..];
        let mut add = |state: &mut u64, slots: &mut [u64]| {
            let (tokens, rest) = left.split_at(left.len().min(slots.len()));
            for (slot, &token) in slots.iter_mut().zip(tokens) {
                *state = roll(*state, token);
                *slot = *state;
            }
            if slice.prompt_logprobs.is_some() {
                hashes.extend_from_slice(&slots[..tokens.len()]);
            }
            position += tokens.len() as u32;
            left = rest;
            (!rest.is_empty()).then_some(position)
        };
        // The rest of the page that has the token before: all that a decode needs, mostly.
        let mut next = if let Some(before) = slice.start.checked_sub(1) {
            let Some((known, slots)) = self.slots(slice, before)?.split_first_mut() else {
                return Err(no_page(before));
            };
            state = *known;
            if state == UNWRITTEN {
                return Err(unwritten(before));
            }
            add(&mut state, slots)
        } else {
            (!slice.tokens.is_empty()).then_some(0)
        };
        while let Some(position) = next {
            next = add(&mut state, self.slots(slice, position)?);
        }
        Ok(state)
    }

    /// The slots from a position to the end of its page; at least one.
    fn slots(&mut self, slice: &Slice, position: u32) -> Result<&mut [u64], String> {
        let (page, offset) = ((position / self.page_tokens) as usize, (position % self.page_tokens) as usize);
        let Some(id) = slice.block_table.get(page) else { return Err(no_page(position)) };
        let missing = || no_such_page(*id);
        self.page_mut(id.index()).and_then(|slots| slots.get_mut(offset..)).ok_or_else(missing)
    }

    fn report(&self, slice: &Slice, last: u64, hashes: &[u64], outcome: &mut StepOutcome) {
        if let Some(targets) = &slice.prompt_logprobs {
            let rows = hashes.iter().zip(&targets.targets);
            let tokens = rows.map(|(&h, &t)| self.model.logprobs(h, t, targets.top)).collect();
            outcome.prompt_logprobs.push(PromptLogprobs { seq: slice.seq, first: slice.start + 1, tokens });
        }
        if slice.tokens.is_empty() {
            return;
        }
        for Draw { choice, sampling, position, .. } in &slice.draws {
            let token = self.model.draw(last, sampling, *choice, *position);
            let seq = crate::step::SeqKey { choice: *choice, ..slice.seq };
            let logprobs = sampling.logprobs.map(|top| self.model.logprobs(last, token, top));
            outcome.drawn.push(Drawn { seq, token, logprobs });
        }
    }
}
